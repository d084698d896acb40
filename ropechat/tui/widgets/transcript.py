"""The conversation: one scroll view that draws only the rows in sight, however long the chat is."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ropechat.tui.render.blocks import ASKED, AnswerBlock
from ropechat.tui.theme import tints

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual import events
    from textual.selection import Selection

    from ropechat.trace import Step
    from ropechat.tui.render.blocks import Block
    from ropechat.tui.render.flow import Row

MEASURE = 100  # cells; longer lines are hard to read
GUTTER = 2
MARGIN = 1
CARET = "▍"


class Transcript(ScrollView, can_focus=True):
    """Blocks of wrapped rows. Follows the newest row; not while the reader has scrolled up."""

    FOCUS_ON_CLICK = False  # a click selects; the keyboard stays with the composer
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "transcript--bar",
        "transcript--asked",
        "transcript--title",
        "transcript--quiet",
        "transcript--error",
        "transcript--caret",
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", show=False),
        Binding("k", "scroll_up", show=False),
        Binding("g", "scroll_home", show=False),
        Binding("G", "scroll_end", show=False),
        Binding("space", "page_down", show=False),
        Binding("b", "page_up", show=False),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.blocks: list[Block] = []
        self.follow = True
        self.tinted = True
        self._tops: list[int] = []
        self._rows = 0
        self._steering = False  # we scroll, not the reader
        self._styles: dict[str, Style] = {}
        self._tints: tuple[Style, ...] = ()

    # --- content ---

    @property
    def measure(self) -> int:
        """Cells of a row of text: gutter and right margin aside."""
        return max(1, min(MEASURE, self.scrollable_content_region.width - GUTTER - MARGIN))

    def add(self, block: Block, at: int | None = None) -> None:
        """Put in a block, at the end unless `at` names a place."""
        block.flow.resize(self.measure)
        index = len(self.blocks) if at is None else at
        self.blocks.insert(index, block)
        self._tops.insert(index, self._tops[index] if index < len(self._tops) else self._rows)
        self._measure_from(index)
        self._grown(0)

    def feed(self, block: AnswerBlock, steps: Iterable[Step]) -> None:
        """Append tokens to a block; cheap at the end of the transcript, where it happens."""
        index = len(self.blocks) - 1 if block is self.blocks[-1] else self.blocks.index(block)
        row = block.add(steps)
        if index + 1 < len(self.blocks):
            self._measure_from(index)
        self._grown(self._tops[index] + block.head + row)

    def touch(self, block: Block) -> None:
        """The heading of a block changed, or nothing more will come to it."""
        if block in self.blocks:
            self._measure_from(self.blocks.index(block))
            self._grown(0)

    def drop_from(self, answer: AnswerBlock) -> None:
        """Take away an answer at the end, and the question above it."""
        index = self.blocks.index(answer)
        if index and self.blocks[index - 1].kind == "user":
            index -= 1
        del self.blocks[index:], self._tops[index:]
        self._grown(0)

    def clear(self) -> None:
        """Take away everything."""
        self.blocks.clear()
        self._tops.clear()
        self.follow = True
        self._grown(0)

    def toggle_tint(self) -> bool:
        """Show or hide surprisal; returns what is shown now."""
        self.tinted = not self.tinted
        self.refresh()
        return self.tinted

    def to_end(self) -> None:
        """Go to the newest row and follow."""
        self.follow = True
        self._steer()

    # --- layout ---

    def _grown(self, first_row: int) -> None:
        """Rows from `first_row` on are new or changed."""
        rows = self._tops[-1] + self.blocks[-1].height if self.blocks else 0
        if rows == self._rows and first_row:
            visible = first_row - round(self.scroll_y)
            if visible < self.size.height:
                self.refresh(Region(0, max(0, visible), self.size.width, self.size.height - max(0, visible)))
        else:
            self._rows = rows
            self._steering = True
            self.virtual_size = Size(self.scrollable_content_region.width, rows)
            self._steering = False
            self.refresh()
        if self.follow:
            self._steer()

    def _steer(self) -> None:
        self._steering = True
        self.scroll_to(y=self.max_scroll_y, animate=False, force=True)
        self._steering = False

    def _measure_from(self, index: int) -> None:
        top = self._tops[index]
        for number in range(index, len(self.blocks)):
            self._tops[number] = top
            top += self.blocks[number].height

    def on_resize(self, _: events.Resize) -> None:
        """Wrap for the new width; the row at the top stays in place, or the end if we follow."""
        if not self.blocks or self.blocks[0].flow.width == self.measure:
            if self.follow:
                self._steer()
            return
        place = self._place(round(self.scroll_y))
        for block in self.blocks:
            block.flow.resize(self.measure)
        self._measure_from(0)
        self._grown(0)
        if not self.follow and place is not None:
            block_index, offset = place
            block = self.blocks[block_index]
            row = 0 if offset < 0 else block.head + block.flow.row_at(offset)
            self._steering = True
            self.scroll_to(y=self._tops[block_index] + row, animate=False, force=True)
            self._steering = False

    def _place(self, y: int) -> tuple[int, int] | None:
        """(block, offset of the first character) at a row; -1 for a heading."""
        found = self._row_at(y)
        if found is None:
            return None
        index, row = found
        return index, -1 if row is None else self.blocks[index].flow.offset(row)

    def _row_at(self, y: int) -> tuple[int, Row | None] | None:
        """The block at a row, and the row of its text; None for its heading or the blank after it."""
        index = bisect_right(self._tops, y) - 1
        if index < 0 or y >= self._rows:
            return None
        block = self.blocks[index]
        number = y - self._tops[index] - block.head
        return index, block.flow.rows[number] if 0 <= number < block.body else None

    # --- scrolling ---

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Leave following when the reader goes up; take it up again at the end."""
        super().watch_scroll_y(old_value, new_value)
        if self._steering or round(old_value) == round(new_value):
            return
        if round(new_value) >= self.max_scroll_y:
            self.follow = self.follow or new_value > old_value
        elif new_value < old_value:
            self.follow = False

    def _on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        if self.max_scroll_y > 0:
            self.follow = False  # at once: the scrolling itself is animated
        super()._on_mouse_scroll_up(event)

    def action_page_up(self) -> None:
        """One page back."""
        self.follow = self.follow and self.max_scroll_y == 0
        self.scroll_page_up(animate=False)

    def action_page_down(self) -> None:
        """One page on."""
        self.scroll_page_down(animate=False)

    # --- drawing ---

    def notify_style_update(self) -> None:
        """Forget the styles of the old theme."""
        super().notify_style_update()
        self._styles.clear()

    def render_line(self, y: int) -> Strip:
        """One row of the screen."""
        y += round(self.scroll_y)
        segments = self._segments(y)
        if (selection := self.text_selection) is not None and (span := selection.get_span(y)) is not None:
            style = self.screen.get_component_rich_style("screen--selection")
            segments = _stylize(segments, max(GUTTER, span[0]), span[1], style)
        return Strip(segments).adjust_cell_length(self.size.width, self._style("")).apply_offsets(0, y)

    def _segments(self, y: int) -> list[Segment]:
        found = self._row_at(y)
        if found is None:
            return []
        index, row = found
        block = self.blocks[index]
        if row is not None:
            return self._text_row(block, row)
        return self._heading(block) if block.head and y == self._tops[index] else []

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text: wrapped rows joined again, without gutter."""
        first, last = selection.start, selection.end
        top, bottom = first.y if first else 0, last.y if last else self._rows - 1
        parts: list[str] = []
        for y in range(top, min(bottom, self._rows - 1) + 1):
            found = self._row_at(y)
            if found is None or found[1] is None:
                parts.append("\n")
                continue
            block, row = self.blocks[found[0]], found[1]
            text = block.flow.row_text(row)
            end = max(0, last.x - GUTTER) if last and y == bottom else len(text)
            begin = max(0, first.x - GUTTER) if first and y == top else 0
            following = self._row_at(y + 1)
            wrapped = following is not None and following[1] is not None and following[1].line == row.line
            parts.append(text[begin:end] + ("" if wrapped or y == bottom else "\n"))
        return "".join(parts), "\n"

    def _text_row(self, block: Block, row: Row) -> list[Segment]:
        body = self._style({"user": "asked", "notice": "quiet", "error": "error"}.get(block.kind, ""))
        looks = {ASKED: self._style("asked")}
        if self.tinted:
            looks |= {level: body + tint for level, tint in enumerate(self._tints) if level}
        segments = [self._gutter(block, row)]
        segments += [Segment(text, looks.get(level, body)) for text, level in block.spans(row)]
        if block.live and row is block.flow.rows[-1]:
            segments.append(Segment(CARET, self._style("caret")))
        return segments

    def _heading(self, block: Block) -> list[Segment]:
        note = block.note
        room = self.measure - cell_len(note) - (2 if note else 0)
        if room < min(cell_len(block.title), 12):
            note, room = "", self.measure
        title = block.title if cell_len(block.title) <= room else set_cell_size(block.title, room - 1) + "…"
        gap = self.measure - cell_len(title) - cell_len(note)
        return [
            self._gutter(block),
            Segment(title, self._style("title")),
            Segment(" " * max(0, gap), self._style("")),
            Segment(note, self._style("quiet")),
        ]

    def _gutter(self, block: Block, row: Row | None = None) -> Segment:
        """The bar at the left of what the user wrote."""
        lead = block.lead if isinstance(block, AnswerBlock) else 0
        by_user = block.kind == "user" or (row is not None and block.flow.offset(row) < lead)
        return Segment("▌ " if by_user else "  ", self._style("bar"))

    def _style(self, part: str) -> Style:
        if not self._styles:
            self._styles = {"": self.rich_style}
            for name in self.COMPONENT_CLASSES:
                self._styles[name.removeprefix("transcript--")] = self.get_component_rich_style(name)
            names = tints(self.app.current_theme.dark, self.app.native_ansi_color)
            self._tints = tuple(Style.parse(name) if name else Style.null() for name in names)
        return self._styles[part]


def _stylize(segments: list[Segment], start: int, end: int, style: Style) -> list[Segment]:
    """The segments with a style laid over characters `start` to `end`; an end of -1 is the end of the row."""
    marked: list[Segment] = []
    place = 0
    for text, own, _ in segments:
        stop = len(text) if end < 0 else min(max(0, end - place), len(text))
        begin = min(max(0, start - place), stop)
        pieces = ((text[:begin], own), (text[begin:stop], (own or style) + style), (text[stop:], own))
        marked += [Segment(piece, look) for piece, look in pieces if piece]
        place += len(text)
    return marked
