"""The overview at the left of a wide screen: sections of lines that share its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from textual.content import Content
from textual.geometry import Region
from textual.message import Message
from textual.visual import Visual
from textual.widget import Widget

from ropechat.tui.widgets.bars import Part, cells, fit
from ropechat.util.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual import events
    from textual.strip import Strip

Target = tuple[str, str]  # (kind, id) of what a click opens
EDGE = 1  # cells that stay blank at the right
LEAST = 3  # rows of a cut section: heading, one item, the number of others


@dataclass(frozen=True)
class Line:
    """One row, and what a click on it opens."""

    parts: tuple[Part, ...] = ()
    target: Target | None = None


@dataclass(frozen=True)
class Section:
    """One section. items: what it lists, with texts (str) between; draw: makes a line of an item.

    note: the text next to the title; key: opens the whole list; chosen: the item that must be visible.
    """

    title: str
    note: str
    key: str
    target: Target
    items: Sequence[Any]
    draw: Callable[[Any], Line]
    chosen: int = 0


def shares(wanted: Sequence[int], rows: int) -> list[int]:
    """Divide the rows among the sections: each gets what it needs, or an equal share of the rest."""
    found = [0] * len(wanted)
    for order, place in enumerate(sorted(range(len(wanted)), key=lambda place: wanted[place])):
        found[place] = min(wanted[place], rows // (len(wanted) - order))
        rows -= found[place]
    return found


def lay_out_sections(sections: Sequence[Section], width: int, height: int) -> list[Line]:
    """The rows of all sections; the last ones are left out if the space is too small."""
    while len(sections) > 1 and (LEAST + 1) * len(sections) - 1 > height:
        sections = sections[:-1]
    rows = shares([1 + len(one.items) for one in sections], height - len(sections) + 1)
    found: list[Line] = []
    for section, share in zip(sections, rows, strict=True):
        found += [Line()] if found else []
        found += _section(section, width, share)
    return found[: max(0, height)]


def _section(section: Section, width: int, rows: int) -> list[Line]:
    left = [("  ", ""), (section.title, "bold $primary"), (f" {section.note}", "$quiet")]
    gap = width - EDGE - cells(left) - cells([(section.key, "")])
    heading = Line((*left, (" " * max(1, gap), ""), (section.key, "$quiet")), section.target)
    shown, hidden = section.items, 0
    if len(shown) > rows - 1:
        room = max(0, rows - 2)
        first = max(0, min(section.chosen - room + 1, len(shown) - room))
        shown = shown[first : first + room]
        shown = shown[:-1] if shown and isinstance(shown[-1], str) else shown
        hidden = sum(not isinstance(one, str) for one in section.items)
        hidden -= sum(not isinstance(one, str) for one in shown)
    lines = [
        Line((("  ", ""), (one, "$quiet"))) if isinstance(one, str) else section.draw(one) for one in shown
    ]
    more = [Line((("  ", ""), (f"and {hidden:,} more", "$quiet")), section.target)] if hidden else []
    return [heading, *lines, *more]


class Overview(Widget):
    """Takes no focus; a click on a line opens it."""

    ALLOW_SELECT = False

    @dataclass
    class Chosen(Message):
        """A line was clicked."""

        target: Target

    class Resized(Message):
        """The size changed."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.display = False
        self._lines: list[Line] = []
        self._drawn: dict[Line, Strip] = {}

    @property
    def text(self) -> str:
        return "\n".join("".join(text for text, _ in line.parts).rstrip() for line in self._lines)

    def show(self, sections: Sequence[Section]) -> None:
        """Show these sections; unchanged rows are not drawn again."""
        width, height = self.content_size
        before, self._lines = self._lines, lay_out_sections(sections, width, height)
        self._drawn = {line: self._drawn[line] for line in self._lines if line in self._drawn}
        for y in range(max(len(before), len(self._lines))):
            if before[y : y + 1] != self._lines[y : y + 1]:
                self.refresh(Region(0, y, width, 1))

    def render_line(self, y: int) -> Strip:
        """Draw a row, cut to the width; equal rows are drawn once."""
        line = self._lines[y] if y < len(self._lines) else Line()
        if line not in self._drawn:
            width = self.content_size.width
            row = Content.assemble(*fit([(one_line(text), style) for text, style in line.parts], width))
            self._drawn[line] = Visual.to_strips(self, row, width, 1, self.visual_style, pad=True)[0]
        return self._drawn[line]

    def notify_style_update(self) -> None:
        """Forget the styles of the old theme."""
        super().notify_style_update()
        self._drawn.clear()

    def on_resize(self) -> None:
        """The size changed: lay out the rows again."""
        self._drawn.clear()
        self.post_message(self.Resized())

    def on_click(self, event: events.Click) -> None:
        """Report the clicked line."""
        line = self._lines[event.y] if 0 <= event.y < len(self._lines) else Line()
        if line.target is not None:
            self.post_message(self.Chosen(line.target))
