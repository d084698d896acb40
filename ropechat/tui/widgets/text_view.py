"""A long text in rows, its tokens tinted: only the rows on the screen are ever laid out."""

from __future__ import annotations

import math
import re
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING

from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ropechat.tui.render.tint import BY_NAME
from ropechat.tui.widgets.style_cache import StyleCache
from ropechat.util.markdown.spans import StyledSpan
from ropechat.util.text import clean
from ropechat.util.width import cell_width, graphemes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual import events

    from ropechat.inspector.reader_comparison import ReaderComparison
    from ropechat.inspector.text_reader import TextReader

_PLAIN = re.compile(rb"[ -~]*")
FIGURES = ("surprisal", "entropy", "rank")
KL = "KL"
"""The figure of a comparison: bits from the first model to the second."""
_KL_LIMITS = (0.01, 0.05, 0.2, 1.0)
TAB = 4


class TextView(ScrollView, can_focus=True, inherit_bindings=False):
    """The text of a reader. cursor: the index of the selected token, -1 before there is one."""

    class Selected(Message):
        """A token was clicked."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def __init__(self, reader: TextReader, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.reader = reader
        self.figure = FIGURES[0]
        self.comparison: ReaderComparison | None = None
        self.cursor = -1
        self._styles = StyleCache(self)
        self._starts = array("q")  # byte offset of each line
        self._rows = array("q")  # number of the first row of each line, and of all rows
        self._width = 0

    def show(self, reader: TextReader) -> None:
        """Show another text, at the same place."""
        top = self.offset_of(self.scroll_offset.y)
        self.reader, self._width = reader, 0
        self._starts, self._rows = array("q"), array("q")  # there may be no room for the new ones
        self.lay_out(top)
        self.refresh()

    def on_resize(self) -> None:
        self.lay_out()

    def notify_style_update(self) -> None:
        """Forget the styles of the old theme."""
        super().notify_style_update()
        self._styles.forget()

    def lay_out(self, top: int | None = None) -> None:
        """Cut the text into rows, if the width has changed. top: the byte of the first row on the screen."""
        width = self.scrollable_content_region.width
        if width == self._width or width <= 0:
            return
        if top is None:
            top = self.offset_of(self.scroll_offset.y)
        self._width, data = width, self.reader.data
        self._starts, self._rows = array("q"), array("q")
        start = rows = 0
        while start <= len(data):
            end = data.find(b"\n", start)
            end = len(data) if end < 0 else end
            self._starts.append(start)
            self._rows.append(rows)
            rows += len(self._pieces(data[start:end]))
            start = end + 1
        self._rows.append(rows)
        self.virtual_size = Size(width, rows)
        self.scroll_to(y=self.row_of(top), animate=False)

    def _pieces(self, line: bytes) -> list[tuple[int, int]]:
        """(begin, end) in bytes of the rows of a line."""
        width = self._width
        if _PLAIN.fullmatch(line):
            return _words(line, width)
        pieces, begin, column, place = [], 0, 0, 0
        space = after = 0  # the byte after the last space, and the cells before it
        for part, _, cells in _drawn(_decoded(line)):
            if column and column + cells > width:
                if column - after <= width // 2 < after:
                    pieces.append((begin, space))
                    begin, column = space, column - after
                else:
                    pieces.append((begin, place))
                    begin, column = place, 0
                after = 0
            column += cells
            place += len(part.encode("utf-8", "surrogatepass"))
            if part == " ":
                space, after = place, column
        return [*pieces, (begin, place)]

    # --- places ---

    def offset_of(self, row: int) -> int:
        """The byte at which a row begins; 0 before the text is laid out."""
        if not self._starts:
            return 0
        line = max(0, bisect_right(self._rows, row, 0, len(self._starts)) - 1)
        pieces = self._pieces(self._line(line))
        return self._starts[line] + pieces[max(0, min(row - self._rows[line], len(pieces) - 1))][0]

    def row_of(self, offset: int) -> int:
        """The row of a byte; 0 before the text is laid out."""
        if not self._starts:
            return 0
        line = max(0, bisect_right(self._starts, offset) - 1)
        pieces = self._pieces(self._line(line))
        inside = bisect_right([begin for begin, _ in pieces], offset - self._starts[line]) - 1
        return self._rows[line] + max(0, inside)

    def _line(self, line: int) -> bytes:
        last = line + 1 >= len(self._starts)
        return self.reader.data[self._starts[line] : None if last else self._starts[line + 1] - 1]

    def move_to(self, index: int) -> None:
        """Select a token and bring it onto the screen."""
        self.cursor = index
        row, height = self.row_of(self.reader.span(index)[0]), self.size.height
        if not self.scroll_offset.y <= row < self.scroll_offset.y + height:
            self.scroll_to(y=max(0, row - height // 2), animate=False)
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Select the token under the mouse."""
        index = self._token_under(self.scroll_offset.y + event.y, event.x)
        if index > 0:
            self.post_message(self.Selected(index))

    def token_in_row(self, row: int) -> int:
        """The token at the beginning of a row."""
        return self._token_under(row, 0)

    def _token_under(self, row: int, column: int) -> int:
        if not self._starts or row >= self._rows[-1]:
            return -1
        begin = self.offset_of(row)
        end = self.offset_of(row + 1) if row + 1 < self._rows[-1] else len(self.reader.data)
        place = begin
        for part, _, cells in _drawn(_decoded(self.reader.data[begin:end].rstrip(b"\n"))):
            column -= cells
            if column < 0:
                break
            place += len(part.encode("utf-8", "surrogatepass"))
        return self.reader.token_at(min(place, max(begin, end - 1)))

    # --- drawing ---

    def render_line(self, y: int) -> Strip:
        row = y + self.scroll_offset.y
        if not self._starts or row >= self._rows[-1]:
            return Strip.blank(self.size.width, self._styles.style(""))
        line = bisect_right(self._rows, row, 0, len(self._starts)) - 1
        data = self._line(line)
        begin, end = self._pieces(data)[row - self._rows[line]]
        spans = self._spans(self._starts[line] + begin, self._starts[line] + end)
        return Strip(self._styles.segments(spans)).adjust_cell_length(self.size.width, self._styles.style(""))

    def _spans(self, begin: int, end: int) -> list[StyledSpan]:
        """The pieces of a row, one for each token in it."""
        reader, spans = self.reader, []
        index, place = reader.token_at(begin), begin
        while place < end:
            stop = min(end, reader.span(index)[1]) if 0 <= index < len(reader) else end
            if stop > place:
                stop = _at_character(reader.data, stop, end)
                text = "".join(shown for _, shown, _ in _drawn(_decoded(reader.data[place:stop])))
                spans.append(StyledSpan(text, self._look(index)))
                place = stop
            index += 1
        return spans

    def _look(self, index: int) -> str:
        level = 0
        figures = self._figures()
        if 0 <= index < len(figures):
            value = figures[index]
            limits = _KL_LIMITS if self.figure == KL else BY_NAME[self.figure].limits
            level = 0 if math.isnan(value) else bisect_right(limits, value)
        look = f"tint{level}" if level else ""
        return f"{look} cursor".strip() if index == self.cursor and index >= 0 else look

    def _figures(self) -> array[float] | array[int]:
        """The figure of each token that sets its tint; in a comparison, of the computed ones."""
        if self.figure == KL and self.comparison is not None:
            return self.comparison.kl
        if self.figure == "rank":
            return self.reader.rank
        return self.reader.bits if self.figure == "surprisal" else self.reader.entropy

    def redraw(self) -> None:
        """Draw the visible rows again, for new scores."""
        self.refresh(Region(0, 0, self.size.width, self.size.height))


def _words(line: bytes, width: int) -> list[tuple[int, int]]:
    """(begin, end) of the rows of a line of plain ASCII, cut after spaces where there is one."""
    pieces, begin = [], 0
    while len(line) - begin > width:
        space = line.rfind(b" ", begin + width // 2, begin + width)
        end = space + 1 if space >= 0 else begin + width
        pieces.append((begin, end))
        begin = end
    return [*pieces, (begin, len(line))]


def _at_character(data: bytes, place: int, end: int) -> int:
    """The first byte from `place` on that begins a character."""
    while place < end and data[place] & 0xC0 == 0x80:
        place += 1
    return place


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass" if b"\xed" in data else "replace")


def _drawn(text: str) -> Iterator[tuple[str, str, int]]:
    """Each user-perceived character, what is drawn for it, and how many cells that takes."""
    for start, end, _ in graphemes(text):
        shown = " " * TAB if text[start:end] == "\t" else clean(text[start:end])
        yield text[start:end], shown, cell_width(shown)
