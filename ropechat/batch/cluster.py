"""A batch on the nodes of a Ray cluster: one actor with one engine per node, the journal in this process.

Rows go to the nodes a few windows at a time, and records come back as they finish. The rows of a node that is
lost are computed by the others; rows depend on nothing else, so the records are the same.
"""

import contextlib
import io
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ropechat.batch.journal import differences
from ropechat.batch.output import Sink
from ropechat.batch.reader import BatchRow
from ropechat.batch.records import error_record, samples_of, tokens_of
from ropechat.batch.report import BatchReport, Failures
from ropechat.batch.spec import BatchSpec, BatchWatcher
from ropechat.batch.worker import Node, Task, least_isa
from ropechat.engine.spec import ModelSpec
from ropechat.errors import BatchInputError, FileAccessError, InternalError, RequestError, RopechatError
from ropechat.util.text import count_of

AHEAD = 2
"""How many windows of rows a node has: those in progress, and those that follow."""
_WAIT_SECONDS = 1.0
_LOOK_SECONDS = 5.0
"""How often new nodes are looked for."""
_MAX_STRIKES = 3
"""A node is not used any more after so many ends of its actor without a record in between."""


@dataclass
class _Actor:
    """An actor, and the rows that it has: index -> the row and its missing samples."""

    node: str
    address: str
    handle: Any
    tasks: dict[int, tuple[BatchRow, set[int]]] = field(default_factory=dict)
    made_tokens: int = 0


