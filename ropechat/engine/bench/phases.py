"""Where the time of a prefill, a decode step, a step of many rows and a start goes."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ropechat.engine.bench.measure import Prompts, Workload, time_batch, time_request
from ropechat.errors import InternalError

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine

SEQUENCES = 32
"""Sequences of the step of many rows."""

_START = """
import time
marks = [("imports", time.time())]
def mark(name): marks.append((name, time.time()))
import json, sys
from ropechat.cli import main
import ropechat.cli.run
from ropechat.engine.native import ModelLoad
mark("load")
with ModelLoad(__import__("pathlib").Path(sys.argv[1]), **json.loads(sys.argv[2])) as loading:
    from ropechat.engine.engine import Engine
    engine = Engine.from_load(loading, "Once upon a time")
mark("first token")
from ropechat.sampling import Sampling
next(engine.generate("Once upon a time" if engine.tokenizer.present else [1], Sampling(temperature=0)))
mark("end")
print(json.dumps(marks))
"""


@dataclass(frozen=True)
class Jobs:
    """The jobs of the threads of one phase that have the same number of parts, in all steps together.

    parts: of one job, each of which a thread can take; a job of one part leaves all but one thread without
    work. seconds: from each job's beginning until all of it was done. bytes, products: of weights.
    """

    phase: str
    parts: int
    count: int
    seconds: float
    bytes: int
    products: int


@dataclass(frozen=True)
class PhaseTable:
    """seconds: by phase, of all `steps` together; they add up to `whole`.

    Of the engine the phases of `_core.Engine.phase_times`; "events" is the rest of its steps: Python's lock
    and objects. "python" is the time between the steps.
    """

    name: str
    steps: int
    whole: float
    seconds: dict[str, float]
    jobs: tuple[Jobs, ...] = ()

    @property
    def serial(self) -> float:
        """Seconds in which one thread worked: all but those of jobs of several parts."""
        return max(0.0, self.whole - sum(jobs.seconds for jobs in self.jobs if jobs.parts > 1))

    def record(self) -> dict[str, Any]:
        """For --json, per step."""
        per_step = {name: seconds / self.steps for name, seconds in self.seconds.items()}
        record = {
            "name": self.name,
            "steps": self.steps,
            "step_s": self.whole / self.steps,
            "phases_s": per_step,
        }
        if self.jobs:
            names = ("count", "seconds", "bytes", "products")
            jobs = [
                {"phase": jobs.phase, "parts": jobs.parts}
                | {name: getattr(jobs, name) / self.steps for name in names}
                for jobs in self.jobs
            ]
            record |= {"serial_s": self.serial / self.steps, "jobs": jobs}
        return record

    def text(self) -> str:
        """A line per phase that took time, in microseconds of a step and percent of it, and the jobs."""
        lines = [f"{self.name}: {self.whole / self.steps * 1e6:,.0f} us"]
        for name, seconds in self.seconds.items():
            if seconds > 0:
                lines.append(f"  {name:15}{seconds / self.steps * 1e6:12,.1f}{seconds / self.whole:8.1%}")
        if self.jobs:
            several = [jobs for jobs in self.jobs if jobs.parts > 1]
            count = sum(jobs.count for jobs in several) / self.steps
            parts = sum(jobs.count * jobs.parts for jobs in several) / self.steps
            lines.append(f"  {count:,.0f} jobs of several parts (a barrier each), {parts:,.0f} parts")
            lines.append(
                f"  {'serial':15}{self.serial / self.steps * 1e6:12,.1f}{self.serial / self.whole:8.1%}"
            )
        return "\n".join(lines)


class _TimedCore:
    """The compiled engine with a clock around its steps."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self.steps, self.seconds = 0, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def step(self, *given: Any) -> Any:
        begin = time.perf_counter()
        try:
            return self._core.step(*given)
        finally:
            self.seconds += time.perf_counter() - begin
            self.steps += 1


def time_phases(
    engine: "Engine", name: str, work: Callable[[], object], steps: int | None = None
) -> PhaseTable:
    """Do `work`, which uses only the engine, and return its times by phase. steps:

    the divisor of the times for display; default: the steps of the engine.
    """
    core = engine._core
    timed = _TimedCore(core)
    engine._core = timed  # type: ignore[assignment]  # has its methods
    timed.time_phases(True)
    try:
        begin = time.perf_counter()
        work()
        whole = time.perf_counter() - begin
        phases = dict(timed.phase_times())
        jobs = tuple(Jobs(*row) for row in timed.phase_jobs())
    finally:
        timed.time_phases(False)
        engine._core = core
    events, python = timed.seconds - sum(phases.values()), whole - timed.seconds
    seconds = {**phases, "events": events, "python": python}
    return PhaseTable(name, steps or timed.steps, whole, seconds, jobs)


def engine_phases(engine: "Engine", rounds: int = 1) -> list[PhaseTable]:
    """The phases of a prefill, of a decode step, and of a step of 32 sequences.

    rounds: how often each is done. The engine must be loaded with `speculative="off"`: one token a step.
    """
    engine.stop_ids = frozenset()
    plan = Workload().fitted(engine.context)
    prompts = Prompts(engine.facts["vocab_size"])
    time_request(engine, prompts.draw(plan.prefill), 8)  # this creates buffers and threads

    def prefill() -> None:
        for _ in range(rounds):
            time_request(engine, prompts.draw(plan.prefill), 0)

    def decode() -> None:
        for _ in range(rounds):
            time_request(engine, [1], plan.decode)

    def batch() -> None:
        for _ in range(rounds):
            many = [[first] for first in range(SEQUENCES)]
            time_batch(engine, many, plan.decode, plan.decode)

    return [
        time_phases(engine, f"prefill of {plan.prefill} tokens", prefill, rounds),
        time_phases(engine, "decode step", decode),
        time_phases(engine, f"step of {SEQUENCES} sequences", batch),
    ]


def start_phases(model: str, options: dict[str, Any]) -> PhaseTable:
    """The phases of a new process up to its first token: imports, load (with the tokenizer), first token.

    Raises InternalError with the process's last line if it fails.
    """
    argv: Sequence[str] = [sys.executable, "-c", _START, model, json.dumps(options)]
    begin = time.time()
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise InternalError(f"start: {done.stderr.strip().rpartition(chr(10))[2] or done.returncode}")
    marks: list[tuple[str, float]] = json.loads(done.stdout)
    named = [("interpreter", begin), *((name, at) for name, at in marks)]
    seconds = {name: after - at for (name, at), (_, after) in pairwise(named)}
    return PhaseTable("start to first token", 1, named[-1][1] - begin, seconds)
