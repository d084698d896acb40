"""The measurements. Thread counts take turns in each round, so a slowdown of the machine affects all."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from ropechat.engine.bench.memory import Memory
from ropechat.engine.bench.result import Report, Rounds
from ropechat.engine.bench.start import Start, run_command, start_process
from ropechat.sampling import Sampling
from ropechat.util.progress import Progress

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine

OnProgress = Callable[[Progress], None]
OnNote = Callable[[str], None]


@dataclass(frozen=True)
class Workload:
    """The sizes of the measurements, in tokens. `depth` 0 and empty `batches`: not measured."""

    rounds: int = 5
    prefill: int = 512
    decode: int = 128
    decode_prompt: int = 16
    depth: int = 2048
    depth_decode: int = 64
    batches: tuple[int, ...] = (8, 16, 32)
    batch_prompt: int = 128
    batch_decode: int = 64
    probe_megabytes: int = 512

    def fitted(self, context: int) -> "Workload":
        """Shorten or omit what does not fit into the context."""
        fits = context >= self.depth + self.depth_decode + 1
        return replace(
            self,
            prefill=min(self.prefill, context - 1),
            decode=max(1, min(self.decode, context - self.decode_prompt - 1)),
            depth=self.depth if fits else 0,
            batches=tuple(n for n in self.batches if context > self.batch_prompt + self.batch_tokens(n)),
        )

    def batch_tokens(self, sequences: int) -> int:
        """Tokens per sequence: enough for `batch_decode` passes that decode all sequences together."""
        return self.batch_decode + 2 * sequences + 2


QUICK = Workload(1, 32, 8, 4, 64, 4, (2,), 8, 4, 16)
"""A quick check that everything works; its numbers mean little."""


class Prompts:
    """Random prompts. Each starts with another id (until all were used), so no prefix is reused."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._random = Random(0)
        self._first = 0

    def draw(self, length: int) -> list[int]:
        self._first = (self._first + 1) % self._vocab_size
        rest = self._random.choices(range(self._vocab_size), k=length - 1)
        return [self._first, *rest]


def time_request(engine: "Engine", prompt: Sequence[int], decode: int) -> tuple[float, float]:
    """Measure the seconds to the first token, and for the next `decode` tokens."""
    clock = [time.perf_counter()]
    for _ in engine.generate(prompt, Sampling(temperature=0, max_tokens=decode + 1)):
        clock.append(time.perf_counter())
    return clock[1] - clock[0], clock[-1] - clock[1]


def time_batch(engine: "Engine", prompts: Sequence[Sequence[int]], tokens: int, passes: int) -> float:
    """Measure tokens per second of all sequences, over passes with one token of each."""
    clock: list[float] = []

    def on_tokens(made: int) -> None:
        if made == len(prompts):
            clock.append(time.perf_counter())
        if len(clock) > passes:
            engine.cancel()

    sampling = Sampling(temperature=0, max_tokens=tokens)
    for _ in engine.generate_many(prompts, sampling, window=len(prompts), on_tokens=on_tokens):
        pass
    return len(prompts) * (len(clock) - 1) / (clock[-1] - clock[0]) if len(clock) > 1 else 0.0


