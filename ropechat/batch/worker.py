"""Rows that arrive while earlier ones are in progress, computed by an engine of this process."""

import os
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ropechat.batch.header import engine_header, model_header
from ropechat.batch.output import Sink
from ropechat.batch.reader import BatchRow
from ropechat.batch.report import BatchReport
from ropechat.batch.runner import compute_rows
from ropechat.batch.spec import BatchSpec, BatchWatcher
from ropechat.engine.arrivals import Arrivals
from ropechat.engine.spec import ModelSpec
from ropechat.errors import InternalError, RequestError
from ropechat.models.resolve import resolve

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine

Task = tuple[BatchRow, Sequence[int]]
"""A row, and which of its samples must be computed."""


class Worker(Sink):
    """Computes rows in its own thread; new rows join those in progress in the same forward passes."""

    def __init__(self, engine: "Engine", spec: BatchSpec, run_seed: int) -> None:
        self._engine, self._spec, self._run_seed = engine, spec, run_seed
        self._tasks = Arrivals[Task]()
        self._records: queue.SimpleQueue[Mapping[str, Any] | BaseException] = queue.SimpleQueue()
        self._samples: dict[int, Sequence[int]] = {}
        self._unfinished = 0
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
        for task in self._tasks.take(lambda: self._unfinished > 0 and not self._spec.rows.score):
            if task is None:
                yield None
                continue
            row, samples = task
            self._samples[row.index] = samples
            yield row

    def _compute(self, rows: Iterator[BatchRow | None]) -> bool:
        """Compute rows; return whether they were finished, not cancelled."""
        watcher = _TokenCounter(self)
        report = compute_rows(
            self._engine, rows, self, self._spec, self._run_seed, watcher=watcher, early_stop=False
        )
        return not report.cancelled

    def begin(self, row: BatchRow, samples: int) -> list[int]:
        wanted = list(self._samples.pop(row.index))
        self._unfinished += len(wanted)
        return wanted

    def write(self, row: BatchRow, record: Mapping[str, Any]) -> None:
        self._unfinished -= 1
        self._records.put(record)


class _TokenCounter(BatchWatcher):
    """Counts the new tokens of a worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._before = worker, worker.made_tokens

    def progress(self, report: BatchReport) -> None:
        self._worker.made_tokens = self._before + report.made_tokens


class Node:
    """The engine of one machine of several."""

    def __init__(self) -> None:
        self._worker: Worker | None = None

    def load(self, model: ModelSpec, isa: str | None) -> dict[str, Any]:
        """Load the model; return the fields of the journal's header that it determines.

        isa: the instruction set; None takes the machine's own. Raises as `ModelSpec.load`.
        """
        if isa is not None:
            os.environ["ROPECHAT_ISA"] = isa
        path = resolve(model.name)
        self._engine = engine = replace(model, name=str(path)).load()
        files = {**model_header(path), "name": engine.name, "revision": engine.revision}
        return {"model": files, **engine_header(engine, model.template_vars)}

    def exchange(
        self, spec: BatchSpec, run_seed: int, tasks: Sequence[Task], seconds: float
    ) -> tuple[list[Mapping[str, Any]], int]:
        """As `Worker.exchange`, with the number of new tokens so far."""
        if self._worker is None:
            self._worker = Worker(self._engine, spec, run_seed)
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
