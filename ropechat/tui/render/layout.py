"""Blocks of Markdown as rows. A layout grows by whole lines and can show one that is being written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropechat.tui.render.highlight import Highlighter
from ropechat.tui.render.inline import LONGEST, inline, inline_lines, part_end
from ropechat.tui.render.pieces import NOWHERE, Piece, cut
from ropechat.tui.render.table import Table
from ropechat.tui.render.width import cells, chop
from ropechat.tui.render.wrap import wrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropechat.tui.render.outline import Chunk

Line = tuple[str, int]  # text, and where it begins in the source
Row = tuple[Piece, ...]
PARAGRAPH = 40  # lines laid out together: emphasis may go on over them


class Layout:
    """The rows of one chunk; `width` includes what stands before them."""

    def __init__(self, chunk: Chunk, width: int) -> None:
        self.chunk = chunk
        self._before = max(sum(cells(piece.text) for piece in part) for part in (chunk.first, chunk.rest))
        self.width = max(4, width - self._before)
        self._bodies: list[list[Piece]] = []
        for line in chunk.lines:
            self.add(line)

    def add(self, line: Line) -> None:
        """Take in a whole line."""

    def preview(self, line: Line | None) -> list[list[Piece]]:
        """The rows of all lines and one that is not complete."""
        return self._bodies

    def rows(self, line: Line | None = None) -> list[Row]:
        """The rows with all that stands before them, a blank one above where it belongs."""
        chunk = self.chunk
        found: list[Row] = [chunk.gap] if chunk.spaced else []
        for body in self.preview(line) or [[]]:
            before = chunk.first if len(found) == chunk.spaced else chunk.rest
            found.append((*before, *body))
        return found


def wrapped(pieces: Sequence[Piece], width: int) -> list[list[Piece]]:
    """One line of pieces as rows."""
    text = "".join(piece.text for piece in pieces)
    return [
        cut(pieces, start, start + len(text[start:end].rstrip(" "))) for start, end in wrap(text, 0, width)
    ]


class Text(Layout):
    """A paragraph, or the text of a list item."""

    def __init__(self, chunk: Chunk, width: int) -> None:
        self._group: list[Line] = []
        self._long: LongLine | None = None
        super().__init__(chunk, width)

    def add(self, line: Line) -> None:
        """Take in a whole line."""
        self._group.append(line)
        if len(self._group) >= PARAGRAPH or len(line[0]) > LONGEST:
            self._bodies += self._lay(self._group)
            self._group = []

    def preview(self, line: Line | None) -> list[list[Piece]]:
        """All rows: only the last lines are laid out anew."""
        return self._bodies + self._lay(self._group + ([line] if line else []))

    def _lay(self, lines: list[Line]) -> list[list[Piece]]:
        if len(lines) > 1 and not lines[0][0]:
            lines = lines[1:]
        if not lines:
            return []
        *others, (text, at) = lines
        long = len(text) > LONGEST
        found: list[list[Piece]] = []
        for pieces in inline_lines(others if long else lines):
            found += wrapped(pieces, self.width)
        if long:
            if self._long is None or self._long.at != at:
                self._long = LongLine(at, self.width)
            found += self._long.rows(text)
        return found


class LongLine:
    """A line so long that only its end is parsed and wrapped again when it grows."""

    def __init__(self, at: int, width: int) -> None:
        self.at = at
        self._width = width
        self._parsed = 0  # characters
        self._rows: list[list[Piece]] = []
        self._last: list[Piece] = []  # the row that parsed text ends in

    def rows(self, text: str) -> list[list[Piece]]:
        """All rows; the text is the one of the call before, grown."""
        while len(text) - self._parsed > LONGEST:
            end = part_end(text, self._parsed)
            pieces = self._last + inline(text[self._parsed : end], self.at + self._parsed)
            joined = "".join(piece.text for piece in pieces)
            start = wrap(joined, 0, self._width)[-1][0]
            self._rows += wrapped(cut(pieces, 0, start), self._width) if start else []
            self._last = cut(pieces, start, len(joined))
            self._parsed = end
        end_pieces = inline(text[self._parsed :], self.at + self._parsed)
        return self._rows + wrapped(self._last + end_pieces, self._width)


class Heading(Layout):
    """A heading: one look for all of it."""

    def preview(self, line: Line | None) -> list[list[Piece]]:
        """All rows."""
        look = "heading major" if self.chunk.level < 3 else "heading"
        lines = self.chunk.lines + ([line] if line else [])
        return [row for text, at in lines for row in wrapped(inline(text, at, look), self.width)]


class Rule(Layout):
    """A line across."""

    def preview(self, line: Line | None) -> list[list[Piece]]:
        """One row."""
        return [[Piece("─" * self.width, "rule", NOWHERE)]]


class Code(Layout):
    """Code: each line is coloured when it is complete; long ones go on in the next row."""

    def __init__(self, chunk: Chunk, width: int) -> None:
        self._colours = Highlighter(chunk.info)
        self._starts: list[int] = []  # the row at which each line begins
        super().__init__(chunk, width)

    def add(self, line: Line) -> None:
        """Take in a whole line."""
        self._colours.add(*line)

    def preview(self, line: Line | None) -> list[list[Piece]]:
        """All rows; an incomplete line has no colours yet."""
        self._colour()
        if line is None:
            return self._bodies
        return self._bodies + self._chopped([Piece(line[0], "block", line[1])])

    def _colour(self) -> None:
        """Colour new lines; those before them may change, and their rows with them."""
        first = self._colours.read()
        del self._bodies[self._starts[first] if first < len(self._starts) else len(self._bodies) :]
        del self._starts[first:]
        for number in range(first, self._colours.count):
            self._starts.append(len(self._bodies))
            self._bodies += self._chopped(self._colours.line(number))

    def _chopped(self, pieces: Sequence[Piece]) -> list[list[Piece]]:
        text = "".join(piece.text for piece in pieces)
        room = max(2, self.width - 4)
        rows: list[list[Piece]] = []
        for start, end in list(chop(text, room)) or [(0, 0)]:
            lead = Piece("  " if not start else "↳ ", "block" if not start else "block quiet", NOWHERE)
            fill = " " * max(0, self.width - 2 - cells(text[start:end]))
            rows.append([lead, *cut(pieces, start, end), Piece(fill, "block", NOWHERE)])
        return rows


class Tabled(Layout):
    """A table."""

    def __init__(self, chunk: Chunk, width: int) -> None:
        self._table: Table | None = None
        super().__init__(chunk, width)

    def add(self, line: Line) -> None:
        """The header, the delimiters, then one row after another."""
        if self._table is None:
            self._table = Table(line, self.width)
        else:
            self._table.add(line)

    def preview(self, line: Line | None) -> list[list[Piece]]:
        """All rows."""
        return self._table.rows(line) if self._table else []


LAYOUTS: dict[str, type[Layout]] = {
    "text": Text,
    "heading": Heading,
    "rule": Rule,
    "code": Code,
    "table": Tabled,
}


def lay_out(chunk: Chunk, width: int) -> Layout:
    """The layout of a chunk."""
    return LAYOUTS[chunk.kind](chunk, width)