class Subject:
    """A loaded model with a number of threads, and its measurements."""

    def __init__(self, engine: "Engine", plan: Workload) -> None:
        self.engine, self.plan = engine, plan
        self.engine.stop_ids = frozenset()  # random text must not stop early
        self.threads = int(engine.facts["threads"])
        self.rounds = Rounds()

    def round(self, prompts: Prompts, memory: Memory) -> dict[str, float]:
        """Measure everything once."""
        plan, engine = self.plan, self.engine
        values = {"memory_read_1": memory.read(1), "memory_read": memory.read(self.threads)}
        values["prefill"] = plan.prefill / time_request(engine, prompts.draw(plan.prefill), 0)[0]
        values["decode"] = (
            plan.decode / time_request(engine, prompts.draw(plan.decode_prompt), plan.decode)[1]
        )
        if plan.depth:
            seconds = time_request(engine, prompts.draw(plan.depth), plan.depth_decode)[1]
            values["decode_at_depth"] = plan.depth_decode / seconds
        for count in plan.batches:
            many = [prompts.draw(plan.batch_prompt) for _ in range(count)]
            values[f"batch_{count}"] = time_batch(engine, many, plan.batch_tokens(count), plan.batch_decode)
        read = values["decode"] * engine.facts["weight_bytes"]
        values["decode_share"] = read / values["memory_read"]
        return values

    def warm_up(self, prompts: Prompts) -> None:
        """Run once, so that memory is allocated before the first round."""
        time_request(self.engine, prompts.draw(self.plan.prefill), self.plan.decode_prompt)


def measure_starts(
    options: Sequence[str], rounds: int, on_progress: OnProgress, on_note: OnNote
) -> Iterator[Start]:
    """Time new processes in sequence; the first one loads the page cache and does not count."""
    for index in range(rounds + 1):
        on_progress(Progress("starting", index, rounds + 1, "starts"))
        start = start_process(run_command(options))
        if isinstance(start, str):
            on_note(f"start to first token: not measured ({start})")
            return
        if index:
            yield start


def measure_loads(
    model: Path, dtype: str, threads: int | None, rounds: int, on_progress: OnProgress
) -> tuple["Engine", list[float]]:
    """Load the model several times; return it and the seconds of each load."""
    from ropechat.engine.engine import Engine

    seconds = []
    for index in range(rounds):
        on_progress(Progress("loading", index, rounds, "rounds"))
        begin = time.perf_counter()
        # Random weights repeat themselves, which text does not: drafts would flatter the rates.
        engine = Engine.load(model, dtype=dtype, threads=threads, speculative="off")
        seconds.append(time.perf_counter() - begin)
        if index < rounds - 1:
            engine.close()
    return engine, seconds


def measure(
    model: Path,
    dtype: str,
    threads: Sequence[int | None],
    plan: Workload,
    on_progress: OnProgress,
    on_note: OnNote,
) -> Report:
    """Measure everything for each number of threads (None: the default).

    on_progress: called with how far it is. on_note: called with what cannot be measured.
    """
    options = ["-m", str(model), "--dtype", dtype]
    begun = [
        list(measure_starts([*options, *given], plan.rounds, on_progress, on_note))
        for given in ([] if n is None else ["--threads", str(n)] for n in threads)
    ]
    memory, subjects = Memory(plan.probe_megabytes), []
    for n, start in zip(threads, begun, strict=True):
        engine, seconds = measure_loads(model, dtype, n, plan.rounds, on_progress)
        subject = Subject(engine, plan.fitted(engine.context))
        subject.rounds.load = seconds
        subject.rounds.start = [one.seconds for one in start]
        subject.rounds.peak = [one.peak_bytes for one in start]
        subjects.append(subject)
    prompts = Prompts(subjects[0].engine.facts["vocab_size"])
    for subject in subjects:
        subject.warm_up(prompts)
    for index in range(plan.rounds):
        for number, subject in enumerate(subjects):
            done = index * len(subjects) + number
            on_progress(Progress("measuring", done, plan.rounds * len(subjects), "rounds"))
            subject.rounds.add(subject.round(prompts, memory), load_average())
    return make_report(subjects)


def make_report(subjects: Sequence[Subject]) -> Report:
    engine, plan = subjects[0].engine, subjects[0].plan
    return Report(
        model=engine.name,
        facts={
            name: engine.facts[name] for name in ("dtype", "isa", "context", "num_parameters", "weight_bytes")
        },
        plan=plan.__dict__ | {"batches": list(plan.batches)},
        rounds={subject.threads: subject.rounds for subject in subjects},
    )


def load_average() -> float | None:
    """The load average of the last minute: above our threads, other programs are running."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None
