"""The blocks of the transcript below each other: the position of each row, for any width and view."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropechat.tui.render.blocks import Block, View

MAX_LAID_OUT = 120  # blocks; those far out of sight are dropped when there are more


class RowPosition(NamedTuple):
    """A row: its block, and the row of the text; None for the heading or the blank row after it."""

    block: int
    row: int | None


class TextPosition(NamedTuple):
    """A character of the transcript; an offset of -1 is the block's heading."""

    block: int
    offset: int


class TranscriptLayout:
    """Blocks in order. Heights of blocks that were never in sight are estimates until `settle`."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.tops: list[int] = []
        self.rows = 0
        self.width = 80
        self.view: View = "tokens"

    def insert(self, block: Block, at: int | None = None) -> None:
        """Insert a block, at the end unless `at` is given."""
        block.shape(self.view, self.width)
        index = len(self.blocks) if at is None else at
        self.blocks.insert(index, block)
        self.tops.insert(index, self.tops[index] if index < len(self.tops) else self.rows)
        self.measure(index)

    def remove_from(self, index: int) -> None:
        """Remove a block and all after it."""
        del self.blocks[index:], self.tops[index:]
        self.measure(len(self.blocks))

    def measure(self, index: int) -> None:
        """Update the positions from a block on whose height changed."""
        top = self.tops[index - 1] + self.blocks[index - 1].height if index else 0
        for number in range(index, len(self.blocks)):
            self.tops[number] = top
            top += self.blocks[number].height
        self.rows = top

    def changes(self, blocks: Sequence[Block], tops: Sequence[int]) -> tuple[list[int], int]:
        """(rows, first): rows that differ from these blocks at these tops; from row `first` on all do."""
        single: list[int] = []
        end = 0
        for new, old, top, before in zip(self.blocks, blocks, self.tops, tops, strict=False):
            if top != before or (new.kind, new.head) != (old.kind, old.head):
                return single, min(top, before)
            if (new.title, new.note) != (old.title, old.note):
                single.append(top)
            if new.foot != old.foot:
                return single, top + new.head
            same = new.body if new is old else new.alike(old)
            end = top + new.head + same
            if same < max(new.body, old.body):
                return single, end
            end += 1
        return single, end

    def reshape(self, view: View, width: int) -> None:
        """Set view and width of all blocks."""
        self.view, self.width = view, width
        for block in self.blocks:
            block.shape(view, width)
        self.measure(0)

    def spot(self, y: int) -> RowPosition | None:
        """The block and row of text at a row of the transcript."""
        index = bisect_right(self.tops, y) - 1
        if index < 0 or y >= self.rows:
            return None
        number = y - self.tops[index] - self.blocks[index].head
        return RowPosition(index, number if 0 <= number < self.blocks[index].body else None)

    def place(self, y: int) -> TextPosition | None:
        """The character at which a row begins."""
        spot = self.spot(y)
        if spot is None:
            return None
        block = self.blocks[spot.block]
        if spot.row is None:
            return TextPosition(spot.block, -1 if y == self.tops[spot.block] else block.length)
        return TextPosition(spot.block, block.rows.offset(spot.row))

    def y_of(self, place: TextPosition) -> int:
        """The row that shows a character; its block is laid out for that."""
        block = self.blocks[place.block]
        if not block.laid_out:
            _ = block.rows
            self.measure(place.block)
        row = 0 if place.offset < 0 else block.head + min(block.rows.row_at(place.offset), block.body - 1)
        return self.tops[place.block] + row

    def settle_end(self, height: int) -> None:
        """Lay out the blocks of the last `height` rows."""
        self._settle(range(len(self.blocks) - 1, -1, -1), height)

    def settle(self, y: int, height: int) -> int:
        """Lay out the blocks of `height` rows from `y` on, and of those above that are in sight where fewer
        rows are left; returns the new position of row `y`."""
        for _ in range(8):
            spot = self.spot(max(0, min(y, self.rows - height)))
            if spot is None:
                return y
            last = bisect_right(self.tops, y + height - 1)
            seen = range(spot.block, max(last, spot.block + 1))
            if all(self.blocks[number].laid_out for number in seen):
                return y
            anchor = next((n for n in seen if self.blocks[n].laid_out), spot.block)
            inner = y - self.tops[anchor]
            self._settle(seen, height + max(0, y - self.tops[spot.block]))
            y = max(0, self.tops[anchor] + inner)
        return y

    def _settle(self, order: range, height: int) -> None:
        lowest = len(self.blocks)
        covered = 0
        index = order.start
        for index in order:
            block = self.blocks[index]
            if not block.laid_out:
                _ = block.rows
                lowest = min(lowest, index)
            covered += block.height
            if covered >= height:
                break
        if lowest < len(self.blocks):
            self.measure(lowest)
            self._forget(min(order.start, index), max(order.start, index))

    def _forget(self, first: int, last: int) -> None:
        """Drop the rows of blocks far out of sight, once there are many."""
        if sum(block.laid_out for block in self.blocks) > MAX_LAID_OUT:
            for number, block in enumerate(self.blocks):
                if (
                    block.laid_out
                    and not block.live
                    and not first - MAX_LAID_OUT // 4 <= number <= last + MAX_LAID_OUT // 4
                ):
                    block.forget()
