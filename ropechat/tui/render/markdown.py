"""Markdown as rows while it is being written: only the open block is laid out again."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from ropechat.tui.render.block_layout import BlockLayout, lay_out
from ropechat.util.markdown.blocks import BlockParser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropechat.tui.render.block_layout import StyledRow
    from ropechat.util.markdown.blocks import MarkdownBlock
    from ropechat.util.markdown.spans import StyledSpan


class MarkdownText:
    """The rows of a Markdown text for one width."""

    def __init__(self, text: str, width: int) -> None:
        self.width = width
        self._outline = BlockParser()
        self._layout: BlockLayout | None = None  # of the open block
        self._draft: BlockLayout | None = None  # of a block that has no complete line yet
        self._done: list[StyledRow] = []
        self._open: list[StyledRow] = []
        self._line, self._at = "", 0  # the line that is still being written
        self._offsets: list[int] = []
        self.append(text)

    @property
    def count(self) -> int:
        """The number of rows."""
        return max(1, len(self._done) + len(self._open))

    def pieces(self, number: int) -> Sequence[StyledSpan]:
        """The spans of one row."""
        number -= len(self._done)
        rows = self._done if number < 0 else self._open
        return rows[number] if number < len(rows) else ()

    def append(self, text: str) -> int:
        """Add text; returns the number of the first row that may have changed."""
        before, done = self._open, len(self._done)
        first, *rest = text.split("\n")
        self._line += first
        for part in rest:
            self._take(self._line)
            self._at += len(self._line) + 1
            self._line = part
        self._show()
        now = chain(self._done[done:], self._open)
        same = next((n for n, (old, new) in enumerate(zip(before, now, strict=False)) if old != new), None)
        changed = done + (len(before) if same is None else same)
        changed = min(changed, self.count - 1)
        del self._offsets[changed:]
        return changed

    def close(self) -> int:
        """Finish the text and its last line. Returns the first row that changed, or `count`."""
        return self.append("\n") if self._line else self.count

    def offset(self, number: int) -> int:
        """The place in the source at which a row begins; a row without source has the place before it."""
        self._index()
        return self._offsets[min(number, len(self._offsets) - 1)] if self._offsets else 0

    def row_at(self, offset: int) -> int:
        """The row that shows a character of the source, or the next one before it that does."""
        self._index()
        row = max(0, bisect_right(self._offsets, offset) - 1)
        while row and self._offsets[row - 1] == self._offsets[row] and not self._starts(row, offset):
            row -= 1
        return row

    def _starts(self, number: int, offset: int) -> bool:
        return any(piece.at >= 0 and piece.at <= offset for piece in self.pieces(number))

    def _index(self) -> None:
        last = self._offsets[-1] if self._offsets else 0
        for number in range(len(self._offsets), self.count):
            last = max(last, next((piece.at for piece in self.pieces(number) if piece.at >= 0), last))
            self._offsets.append(last)

    def _take(self, line: str) -> None:
        """Add a complete line."""
        change = self._outline.push(line, self._at)
        if change.opened:
            if change.shortened:
                self._layout = lay_out(change.shortened, self.width)
            self._commit()
            self._layout = self._drafted(change.opened)
            for added in change.opened.lines:
                self._layout.add(added)
            self._layout.block, self._draft = change.opened, None
        elif change.retitled:
            self._layout = lay_out(change.retitled, self.width)
        elif change.extended and self._layout:
            for added in change.extended.lines[-change.added :]:
                self._layout.add(added)
        if self._outline.leaf is None:
            self._commit()

    def _drafted(self, block: MarkdownBlock) -> BlockLayout:
        """The layout, without lines, of a block that begins with the line; the last draft if it fits."""
        draft = self._draft
        if draft is None or replace(draft.block, lines=[]) != replace(block, lines=[]):
            draft = lay_out(replace(block, lines=[]), self.width)
        self._draft = draft
        return draft

    def _commit(self) -> None:
        if self._layout is not None:
            self._done += self._layout.rows()
            self._layout = None

    def _show(self) -> None:
        """Lay out what is open, with the line that is still being written."""
        layout = self._layout
        self._open = []
        if not self._line:
            self._open = layout.rows() if layout else []
            return
        change = self._outline.fork().push(self._line, self._at)
        if change.opened and change.shortened:
            for block in (change.shortened, change.opened):
                self._open += lay_out(block, self.width).rows()
        elif change.opened:
            self._open = layout.rows() if layout else []
            self._open += self._drafted(change.opened).rows(*change.opened.lines)
        elif change.retitled:
            self._open = lay_out(change.retitled, self.width).rows()
        elif layout:
            self._open = layout.rows(change.extended.lines[-1] if change.extended else None)