class Cluster:
    """The nodes of a Ray cluster with a model loaded on each.

    address: as for `ray.init`: host:port, or None for the cluster of this machine or RAY_ADDRESS; without
    one, Ray is started here. any_isa: nodes may use different instruction sets. header: the fields of the
    journal's header that the model determines. on_note: called with notes about nodes.

    Raises RequestError if Ray is not installed or not reachable, BatchInputError if nodes have different
    models or types, and as `Engine.load`.
    """

    def __init__(
        self, address: str | None, model: ModelSpec, *, any_isa: bool, on_note: Callable[[str], None]
    ) -> None:
        self._ray = _connect(address)
        self._on_note = on_note
        self._actors: dict[str, _Actor] = {}
        self._loading: dict[Any, _Actor] = {}
        """Actors of nodes that joined, by the reference of their header."""
        self._strikes: dict[str, int] = {}
        self._model, self._isa = model, os.environ.get("ROPECHAT_ISA")
        self._looked = 0.0
        self.header: dict[str, Any] = {}
        try:
            self._load_all(any_isa=any_isa)
        except BaseException:
            self.close()
            raise

    def describe(self) -> str:
        """How many nodes compute, with what."""
        count = len(self._actors)
        return f"{count} node{'s' if count > 1 else ''}, {self.header['dtype']}, {self.header['isa']}"

    def close(self) -> None:
        """Disconnect from the cluster; its actors end."""
        self._ray.shutdown()

    # ---- nodes

    def _nodes(self) -> dict[str, tuple[str, int]]:
        """Node -> its address and number of CPUs."""
        return {
            node["NodeID"]: (node["NodeManagerAddress"], int(node["Resources"].get("CPU", 0)))
            for node in self._ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
        }

    def _begin(self, node: str, address: str, cpus: int) -> tuple[_Actor, Any]:
        """Start an actor on a node; return it, and the reference of its header."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # A process sees all cores of its machine, not only those of its Ray node.
        model = replace(self._model, threads=self._model.threads or cpus)
        place = NodeAffinitySchedulingStrategy(node, soft=False)
        handle = self._ray.remote(num_cpus=cpus, max_restarts=0, scheduling_strategy=place)(Node).remote()
        return _Actor(node, address, handle), handle.load.remote(model, self._isa)

    def _load_all(self, *, any_isa: bool) -> None:
        nodes = self._nodes()
        if not nodes:
            raise RequestError("--ray: the cluster has no node with a CPU; start one with `ray start`")
        begun = {node: self._begin(node, *facts) for node, facts in nodes.items()}
        headers = self._headers(begun)
        found = {str(header["isa"]) for header in headers.values()}
        if len(found) > 1 and not any_isa:
            least = least_isa(sorted(found))
            self._on_note(
                f"note: instruction sets {', '.join(sorted(found))}: all nodes use {least} (--any-isa)"
            )
            self._isa = least
            for node, header in headers.items():
                if header["isa"] != least:
                    self._ray.kill(begun[node][0].handle)
                    begun[node] = self._begin(node, *nodes[node])
            headers = self._headers({node: begun[node] for node in headers})
        first = next(iter(headers))
        self.header = {**headers[first], "isa": ", ".join(sorted({str(h["isa"]) for h in headers.values()}))}
        for node, header in headers.items():
            self._require_same(begun[node][0], header, any_isa=any_isa)
            self._actors[node] = begun[node][0]
        self._any_isa = any_isa
        self._looked = time.monotonic()

    def _headers(self, begun: Mapping[str, tuple[_Actor, Any]]) -> dict[str, dict[str, Any]]:
        """The header of each node; one that was lost while it loaded is left out."""
        headers = {}
        for node, (actor, ref) in begun.items():
            try:
                headers[node] = self._header(actor, ref)
            except self._ray.exceptions.RayActorError:
                self._on_note(f"note: node {actor.address} is lost; the others continue")
        if not headers:
            raise FileAccessError("ray: all nodes are lost; start nodes again")
        return headers

    def _header(self, actor: _Actor, ref: Any) -> dict[str, Any]:
        try:
            header: dict[str, Any] = self._ray.get(ref)
        except self._ray.exceptions.RayActorError:
            raise
        except self._ray.exceptions.RayError as error:
            raise _named(error, f"node {actor.address}") from None
        return header

    def _require_same(self, actor: _Actor, header: Mapping[str, Any], *, any_isa: bool) -> None:
        own = {**header, **({"isa": self.header["isa"]} if any_isa else {})}
        if found := differences(self.header, own):
            raise BatchInputError(f"node {actor.address}: differs from another node: {'; '.join(found)}")

    def _look_for_nodes(self) -> None:
        """Start loading the model on new nodes and on those whose actor ended."""
        self._looked = time.monotonic()
        known = {*self._actors, *(actor.node for actor in self._loading.values())}
        for node, facts in self._nodes().items():
            if node not in known and self._strikes.get(node, 0) < _MAX_STRIKES:
                actor, ref = self._begin(node, *facts)
                self._loading[ref] = actor

    def _join(self, ref: Any) -> None:
        """Use a node that has loaded the model."""
        actor = self._loading.pop(ref)
        try:
            self._require_same(actor, self._header(actor, ref), any_isa=self._any_isa)
        except (RopechatError, self._ray.exceptions.RayActorError) as error:
            why = error if isinstance(error, RopechatError) else f"node {actor.address} is lost"
            self._strikes[actor.node] = self._strikes.get(actor.node, 0) + 1
            self._on_note(f"note: {why}; the node is not used")
        else:
            self._actors[actor.node] = actor
            self._on_note(f"note: node {actor.address} joined: {self.describe()}")

    # ---- rows

    def run(
        self,
        rows: Iterator[BatchRow],
        sink: Sink,
        spec: BatchSpec,
        run_seed: int,
        total: int | None,
        watcher: BatchWatcher,
    ) -> BatchReport:
        """Answer rows and write a record for each sample to `sink`, see `compute_rows`.

        Raises FileAccessError if all nodes are lost.
        """
        report, begun = BatchReport(total), time.monotonic()
        failures = Failures(report, sink, spec.max_errors, watcher.failure)
        sent = replace(spec, source=Path())  # nodes get rows, not the input
        flow = _Flow(self._tasks(rows, sink, spec, failures))
        calls: dict[Any, _Actor] = {}
        while True:
            busy = {actor.node for actor in calls.values()}
            for actor in [actor for node, actor in self._actors.items() if node not in busy]:
                tasks = flow.take(actor, AHEAD * spec.window)
                if actor.tasks:
                    calls[actor.handle.exchange.remote(sent, run_seed, tasks, _WAIT_SECONDS)] = actor
            if not calls and not flow.waiting:
                break
            if not calls or time.monotonic() - self._looked >= _LOOK_SECONDS:
                self._look_for_nodes()
                if not calls and not self._loading:
                    raise FileAccessError("ray: all nodes are lost; start nodes again")
            done, _ = self._ray.wait([*calls, *self._loading], num_returns=1, timeout=_WAIT_SECONDS)
            for ref in done:
                if ref in self._loading:
                    self._join(ref)
                    continue
                actor = calls.pop(ref)
                for record, row in self._results(actor, ref, report, flow):
                    _write(record, row, sink, report, failures)
            report.elapsed = time.monotonic() - begun
            report.found, report.copied = sink.found, sink.copied
            watcher.progress(report)
        return report

    def _tasks(
        self, rows: Iterator[BatchRow], sink: Sink, spec: BatchSpec, failures: Failures
    ) -> Iterator[Task | None]:
        """Yield the rows to compute, with their missing samples; None: there is none now."""
        for row in rows:
            while sink.is_full:
                yield None
            wanted = sink.begin(row, 1 if spec.rows.score else samples_of(row.request, spec.prompts.samples))
            if wanted and row.request is None:
                error = row.error or InternalError(f"line {row.line}: no request and no error")
                failures.take(row, error_record(row, 0, error))
            elif wanted:
                yield row, wanted

    def _results(
        self, actor: _Actor, ref: Any, report: BatchReport, flow: "_Flow"
    ) -> list[tuple[Mapping[str, Any], BatchRow]]:
        """The records that a call returned, with their rows; [] if its actor is lost."""
        try:
            records, made = self._ray.get(ref)
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.ObjectLostError):
            del self._actors[actor.node]
            self._strikes[actor.node] = self._strikes.get(actor.node, 0) + 1
            rows = count_of(len(actor.tasks), "row")
            self._on_note(f"note: node {actor.address} is lost; other nodes compute its {rows}")
            flow.give_back(actor)
            self._looked = 0.0
            return []
        except self._ray.exceptions.RayError as error:
            raise _named(error, f"node {actor.address}") from None
        report.made_tokens += made - actor.made_tokens
        actor.made_tokens = made
        if records:
            self._strikes.pop(actor.node, None)
        found = []
        for record in records:
            row, missing = actor.tasks[record["index"]]
            missing.discard(record["sample"])
            if not missing:
                del actor.tasks[record["index"]]
            found.append((record, row))
        return found


def _write(
    record: Mapping[str, Any], row: BatchRow, sink: Sink, report: BatchReport, failures: Failures
) -> None:
    if not record["ok"]:
        failures.take(row, record)
        return
    sink.write(row, record)
    report.ok += 1
    prompt, cached, new = tokens_of(record)
    report.prompt_tokens += prompt
    report.cached_tokens += cached
    report.completion_tokens += new


class _Flow:
    """Rows for the actors: first those of lost actors, then new ones."""

    def __init__(self, tasks: Iterator[Task | None]) -> None:
        self._tasks = tasks
        self._back: deque[Task] = deque()

    @property
    def waiting(self) -> bool:
        """Whether rows of lost actors wait for another one."""
        return bool(self._back)

    def take(self, actor: _Actor, most: int) -> list[Task]:
        """Rows for an actor, so that it has up to `most`."""
        taken = []
        while len(actor.tasks) < most:
            task = self._back.popleft() if self._back else next(self._tasks, None)
            if task is None:
                break
            row, samples = task
            actor.tasks[row.index] = row, set(samples)
            taken.append(task)
        return taken

    def give_back(self, actor: _Actor) -> None:
        """Take the rows of a lost actor back."""
        self._back.extend((row, sorted(missing)) for row, missing in actor.tasks.values())
        actor.tasks.clear()


def without_stdout() -> contextlib.AbstractContextManager[Any]:
    """Drop what Ray prints: its own account of lost nodes; the notes of `Cluster` say it in a line each."""
    return contextlib.redirect_stdout(io.StringIO())


def _connect(address: str | None) -> Any:
    """The module ray, connected to a cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anyone
    try:
        import ray
    except ImportError:
        raise RequestError("--ray needs Ray; install it with `pip install 'ropechat[ray]'`") from None
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        ray.init(
            address=address,
            include_dashboard=None if address else False,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise RequestError(f"--ray: {address or 'this machine'}: {lines[0]}") from None
    finally:
        for number, handler in handlers.items():  # Ray's own ones would exit with another code
            signal.signal(number, handler)
    return ray


def _named(error: Exception, where: str) -> RopechatError:
    """The error of ropechat for one of Ray, with the place where it happened."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, RopechatError):
        return type(cause)(f"{where}: {cause}")
    lines = [line for line in str(cause or error).splitlines() if line.strip()]
    return InternalError(f"{where}: {lines[-1] if lines else type(error).__name__}")
