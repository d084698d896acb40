"""The progress of a wait: what is done, the rate, and the time left."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from ropechat.util.text import format_bytes, format_duration

_RECENT_S = 3.0  # the rate that is shown is the mean over this time
_LEAST_S = 0.2  # before this time, the rate is not known
_FITTED_FROM = 8  # samples from which the growth of the cost is fitted
_GROWTH_BOUNDS = (0.5, 2.0)  # how far the fit may be from the expected growth


class Progress(NamedTuple):
    """The progress of a wait.

    stage: loading, packing, reading, writing, ... done, total: in `unit` (bytes, tokens, rows, ...); a total
    of None is unknown. growth: each unit before a unit adds so much to its cost, where the first one costs 1.
    """

    stage: str
    done: float
    total: float | None
    unit: str = "tokens"
    growth: float = 0.0

    @property
    def share(self) -> float | None:
        """What is done, from 0 to 1; None if the total is unknown."""
        return min(1.0, self.done / self.total) if self.total else None


class Wait(NamedTuple):
    """A wait as it is shown.

    rate: units per second; left, elapsed: seconds; None: not known yet. notes: further text about it.
    """

    progress: Progress
    rate: float | None = None
    left: float | None = None
    elapsed: float = 0.0
    notes: tuple[str, ...] = ()

    def words(self) -> list[str]:
        """What is done of the total, the rate, the time left: 133 of 828 tokens, 7.3 tok/s, 1 min left."""
        found = [format_amount(self.progress)]
        if self.rate:
            found.append(format_rate(self.rate, self.progress.unit))
        if self.left is not None:
            found.append(f"{format_duration(self.left)} left")
        return [*found, *self.notes]

    def record(self) -> dict[str, Any]:
        """The object of `--progress json`."""
        stage, done, total, unit, _ = self.progress
        return {
            "stage": stage,
            "unit": unit,
            "done": done,
            "total": total,
            "rate": None if self.rate is None else round(self.rate, 3),
            "elapsed_s": round(self.elapsed, 1),
            "eta_s": None if self.left is None else round(self.left, 1),
        }


class Estimate:
    """The rate and the rest of one wait, from what was done at which time.

    A unit costs a * (1 + growth * n), where n units come before it: attention reads all tokens before a
    token. The growth is fitted to the samples (least squares) near the one that is expected; a follows from
    all that is done, so a pause of the machine has a weight in proportion to its length.
    """

    def __init__(self, total: float | None, done: float, at: float, *, growth: float = 0.0) -> None:
        """done, at: the first sample; at in seconds. growth: as in `Progress`."""
        self.total, self._expected = total, growth
        self._first = self._last = (done, at)
        self._recent = deque([self._first])
        self._sums = [0.0] * 5  # n*n, n*m, m*m, n*t, m*t over n; m: half the difference of the squares
        self._samples = 0

    def add(self, done: float, at: float) -> None:
        """Take in that `done` units are done at this time."""
        before, then = self._last
        if done > before:
            n, m, t = done - before, (done * done - before * before) / 2, at - then
            for index, value in enumerate((n * n, n * m, m * m, n * t, m * t)):
                self._sums[index] += value / n
            self._samples += 1
            self._last = done, at
            self._recent.append(self._last)
            while len(self._recent) > 2 and at - self._recent[1][1] > _RECENT_S:
                self._recent.popleft()

    @property
    def rate(self) -> float | None:
        """Units per second in the last seconds; None if not known yet."""
        (before, then), (done, at) = self._recent[0], self._recent[-1]
        return (done - before) / (at - then) if at - then >= _LEAST_S else None

    def left(self, now: float) -> float | None:
        """Seconds until the total is done; None if not known yet."""
        (begun, start), (done, at) = self._first, self._last
        if self.total is None or done <= begun or at - start < _LEAST_S:
            return None
        growth = self._growth()

        def cost(units: float) -> float:
            return units + growth * units * units / 2

        unit = (at - start) / (cost(done) - cost(begun))
        return max(0.0, unit * (cost(self.total) - cost(done)) - (now - at))

    def _growth(self) -> float:
        nn, nm, mm, nt, mt = self._sums
        first, slope = nt * mm - mt * nm, nn * mt - nm * nt
        if self._samples < _FITTED_FROM or nn * mm - nm * nm <= 1e-9 * nn * mm:
            return self._expected
        low, high = (bound * self._expected for bound in _GROWTH_BOUNDS)
        return min(high, max(low, slope / first)) if first > 0 else high


class Watch:
    """Follows waits one after another. read: how far the present one is; None while nothing waits."""

    def __init__(
        self, read: Callable[[], Progress | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._clock = read, clock
        self._seen: Progress | None = None
        self._begun = 0.0
        self._estimate: Estimate | None = None

    def look(self) -> Wait | None:
        """How far the present wait is; None while there is none."""
        found, now, seen = self._read(), self._clock(), self._seen
        self._seen = found
        if found is None:
            return None
        is_next = seen is None or (seen.stage, seen.total) != (found.stage, found.total)
        if self._estimate is None or is_next or (seen is not None and found.done < seen.done):
            self._begun = now
            self._estimate = Estimate(found.total, found.done, now, growth=found.growth)
        self._estimate.add(found.done, now)
        return Wait(found, self._estimate.rate, self._estimate.left(now), now - self._begun)


def format_amount(progress: Progress) -> str:
    """What is done of the total: 1.2 GB of 4.92 GB, 133 of 828 tokens."""
    _, done, total, unit, _ = progress
    if unit == "bytes":
        return format_bytes(int(done)) + (f" of {format_bytes(int(total))}" if total is not None else "")
    return f"{int(done):,}" + (f" of {int(total):,} {unit}" if total is not None else f" {unit}")


def format_rate(value: float | None, unit: str = "tokens") -> str:
    """Units per second as text: 7.3 tok/s, 640 MB/s; "" if unknown."""
    if value is None:
        return ""
    if unit == "bytes":
        return f"{format_bytes(int(value))}/s"
    name = "tok" if unit == "tokens" else unit
    return f"{value:,.0f} {name}/s" if value >= 100 else f"{value:.1f} {name}/s"
