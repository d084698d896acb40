"""Rows that arrive while earlier ones are in progress, computed by an engine of this process."""

import os
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ropechat.batch.header import engine_header, model_header
from ropechat.batch.reader import BatchRow
from ropechat.batch.report import BatchReport
from ropechat.batch.runner import PromptOptions, run_batch
from ropechat.batch.score import score_batch
from ropechat.engine.arrivals import Arrivals
from ropechat.errors import InternalError, RequestError
from ropechat.models.resolve import resolve
from ropechat.sampling import Sampling

if TYPE_CHECKING:
    from ropechat.batch.output import OnFailedCopy
    from ropechat.engine.engine import Engine

Task = tuple[BatchRow, Sequence[int]]
"""A row, and which of its samples must be computed."""


@dataclass(frozen=True)
class Work:
    """The settings of each row: the arguments of `run_batch`, or with `score` of `score_batch`."""

    sampling: Sampling
    settings: PromptOptions
    run_seed: int
    window: int = 16
    score: bool = False
    timeout: float | None = None


class Worker:
    """Computes rows in its own thread; new rows join those in progress in the same forward passes."""

    def __init__(self, engine: "Engine", work: Work) -> None:
        self._engine, self._work = engine, work
        self._tasks = Arrivals[Task]()
        self._records: queue.SimpleQueue[Mapping[str, Any] | BaseException] = queue.SimpleQueue()
        self._samples: dict[int, Sequence[int]] = {}
        self._unfinished = 0
        self.found = self.copied = 0  # as a Sink
        self.is_full = False
        self.ordered = False
        self.on_failed_copy: OnFailedCopy | None = None
        self.made_tokens = 0
        """New tokens so far, including those of unfinished rows."""
        self._thread = threading.Thread(target=self._run, name="ropechat-rows", daemon=True)
        self._thread.start()

    def exchange(self, tasks: Sequence[Task], seconds: float) -> list[Mapping[str, Any]]:
        """Take rows; return the records that are finished, waiting up to `seconds` for the first one.

        Raises the error that ended the computation.
        """
        for task in tasks:
            self._tasks.put(task)
        found: list[Mapping[str, Any]] = []
        try:
            item = self._records.get(timeout=seconds)
            while True:
                if isinstance(item, BaseException):
                    raise item
                found.append(item)
                item = self._records.get_nowait()
        except queue.Empty:
            return found

    def close(self) -> None:
        """Stop; rows in progress are dropped."""
        self._tasks.close()
        self._engine.cancel()
        self._thread.join()

    # ---- in the thread

    def _run(self) -> None:
        try:
            while self._tasks.wait():
                if not self._compute(self._rows()):
                    return
        except BaseException as error:  # raised again by `exchange`, in the caller's thread
            self._records.put(error)

    def _rows(self) -> Iterator[BatchRow | None]:
        # Scores are read ahead, so a pause would delay them: the rows that arrived are scored, then the rest.
        for task in self._tasks.take(lambda: self._unfinished > 0 and not self._work.score):
            if task is None:
                yield None
                continue
            row, samples = task
            self._samples[row.index] = samples
            yield row

    def _compute(self, rows: Iterator[BatchRow | None]) -> bool:
        """Compute rows; return whether they were finished, not cancelled."""
        work, before = self._work, self.made_tokens

        def tell(report: BatchReport) -> None:
            self.made_tokens = before + report.made_tokens

        if work.score:
            given = (row for row in rows if row is not None)
            report = score_batch(
                self._engine, given, self, total=None, window=work.window, early_stop=False, on_progress=tell
            )
        else:
            report = run_batch(
                self._engine,
                rows,
                self,
                work.sampling,
                work.settings,
                run_seed=work.run_seed,
                total=None,
                window=work.window,
                early_stop=False,
                timeout=work.timeout,
                on_progress=tell,
            )
        return not report.cancelled

    def begin(self, row: BatchRow, samples: int) -> list[int]:
        """As `Sink.begin`."""
        wanted = list(self._samples.pop(row.index))
        self._unfinished += len(wanted)
        return wanted

    def write(self, row: BatchRow, record: Mapping[str, Any]) -> None:
        """As `Sink.write`."""
        self._unfinished -= 1
        self._records.put(record)


@dataclass(frozen=True)
class Model:
    """A model as each machine loads it.

    name: as for `Engine.load`. options: of `Engine.load`. raw: no chat template. template, variables: the
    name of the chat template and its variables. isa: the instruction set; None takes the machine's own.
    """

    name: str
    options: Mapping[str, Any]
    raw: bool = False
    template: str | None = None
    variables: Mapping[str, Any] | None = None
    isa: str | None = None


class Node:
    """The engine of one machine of several."""

    def __init__(self) -> None:
        self._worker: Worker | None = None

    def load(self, model: Model) -> dict[str, Any]:
        """Load the model; return the fields of the journal's header that it determines.

        Raises as `Engine.load`.
        """
        from ropechat.engine.engine import Engine

        if model.isa is not None:
            os.environ["ROPECHAT_ISA"] = model.isa
        path = resolve(model.name)
        self._engine = engine = Engine.load(path, **model.options)
        variables = dict(model.variables or {})
        if model.raw:
            engine.chat.template = None
        else:
            engine.chat.use(model.template, variables)
        files = {**model_header(path), "name": engine.name, "revision": engine.revision}
        return {"model": files, **engine_header(engine, variables)}

    def exchange(
        self, work: Work, tasks: Sequence[Task], seconds: float
    ) -> tuple[list[Mapping[str, Any]], int]:
        """As `Worker.exchange`, with the number of new tokens so far."""
        if self._worker is None:
            self._worker = Worker(self._engine, work)
        return self._worker.exchange(tasks, seconds), self._worker.made_tokens


ISAS = {
    "x86-64": ("scalar", "avx2", "avx-vnni", "avx512", "avx512-vnni", "avx512-bf16", "amx"),
    "Arm": ("scalar", "neon", "neon-dotprod", "neon-i8mm"),
}
"""Instruction sets of each architecture. A CPU with one has those before it too, except avx-vnni."""


def least_isa(found: Sequence[str]) -> str:
    """The widest instruction set that CPUs with these ones all have.

    Raises:
        RequestError: no architecture has them all.
    """
    for names in ISAS.values():
        if {*found} <= {*names}:
            least = min(found, key=names.index)
            return "avx2" if least == "avx-vnni" and {*found} != {least} else least
    if unknown := {*found}.difference(*ISAS.values()):
        raise InternalError(f"isa: unknown instruction set {min(unknown)!r}")
    raise RequestError(
        f"--ray: the nodes have {' and '.join(ISAS)} processors ({', '.join(found)}), whose numbers can"
        " differ in the last bits; use nodes of one kind, or add --any-isa to accept it"
    )
