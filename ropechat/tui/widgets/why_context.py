"""The context of an answer in rows, tinted by what each part of it does to the answer."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ropechat.inspector.why.table import LEAST_SHARE
from ropechat.tui.render.wrap import wrap_spans
from ropechat.tui.widgets.style_cache import StyleCache
from ropechat.util.markdown.spans import Mark, StyledSpan, overlay_marks
from ropechat.util.text import clean, one_line
from ropechat.util.width import fit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events

    from ropechat.inspector.why.context import Context
    from ropechat.inspector.why.result import PartScore, Why

    Span = tuple[int, int]

SHARES = (LEAST_SHARE, 0.2, 0.45, 0.75)
"""Of the largest change, where the tints 1 to 4 begin."""
LEAST_SCALE = 1.0
"""Bits that are at least needed for the strongest tint."""
GUTTER = 2
TAB = "\N{NO-BREAK SPACE}"


class WhyContext(ScrollView, can_focus=False):
    """The texts of a context. Offsets are those of `Why.text`."""

    class Clicked(Message):
        """A character was clicked."""

        def __init__(self, offset: int) -> None:
            super().__init__()
            self.offset = offset

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._styles = StyleCache(self)
        self._given: Context | None = None
        self._width = 0
        self._rows: list[list[StyledSpan]] = []
        self._offsets: list[int] = []  # at which each row begins, or the next row with text
        self._marks: list[Mark] = []
        self._ends: list[int] = []  # of the marks
        self._chosen: Span = (0, 0)

    def show(self, context: Context) -> None:
        """Show a context, if it is not the one that is shown."""
        if context is not self._given:
            self._given, self._width = context, 0
            self._lay_out()

    def tint(self, why: Why | None) -> None:
        """Tint the parts that were not divided, those of the answer's own beginning on their own scale."""
        scales, marks = {True: LEAST_SCALE, False: LEAST_SCALE}, []
        found = [] if why is None else [(one, why.context.is_reply(one.span)) for one in why.finest]
        for one, own in found:
            scales[own] = max(scales[own], one.change)
        for one, own in found:
            if look := look_of(one, scales[own]):
                marks.append(Mark(*one.span, look))
        if marks != self._marks:
            self._marks, self._ends = marks, [mark.end for mark in marks]
            self.refresh()

    def choose(self, span: Span) -> None:
        """Mark a part, and bring its beginning into sight."""
        if span == self._chosen:
            return
        self._chosen = span
        self._bring_into_sight()
        self.refresh()

    def _bring_into_sight(self) -> None:
        start, end = self._chosen
        height, top = self.size.height, self.scroll_offset.y
        first, last = self.row_of(start), self.row_of(max(start, end - 1))
        if end > start and height and not (top <= first and min(last, first + height - 1) < top + height):
            self.scroll_to(y=max(0, first - height // 3), animate=False)

    def row_of(self, offset: int) -> int:
        """The row that shows a character."""
        return max(0, bisect_right(self._offsets, offset) - 1)

    def notify_style_update(self) -> None:
        """Forget the styles of the old theme."""
        super().notify_style_update()
        self._styles.forget()

    def on_resize(self) -> None:
        self._lay_out()
        self._bring_into_sight()  # the list takes more or less of the height

    def on_click(self, event: events.Click) -> None:
        """Say which character is under the mouse."""
        row = event.y + self.scroll_offset.y
        if row < len(self._rows):
            x = event.x - GUTTER
            for text, _, at in self._rows[row]:
                if at >= 0 and x < len(text):
                    self.post_message(self.Clicked(at + max(0, x)))
                    return
                x -= len(text)

    def _lay_out(self) -> None:
        width = self.scrollable_content_region.width - GUTTER
        if width == self._width or width <= 0 or self._given is None:
            return
        self._width, self._rows, self._offsets = width, [], []
        text = self._given.text
        for name, (start, end) in self._given.texts:
            if start == end:
                continue
            if name:
                self._add([StyledSpan(fit(one_line(name), width).rstrip(), "title")], start)
            for line in text[start:end].split("\n"):
                for row in wrap_spans([StyledSpan(_shown(line), "", start)], width) or [[]]:
                    self._add(row, row[0].at if row else start)
                start += len(line) + 1
            self._add([], start)
        self.virtual_size = Size(width + GUTTER, max(0, len(self._rows) - 1))
        self._bring_into_sight()
        self.refresh()

    def _add(self, row: list[StyledSpan], offset: int) -> None:
        self._rows.append(row)
        self._offsets.append(offset)

    def render_line(self, y: int) -> Strip:
        row = y + self.scroll_offset.y
        base = self._styles.style("")
        if row >= len(self._rows) or not self._rows[row]:
            return Strip.blank(self.size.width, base)
        pieces = self._rows[row]
        start = self._offsets[row]
        end = pieces[-1].at + len(pieces[-1].text)
        chosen = Mark(*self._chosen, "strong")
        is_chosen = pieces[0].at >= 0 and chosen.start < end and start < chosen.end
        marks = [*self._in_row(start, end), *([chosen] if is_chosen else [])]
        gutter = StyledSpan("▌ " if is_chosen else "  ", "marker")
        spans = [gutter, *overlay_marks(pieces, marks)]
        return Strip(self._styles.segments(spans)).adjust_cell_length(self.size.width, base)

    def _in_row(self, start: int, end: int) -> Sequence[Mark]:
        first = bisect_right(self._ends, start)
        last = bisect_left(self._marks, end, key=lambda mark: mark.start)
        return self._marks[first:last]


def look_of(one: PartScore, scale: float) -> str:
    """The look of a part; "" for one that changes little."""
    if one.bits is None:
        return ""
    share = one.bits / scale
    if share <= -LEAST_SHARE:
        return "against"
    level = bisect_right(SHARES, share)
    return f"tint{level}" if level else ""


def _shown(line: str) -> str:
    """A line whose characters are visible, one for each of the text."""
    found = clean(line)
    if len(found) != len(line):
        found = "".join(mark if len(mark := clean(one)) == 1 else "\N{REPLACEMENT CHARACTER}" for one in line)
    return found.replace("\t", TAB)
