"""Where the user writes: several lines, a history, and a clean text whatever is pasted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message
from textual.widgets import TextArea

from ropechat.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual import events

NEWLINE_KEYS = ("ctrl+j", "alt+enter", "shift+enter")


class Composer(TextArea):
    """Enter sends; ctrl+j, alt+enter, shift+enter or a trailing backslash make a new line."""

    class Leave(Message):
        """ctrl+d on an empty line."""

    class Away(Message):
        """Escape, with nothing to stop."""

    @dataclass
    class Page(Message):
        """The transcript is to scroll by a page: -1 or 1."""

        direction: int

    def __init__(self, send: Callable[[str], bool], *, id: str | None = None) -> None:
        super().__init__(
            id=id, compact=True, highlight_cursor_line=False, tab_behavior="focus", placeholder="Message"
        )
        self._send = send  # true if the text was taken; asked at once, for the next key may be on its way
        self.cursor_blink = False  # no timer while idle
        self.sent: list[str] = []
        self._back = 0  # how far back in the history; 0 is the draft
        self._draft = ""

    def set_text(self, text: str) -> None:
        """Show a text, cleaned, with the cursor at its end."""
        self.load_text(clean(text))
        self.move_cursor(self.document.end)

    async def _on_key(self, event: events.Key) -> None:
        key = event.key
        if key == "enter":
            self._take(event)
            self._enter()
        elif key in NEWLINE_KEYS:
            self._take(event)
            self.insert("\n")
        elif key == "up" and self._at_first_row():
            self._take(event)
            self._recall(self._back + 1)
        elif key == "down" and self._back and self._at_last_row():
            self._take(event)
            self._recall(self._back - 1)
        elif key in ("pageup", "pagedown"):
            self._take(event)
            self.post_message(self.Page(-1 if key == "pageup" else 1))
        else:
            await super()._on_key(event)

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        text = clean(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        if result := self._replace_via_keyboard(text, *self.selection):
            self.move_cursor(result.end_location)

    def action_delete_right(self) -> None:
        """Delete to the right; on an empty line: leave."""
        if self.text:
            super().action_delete_right()
        else:
            self.post_message(self.Leave())

    def _remember(self, text: str) -> None:
        """Add a sent text to the history."""
        if not self.sent or self.sent[-1] != text:
            self.sent.append(text)
        self._back = 0

    def _take(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()

    def _enter(self) -> None:
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        if before.endswith("\\"):
            self.replace("\n", (row, column - 1), (row, column))
        elif self.text.strip():
            text = self.text
            if self._send(text):
                self._remember(text)
                self.set_text("")

    def _at_first_row(self) -> bool:
        return (
            self.cursor_at_first_line
            and self.wrapped_document.location_to_offset(self.cursor_location).y == 0
        )

    def _at_last_row(self) -> bool:
        offset = self.wrapped_document.location_to_offset(self.cursor_location)
        return offset.y >= self.wrapped_document.height - 1

    def _recall(self, back: int) -> None:
        if back > len(self.sent):
            return
        if self._back == 0:
            self._draft = self.text
        self._back = back
        self.set_text(self._draft if back == 0 else self.sent[-back])
