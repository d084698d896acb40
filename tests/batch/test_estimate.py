"""The time left of a batch, on a clock of its own: reading costs by the token, writing by the pass."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from ropechat.batch.estimate import RowsEstimate
from ropechat.engine.scheduler import Scheduler
from ropechat.models.speed import Speed
from ropechat.util.progress import Progress

READ_S, WRITE_S = 0.1, 0.25  # about those of 8 billion weights on two cores
CHUNK = 48
SPEED = Speed(prefill=11.0, decode=3.7)  # as measured before, a tenth off


@dataclass
class Row:
    unread: int
    unwritten: int


@dataclass
class Machine:
    """A backend on a clock of its own. look: called while time passes."""

    rows: Sequence[Row]
    noise: random.Random
    look: Callable[[], None]
    now: float = 0.0
    seed: int = 0
    progress: Progress | None = None
    active: dict[int, Row] = field(default_factory=dict)

    def encode(self, job: Any) -> list[int]:
        return [0] * self.rows[int(job.prompt)].unread

    def add(self, job: Any, ids: list[int], seed: int, stream: int) -> tuple[int, Any]:
        number = int(job.prompt)
        self.active[number] = Row(len(ids), self.rows[number].unwritten)
        return number, None

    def step(self, sequences: Sequence[int]) -> list[Any]:
        room, events = CHUNK, []
        before = sum(self.rows[number].unread - self.active[number].unread for number in sequences)
        for number in sequences:
            row, taken = self.active[number], 0
            if row.unread:
                taken = min(room, row.unread)
                room -= taken
                row.unread -= taken
            done = self.rows[number].unread - row.unread
            if row.unread and taken:
                events.append(SimpleNamespace(sequence=number, kind="prefill", done=done))
            if not row.unread:
                row.unwritten -= 1
                events.append(SimpleNamespace(sequence=number, kind="token", done=done))
        read = CHUNK - room
        writes = any(event.kind == "token" for event in events)
        seconds = (READ_S * read + WRITE_S * writes) * self.noise.uniform(0.9, 1.1)
        for tick in range(10):
            self.progress = Progress("reading", before + read * tick / 10, None)
            self.look()
            self.now += seconds / 10
        return events

    def record(self, event: Any, text_filter: Any) -> Any:
        over = self.active[event.sequence].unwritten == 0
        reason = "length" if over else None
        return SimpleNamespace(id=0, logprob=0.0, text="", top=(), finish_reason=reason, channel="answer")

    def reused(self, sequence: int) -> int:
        return 0

    def free(self, sequence: int) -> None:
        del self.active[sequence]


def run(rows: Sequence[Row], limit: int, window: int = 16) -> tuple[float, list[tuple[float, float | None]]]:
    """Seconds of the run, and what was left at which time."""
    seen: list[tuple[float, float | None]] = []
    machine = Machine(rows, random.Random(3), lambda: seen.append((machine.now, estimate.left(len(rows)))))
    estimate = RowsEstimate(limit, window, lambda: machine.progress, SPEED, lambda: machine.now)
    scheduler = Scheduler(machine, window, None, on_pass=estimate.take)
    done = list(scheduler.run(str(number) for number in range(len(rows))))
    assert [completion.error for _, completion in done] == [None] * len(rows)
    return machine.now, seen


def lengths(count: int, seed: int = 1) -> list[int]:
    """Of answers: as if each token were the last with the same probability."""
    noise = random.Random(seed)
    return [1 + min(199, int(noise.expovariate(1 / 60))) for _ in range(count)]


CASES = {
    "few rows that are read": ([Row(500, 2)] * 4, 2),
    "one row": ([Row(300, 40)], 40),
    "few rows of the same length": ([Row(40, 64)] * 6, 64),
    "more rows than the window": ([Row(60, 100)] * 40, 100),
    "rows of any length": ([Row(50, n) for n in lengths(120)], 200),
    "long and short prompts": ([Row(20 + 400 * (n % 3 == 0), 30) for n in range(60)], 30),
}


@pytest.mark.parametrize("name", CASES)
def test_a_third_of_the_way_the_time_left_is_right_by_a_quarter(name: str) -> None:
    total, seen = run(*CASES[name])
    first = next(at for at, left in seen if left is not None)
    assert first < 1.0, "of a pass of five"
    for share in (1 / 3, 1 / 2, 2 / 3):
        at, left = next((at, left) for at, left in seen if at >= share * total)
        assert left is not None
        assert left == pytest.approx(total - at, rel=0.25), f"{share:.2f} of {total:.0f} s"


def test_answers_that_end_early_shorten_the_rest() -> None:
    """Their limit is all that is known of the first answers; later ones are expected to be as short."""
    total, seen = run([Row(10, 20)] * 64, limit=500)
    begin = next(left for _, left in seen if left is not None)
    assert begin > 3 * total
    for share in (0.4, 0.6, 0.8):
        at, left = next((at, left) for at, left in seen if at >= share * total)
        assert left == pytest.approx(total - at, rel=0.25)
    assert seen[-1][1] == pytest.approx(0.0, abs=0.3)


def test_nothing_is_estimated_before_the_first_pass() -> None:
    assert RowsEstimate(10, 4, lambda: None, Speed()).left(3) is None
