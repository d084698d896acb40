"""Blocks of Markdown as rows. A layout grows by whole lines and can show one that is being written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropechat.tui.render.highlight import Highlighter
from ropechat.tui.render.table import SourceLine, Table
from ropechat.tui.render.wrap import wrap, wrap_spans
from ropechat.util.markdown.inline import MAX_PARSED, find_part_end, parse_inline, parse_inline_lines
from ropechat.util.markdown.spans import NOWHERE, StyledSpan, cut_spans
from ropechat.util.text import one_line
from ropechat.util.width import cell_width, chop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropechat.util.markdown.blocks import MarkdownBlock

StyledRow = tuple[StyledSpan, ...]
COPY_CODE = "⧉ copy"  # in the row above code
MAX_GROUP_LINES = 40  # lines laid out together: emphasis may go on over them


class BlockLayout:
    """The rows of one block; `width` includes the spans before them, such as bullets."""

    def __init__(self, block: MarkdownBlock, width: int) -> None:
        self.block = block
        self._before = max(
            sum(cell_width(piece.text) for piece in part) for part in (block.first, block.rest)
        )
        self.width = max(4, width - self._before)
        self._bodies: list[list[StyledSpan]] = []
        for line in block.lines:
            self.add(line)

    def add(self, line: SourceLine) -> None:
        """Add a complete line."""

    def preview(self, line: SourceLine | None) -> list[list[StyledSpan]]:
        """The rows of all lines and one that is not complete."""
        return self._bodies

    def rows(self, line: SourceLine | None = None) -> list[StyledRow]:
        """The rows with the spans before them, and a blank row above if the block is spaced."""
        block = self.block
        found: list[StyledRow] = [block.gap] if block.spaced else []
        for body in self.preview(line) or [[]]:
            before = block.first if len(found) == block.spaced else block.rest
            found.append((*before, *body))
        return found


class ParagraphLayout(BlockLayout):
    """A paragraph, or the text of a list item."""

    def __init__(self, block: MarkdownBlock, width: int) -> None:
        self._group: list[SourceLine] = []
        self._long: LongLine | None = None
        super().__init__(block, width)

    def add(self, line: SourceLine) -> None:
        """Add a complete line."""
        self._group.append(line)
        if len(self._group) >= MAX_GROUP_LINES or len(line[0]) > MAX_PARSED:
            self._bodies += self._lay(self._group)
            self._group = []

    def preview(self, line: SourceLine | None) -> list[list[StyledSpan]]:
        """All rows; only the last group of lines is laid out again."""
        return self._bodies + self._lay(self._group + ([line] if line else []))

    def _lay(self, lines: list[SourceLine]) -> list[list[StyledSpan]]:
        if len(lines) > 1 and not lines[0][0]:
            lines = lines[1:]
        if not lines:
            return []
        *others, (text, at) = lines
        long = len(text) > MAX_PARSED
        found: list[list[StyledSpan]] = []
        for pieces in parse_inline_lines(others if long else lines):
            found += wrap_spans(pieces, self.width)
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
        self._rows: list[list[StyledSpan]] = []
        self._last: list[StyledSpan] = []  # the row that parsed text ends in

    def rows(self, text: str) -> list[list[StyledSpan]]:
        """All rows; the text is the one of the call before, grown."""
        while len(text) - self._parsed > MAX_PARSED:
            end = find_part_end(text, self._parsed)
            pieces = self._last + parse_inline(text[self._parsed : end], self.at + self._parsed)
            joined = "".join(piece.text for piece in pieces)
            start = wrap(joined, 0, self._width)[-1][0]
            self._rows += wrap_spans(cut_spans(pieces, 0, start), self._width) if start else []
            self._last = cut_spans(pieces, start, len(joined))
            self._parsed = end
        end_pieces = parse_inline(text[self._parsed :], self.at + self._parsed)
        return self._rows + wrap_spans(self._last + end_pieces, self._width)


class HeadingLayout(BlockLayout):
    """A heading, in one style."""

    def preview(self, line: SourceLine | None) -> list[list[StyledSpan]]:
        """The rows of all lines and one that is not complete."""
        look = ("heading major first", "heading major", "heading")[min(self.block.level, 3) - 1]
        lines = self.block.lines + ([line] if line else [])
        return [row for text, at in lines for row in wrap_spans(parse_inline(text, at, look), self.width)]


class RuleLayout(BlockLayout):
    """A horizontal rule."""

    def preview(self, line: SourceLine | None) -> list[list[StyledSpan]]:
        """The row of the rule."""
        return [[StyledSpan("─" * self.width, "rule", NOWHERE)]]


class CodeLayout(BlockLayout):
    """Code: each line is coloured when it is complete; long ones go on in the next row."""

    def __init__(self, block: MarkdownBlock, width: int) -> None:
        self._colours = Highlighter(block.info)
        self._starts: list[int] = []  # the row at which each line begins
        super().__init__(block, width)

    def add(self, line: SourceLine) -> None:
        """Add a complete line."""
        self._colours.add(*line)

    def preview(self, line: SourceLine | None) -> list[list[StyledSpan]]:
        """All rows; an incomplete line has no colours yet."""
        self._colour()
        rows = [self._label, *self._bodies] if self.block.fence else self._bodies
        return rows if line is None else rows + self._chopped([StyledSpan(line[0], "block", line[1])])

    @property
    def _label(self) -> list[StyledSpan]:
        """The row above fenced code: its language, and where a click copies it."""
        language = one_line(self.block.info.partition(" ")[0])
        words = f"{language} {COPY_CODE}" if cell_width(language) + len(COPY_CODE) + 4 <= self.width else ""
        fill = " " * max(0, self.width - 2 - cell_width(words))
        return [StyledSpan(f"{fill}{words}  "[-self.width :], "block quiet", NOWHERE)]

    def _colour(self) -> None:
        """Colour new lines; those before them may change, and their rows with them."""
        first = self._colours.read()
        del self._bodies[self._starts[first] if first < len(self._starts) else len(self._bodies) :]
        del self._starts[first:]
        for number in range(first, self._colours.count):
            self._starts.append(len(self._bodies))
            self._bodies += self._chopped(self._colours.line(number))

    def _chopped(self, pieces: Sequence[StyledSpan]) -> list[list[StyledSpan]]:
        text = "".join(piece.text for piece in pieces)
        room = max(2, self.width - 4)
        rows: list[list[StyledSpan]] = []
        for start, end in list(chop(text, room)) or [(0, 0)]:
            lead = StyledSpan("  " if not start else "↳ ", "block" if not start else "block quiet", NOWHERE)
            fill = " " * max(0, self.width - 2 - cell_width(text[start:end]))
            rows.append([lead, *cut_spans(pieces, start, end), StyledSpan(fill, "block", NOWHERE)])
        return rows


class TableLayout(BlockLayout):
    """A table, one line of source for each row."""

    def __init__(self, block: MarkdownBlock, width: int) -> None:
        self._table: Table | None = None
        super().__init__(block, width)

    def add(self, line: SourceLine) -> None:
        """Add the header, the delimiters or a row."""
        if self._table is None:
            self._table = Table(line, self.width)
        else:
            self._table.add(line)

    def preview(self, line: SourceLine | None) -> list[list[StyledSpan]]:
        """The rows of all lines and one that is not complete."""
        return self._table.rows(line) if self._table else []


LAYOUTS: dict[str, type[BlockLayout]] = {
    "text": ParagraphLayout,
    "heading": HeadingLayout,
    "rule": RuleLayout,
    "code": CodeLayout,
    "table": TableLayout,
}


def lay_out(block: MarkdownBlock, width: int) -> BlockLayout:
    """The layout of a block."""
    return LAYOUTS[block.kind](block, width)
