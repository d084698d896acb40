"""The bits of an answer, token by token, as rows of characters."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from ropechat.conversation import surprisal_bits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropechat.trace import Step

BARS = "▁▂▃▄▅▆▇█"
MAX_CELLS = 60  # cells of a curve at most
DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))  # of a Braille cell: left and right, from below


def sparkline(steps: Sequence[Step], cells: int = MAX_CELLS) -> str:
    """Bits per token as bars: each the mean of a stretch of the answer; a full bar is 8 bits."""
    cells = min(cells, len(steps))
    bars = []
    for cell in range(cells):
        stretch = steps[cell * len(steps) // cells : (cell + 1) * len(steps) // cells]
        mean = sum(map(surprisal_bits, stretch)) / len(stretch)
        bars.append(BARS[min(len(BARS) - 1, int(mean))])
    return "".join(bars)


def cumulative_curve(
    steps: Sequence[Step], length: int, total: float, cells: int = MAX_CELLS, rows: int = 2
) -> list[str]:
    """The sum of bits so far as a line of Braille dots, `rows` high.

    length, total: the tokens and bits that fill the width and the height, so that two curves can be compared.
    """
    sums = list(accumulate(map(surprisal_bits, steps)))
    cells = min(cells, length)
    grid = [[0] * cells for _ in range(rows)]
    for column in range(2 * cells):
        at = (column + 1) * length // (2 * cells) - 1
        if not 0 <= at < len(sums):
            continue
        level = min(4 * rows - 1, int(sums[at] / (total or 1.0) * (4 * rows - 1) + 0.5))
        grid[rows - 1 - level // 4][column // 2] |= DOTS[column % 2][level % 4]
    return ["".join(chr(0x2800 + dots) if dots else " " for dots in row).rstrip() for row in grid]
