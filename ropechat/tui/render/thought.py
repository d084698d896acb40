"""The rows of an answer that begins with a thought: a line about the thought, its rows, the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ropechat.tui.render.wrap import WrappedText
from ropechat.util.markdown.spans import NOWHERE, StyledSpan, join_styles

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropechat.util.markdown.spans import Rows

    Fold = Literal["folded", "tail", "whole"]
    """What is shown of a thought: nothing, its last rows, all of it."""

FOLDED, UNFOLDED = "▸", "▾"
TAIL = 3  # rows of a thought that are shown while it is written
_BLANK = (StyledSpan(""),)


class DividedText:
    """The thought, in characters 0 to `start` of the source, and the answer behind it.

    line: what the first row says of the thought. make: makes the rows of an answer of its text.
    """

    def __init__(self, thought: str, width: int, fold: Fold, line: str, make: Callable[[str], Rows]) -> None:
        self.fold, self.line = fold, line
        self._thought = WrappedText(thought, width)
        self._answer: Rows | None = None
        self._make = make

    @property
    def start(self) -> int:
        """The place of the answer's first character."""
        return self._thought.length

    @property
    def shown(self) -> int:
        """Rows of the thought that are shown, below its line."""
        if self.fold == "folded":
            return 0
        count = self._thought.count
        while count > 1 and not self._thought.pieces(count - 1)[0].text:
            count -= 1
        return min(count, TAIL) if self.fold == "tail" else count

    @property
    def _first(self) -> int:
        """The first row of the thought that is shown."""
        if self.fold != "tail":
            return 0
        end = self._thought.count
        while end > 1 and not self._thought.pieces(end - 1)[0].text:
            end -= 1
        return max(0, end - TAIL)

    @property
    def _head(self) -> int:
        """The rows above the answer; a blank one separates it from a thought that is shown."""
        shown = self.shown
        return 1 + shown + (1 if shown and self._answer is not None else 0)

    @property
    def count(self) -> int:
        """The number of rows."""
        return self._head + (0 if self._answer is None else self._answer.count)

    def pieces(self, number: int) -> list[StyledSpan] | tuple[StyledSpan, ...]:
        """The spans of one row."""
        if number == 0:
            return [
                StyledSpan(f"{FOLDED if self.fold == 'folded' else UNFOLDED} {self.line}", "quiet", NOWHERE)
            ]
        if number <= self.shown:
            pieces = self._thought.pieces(self._first + number - 1)
            look = "quiet" if self.fold == "tail" else ""
            return [StyledSpan(text, join_styles(look, own), at) for text, own, at in pieces]
        if self._answer is None or number < self._head:
            return _BLANK
        start = self.start
        found = self._answer.pieces(number - self._head)
        return [StyledSpan(text, look, at + start if at >= 0 else at) for text, look, at in found]

    def offset(self, number: int) -> int:
        """Where in the source a row begins."""
        if 0 < number <= self.shown:
            return self._thought.offset(self._first + number - 1)
        if number == 0 and self.fold == "whole":
            return 0
        if self._answer is None or number < self._head:
            return self.start
        return self.start + self._answer.offset(number - self._head)

    def row_at(self, offset: int) -> int:
        """The row that shows a character of the source; the line, for one that is folded away."""
        if self._answer is not None and offset >= self.start:
            return self._head + self._answer.row_at(offset - self.start)
        row = self._thought.row_at(min(offset, self.start)) - self._first
        return 1 + min(row, self.shown - 1) if row >= 0 and self.shown else 0

    def think(self, text: str) -> int:
        """Add to the thought; returns the number of the first row that changed."""
        changed = self._thought.append(text)
        return 1 + changed if self.fold == "whole" else 1 if self.shown else 0

    def append(self, text: str) -> int:
        """Add to the answer; returns the number of the first row that changed."""
        if self._answer is None:
            before = self.count
            self._answer = self._make(text)
            return before - 1
        return self._head + self._answer.append(text)

    def close(self) -> int:
        """Finish the text; returns the number of the first row that changed, or `count`."""
        return self.count if self._answer is None else self._head + self._answer.close()
