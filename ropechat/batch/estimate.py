"""How long the rest of a run takes, while prompts are read and answers of unknown length are written."""

import time
from collections import deque
from collections.abc import Callable

from ropechat.engine.scheduler import RowState, RunState
from ropechat.models.speed import Speed
from ropechat.util.progress import Progress

_LEAST_S = 0.2  # of the first pass, before its rate is known
_WRITING_COST = 4.0  # without measurements, a pass that writes costs as much as reading so many tokens
_LENGTHS = 256  # answers from whose lengths those of others are expected


class RowsEstimate:
    """The time left of a run, from the costs of its forward passes.

    A pass takes a constant for each token that it reads, and another one if it writes: however many rows
    write, the weights are read once. Both are fitted to the passes (least squares, with one more pass that
    has the expected ratio of the two). An answer becomes as long as those that are longer than what is
    written of it, at most its limit; before any has ended, its limit.
    limit: max_tokens of rows without their own. reading: how much of the present prompts is read.
    speed: of the model, as it was measured before.
    """

    def __init__(
        self,
        limit: int,
        window: int,
        reading: Callable[[], Progress | None],
        speed: Speed,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit, self._window, self._reading, self._clock = limit, window, reading, clock
        ratio = speed.prefill / speed.decode if speed.prefill and speed.decode else _WRITING_COST
        self._ratio = ratio
        # Sums of least squares over passes: r*r, r*w, w*w, r*t, w*t, where r is the tokens of prefill, w is 1
        # if the pass decodes, and t is its seconds.
        self._sums = [ratio * ratio, -ratio, 1.0, 0.0, 0.0]
        self._turns = 0
        self._ended: deque[int] = deque(maxlen=_LENGTHS)
        self._seen: tuple[RunState, float, tuple[float, float] | None] | None = None

    def take(self, state: RunState) -> None:
        """Record the state before a forward pass, also before the first one."""
        now, seen = self._clock(), self._seen
        if seen is not None:
            before, at, _ = seen
            read, writes = state.read - before.read, float(state.made > before.made)
            taken = now - at
            for index, value in enumerate((read * read, read * writes, writes, read * taken, writes * taken)):
                self._sums[index] += value
            if writes:
                self._turns += sum(not row.unread for row in before.rows) or 1
        self._ended.extend(state.ended)
        self._seen = state, now, self._costs()

    def left(self, total: int) -> float | None:
        """Seconds until `total` rows are done; None if not known yet."""
        if self._seen is None:
            return None
        state, at, costs = self._seen
        passed = self._clock() - at
        if costs is None:
            reading = self._reading()
            read = 0.0 if reading is None else reading.done - sum(row.read for row in state.rows)
            if read <= 0 or passed < _LEAST_S:
                return None
            costs = passed / read, self._ratio * passed / read
        others = max(0, total - state.started)
        unread = sum(row.unread for row in state.rows)
        unread += others * (state.read + unread) // max(1, state.started)
        return max(0.0, costs[0] * unread + costs[1] * self._passes(state, others) - passed)

    def _costs(self) -> tuple[float, float] | None:
        """Seconds for a token that is read and for a pass that writes; None before the first pass."""
        rr, rw, ww, rt, wt = self._sums
        determinant = rr * ww - rw * rw
        if determinant <= 1e-9 * rr * ww:
            return None
        return max(0.0, rt * ww - wt * rw) / determinant, max(0.0, wt * rr - rt * rw) / determinant

    def _passes(self, state: RunState, others: int) -> float:
        """The passes that write what is left: those of the longest row, or of all rows side by side."""
        expected = [self._length(row) for row in state.rows]
        lengths = [*self._ended, *expected]
        mean = sum(lengths) / len(lengths) if lengths else self._limit
        rests = [length - row.made for length, row in zip(expected, state.rows, strict=True)]
        side_by_side = min(self._window, len(rests) + others) or 1
        passes = max([*rests, (sum(rests) + others * mean) / side_by_side])
        return passes * self._turns / state.made if state.made else passes

    def _length(self, row: RowState) -> float:
        limit = self._limit if row.limit is None else row.limit
        longer = [length for length in self._ended if length > row.made]
        if longer:
            return min(limit, sum(longer) / len(longer))
        return min(limit, 2 * row.made) if self._ended and row.made else limit
