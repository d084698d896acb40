"""Text wrapped into rows of cells; appending text wraps only the last row again."""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from ropechat.util.markdown.spans import StyledSpan, cut_spans
from ropechat.util.width import cell_width, graphemes

if TYPE_CHECKING:
    from collections.abc import Sequence

TAB = "    "
_WIDE = "\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7af\uf900-\ufaff\uff00-\uff60\U00020000-\U0003ffff"
_CLINGS = "\u0300-\u036f\u3099\u309a\ufe00-\ufe0f\u200d。、，．：；！？」』）】〉》’”"
_WORD = re.compile(f"[{_WIDE}][{_CLINGS}]* *|[^ {_WIDE}]+ *| +")


class WrappedLine(NamedTuple):
    """Characters `start` to `end` of one line of the text; rows tile their line, blanks included."""

    line: int
    start: int
    end: int


def wrap(text: str, start: int, width: int) -> list[tuple[int, int]]:
    """(start, end) of the rows of one line from `start` on, at most `width` cells; blanks may hang over."""
    rows: list[tuple[int, int]] = []
    row_start, column, has_word = start, 0, False
    for match in _WORD.finditer(text, start):
        word = match[0].rstrip(" ")
        cells = len(word) if word.isascii() else cell_width(word)
        if has_word and column + cells > width:
            rows.append((row_start, match.start()))
            row_start, column = match.start(), 0
        if column + cells > width:
            for first, _, size in graphemes(word):
                if column and column + size > width:
                    rows.append((row_start, match.start() + first))
                    row_start, column = match.start() + first, 0
                column += size
        else:
            column += cells
        column += len(match[0]) - len(word)
        has_word = has_word or bool(word)
    rows.append((row_start, len(text)))
    return rows


def wrap_spans(pieces: Sequence[StyledSpan], width: int) -> list[list[StyledSpan]]:
    """One line of pieces as rows."""
    text = "".join(piece.text for piece in pieces)
    return [
        cut_spans(pieces, start, start + len(text[start:end].rstrip(" ")))
        for start, end in wrap(text, 0, width)
    ]


class WrappedText:
    """Plain text as rows for one width. Offsets count characters, each newline as one."""

    def __init__(self, text: str = "", width: int = 80) -> None:
        self.width = max(1, width)
        self._lines = [""]
        self._line_starts = [0]
        self.rows: list[WrappedLine] = [WrappedLine(0, 0, 0)]
        if text:
            self.append(text)

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.rows)

    def pieces(self, number: int) -> list[StyledSpan]:
        """The span of one row, without the spaces at its end."""
        row = self.rows[number]
        return [StyledSpan(self.row_text(row).rstrip(" "), "", self._line_starts[row.line] + row.start)]

    @property
    def text(self) -> str:
        """The text, with its line breaks."""
        return "\n".join(self._lines)

    @property
    def length(self) -> int:
        """Characters of the text."""
        return self._line_starts[-1] + len(self._lines[-1])

    def append(self, text: str) -> int:
        """Append text; returns the number of the first row that changed."""
        first, *rest = text.split("\n")
        changed = len(self.rows) - 1
        self._lines[-1] += first
        self._wrap_last_line(self.rows.pop().start)
        for line in rest:
            self._line_starts.append(self.length + 1)
            self._lines.append(line)
            self._wrap_last_line(0)
        return changed

    def beginning(self, length: int) -> WrappedText:
        """A copy of the first `length` characters; only its last two rows are wrapped again."""
        number = self.row_at(length)
        line = self.rows[number].line
        if number and self.rows[number - 1].line == line:
            number -= 1  # a word that is cut may fit into the row before
        found = WrappedText(width=self.width)
        found._line_starts = self._line_starts[: line + 1]
        found._lines = [*self._lines[:line], self._lines[line][: length - found._line_starts[-1]]]
        found.rows = self.rows[:number]
        found._wrap_last_line(self.rows[number].start)
        return found

    def close(self) -> int:
        """Finish the text; no row changes."""
        return self.count

    def row_text(self, row: WrappedLine) -> str:
        """The characters of a row."""
        return self._lines[row.line][row.start : row.end]

    def offset(self, number: int) -> int:
        """Where a row begins in the text."""
        row = self.rows[number]
        return self._line_starts[row.line] + row.start

    def row_at(self, offset: int) -> int:
        """The number of the row that shows the character at `offset`."""
        line = bisect_right(self._line_starts, offset) - 1
        return max(0, bisect_right(self.rows, (line, offset - self._line_starts[line], 1 << 60)) - 1)

    def _wrap_last_line(self, start: int) -> None:
        number = len(self._lines) - 1
        self.rows.extend(WrappedLine(number, *span) for span in wrap(self._lines[-1], start, self.width))
