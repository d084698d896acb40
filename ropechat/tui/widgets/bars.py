"""The one-line widgets: title, gauge, footer and the keys of a dialog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from ropechat.util.text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from textual import events

    from ropechat.tui.commands.keymap import Item, Keymap

Part = tuple[str, str]  # text, style
TITLE = 12  # least cells of a title next to its note
JOIN = " · "  # between the parts of a note


class KeyClicked(Message):
    """The mouse pressed a key that a line of keys shows. symbol: as it is shown there."""

    def __init__(self, symbol: str) -> None:
        super().__init__()
        self.symbol = symbol


class Bar(Widget):
    """One line with parts at the left and right; the left is cut first. A message may take several lines."""

    DEFAULT_CSS = "Bar { height: 1; }"
    ALLOW_SELECT = False

    class Chosen(Message):
        """A part that shows a command was clicked. command: its id."""

        def __init__(self, command: str) -> None:
            super().__init__()
            self.command = command

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._left: tuple[Part, ...] = ()
        self._right: tuple[Part, ...] = ()
        self._links: Mapping[str, str] = {}
        self._said = ""
        self._most = 1  # lines of a message

    @property
    def text(self) -> str:
        """The text of the line, or the message."""
        text = self.render().plain
        return " ".join(line.strip() for line in text.split("\n")) if self._said else text

    def show(
        self, left: list[Part], right: list[Part] | None = None, links: Mapping[str, str] | None = None
    ) -> None:
        """Set the line. links: {text of a part: id of the command that a click on it runs}."""
        self._links = links or {}
        parts = tuple(left), tuple(right or ())
        if self._said:
            self._said = ""
            self._resize()
        if parts != (self._left, self._right):
            self._left, self._right = parts
            self.refresh(layout=False)

    def say(self, text: str, most: int) -> None:
        """Show a message instead, on at most `most` lines."""
        if (text, most) != (self._said, self._most):
            self._said, self._most = one_line(text), most
            self._resize()

    def on_resize(self) -> None:
        if self._said:
            self._resize()

    def on_click(self, event: events.Click) -> None:
        """Run the command of a part, or press the key that it shows."""
        if self._said:
            return
        right = list(self._right)
        while right and cells(right) > self.size.width:
            right.pop(0)
        start = self.size.width - cells(right)
        found = part_at(right, event.x - start) if event.x >= start else part_at(self._left, event.x)
        if found is not None and (command := self._links.get(found[0].strip())):
            self.post_message(self.Chosen(command))
        elif symbol := symbol_at(self._left, event.x):
            self.post_message(KeyClicked(symbol))

    def _resize(self) -> None:
        if self._said:
            self.styles.height = len(self._lines())
        else:
            self.styles.clear_rule("height")  # back to that of the style sheet
        self.refresh(layout=True)

    def _lines(self) -> list[Content]:
        width = max(1, self.size.width - 4)
        lines = Content(self._said).wrap(width)
        if len(lines) > self._most:
            lines = [*lines[: self._most - 1], lines[self._most - 1].truncate(width - 1) + Content("…")]
        return [Content("  ") + line for line in lines]

    def render(self) -> Content:
        if self._said:
            return Content.styled("\n".join(line.plain for line in self._lines()), "$warning")
        width = self.size.width
        right = [(one_line(text), style) for text, style in self._right]
        while right and cells(right) > width:
            right.pop(0)
        left = fit([(one_line(text), style) for text, style in self._left], width - cells(right))
        gap = width - cells(left) - cells(right)
        return Content.assemble(*left, " " * max(0, gap), *right)


def part_at(parts: Sequence[Part], x: int) -> Part | None:
    """The part in a column."""
    for text, style in parts:
        if 0 <= x < cell_len(text):
            return text, style
        x -= cell_len(text)
    return None


def symbol_at(parts: Sequence[Part], x: int) -> str:
    """The key in a column of `whole_items`: the one under the mouse, or the first before its label."""
    at = 0
    for index, (text, style) in enumerate(parts):
        inside = 0 <= x - at < cell_len(text)
        if inside and style == "$primary":
            words = text.split(" ")
            ends = [sum(cell_len(word) + 1 for word in words[: n + 1]) for n in range(len(words))]
            return next((word for word, end in zip(words, ends, strict=True) if x - at < end), words[-1])
        if inside:
            before = parts[index - 1] if index and text.strip() else ("", "")
            return before[0].split(" ")[0] if before[1] == "$primary" else ""
        at += cell_len(text)
    return ""


def cells(parts: Sequence[Part]) -> int:
    """The width of parts in cells."""
    return sum(cell_len(text) for text, _ in parts)


def fit(parts: list[Part], width: int) -> list[Part]:
    """The parts cut to `width` cells, with an ellipsis where text is missing."""
    if cells(parts) <= width:
        return parts
    kept: list[Part] = []
    room = width - 2
    for text, style in parts:
        if cell_len(text) > room:
            kept.append((set_cell_size(text, max(0, room)).rstrip() + "…", style))
            break
        kept.append((text, style))
        room -= cell_len(text)
    return kept


def fit_title(title: str, note: str, width: int) -> tuple[str, str]:
    """A title and the note at its right, fitted into `width` cells with two between them.

    The last parts of the note are dropped first. Its first part, why an answer ended, is kept before the
    title's end.
    """
    least = min(cell_len(title), max(TITLE, width // 2))
    while JOIN in note and cell_len(note) > width - least - 2:
        note = note.rpartition(JOIN)[0]
    least = min(least, TITLE)
    note = _shortened(note, width - least - 2)
    return _shortened(title, width - (cell_len(note) + 2 if note else 0)), note


def _shortened(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…" if width > 1 else ""


def draw_meter(share: float, width: int) -> tuple[str, str]:
    """A bar of `width` cells as (filled, rest), in half cells; a share above 0 is visible."""
    halves = round(min(1.0, max(0.0, share)) * width * 2)
    if share > 0:
        halves = max(1, halves)
    filled = "━" * (halves // 2) + "╸" * (halves % 2)
    return filled, "─" * (width - len(filled))


def whole_items(items: list[tuple[str, str]], width: int) -> list[Part]:
    """As many (key, label) pairs as fit; the last two have priority."""

    def cells(pairs: list[tuple[str, str]]) -> int:
        return 1 + sum(cell_len(key) + cell_len(label) + 3 for key, label in pairs)

    items = list(items)
    while len(items) > 1 and cells(items) > width:
        del items[-3 if len(items) > 3 else -1]
    parts: list[Part] = [("  ", "")]
    for index, (key, label) in enumerate(items):
        parts += [("  " if index else "", ""), (key, "$primary"), (f" {label}", "$quiet")]
    return parts


class KeyHints(Static):
    """The keys that work here, as many as fit, or a message."""

    def __init__(self, items: Sequence[Item], keymap: Keymap) -> None:
        super().__init__(id="keys", markup=False)
        self._items, self._keymap = items, keymap
        self._said = ""
        self._shown: list[Part] = []
        self.display = bool(items)

    def on_click(self, event: events.Click) -> None:
        """Press the key under the mouse."""
        if not self._said and (symbol := symbol_at(self._shown, event.x)):
            event.stop()
            self.post_message(KeyClicked(symbol))

    def on_resize(self) -> None:
        if not self._said:
            self.show_keys()

    def say(self, text: str, style: str = "$warning") -> None:
        """Show a message instead of the keys; "" removes it."""
        self._said = one_line(text)
        self.display = bool(text or self._items)
        if text:
            self.update(Content.styled(self._said, style))
        else:
            self.show_keys()

    def show_keys(self, items: Sequence[Item] | None = None) -> None:
        """Show the keys; items: other ones from now on."""
        self._items = self._items if items is None else items
        if self._said:
            return
        pairs = self._keymap.pairs(self._items)
        self._shown = whole_items(pairs, self.size.width + 2)[1:]
        self.update(Content.assemble(*self._shown))
