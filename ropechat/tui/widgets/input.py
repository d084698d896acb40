"""An input line that is safe for the terminal."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from rich.style import Style
from textual.widgets import Input

from ropechat.util.text import clean, one_line

if TYPE_CHECKING:
    from textual import events


def typed_text(event: events.Key) -> str:
    """The text of a key, "" for one that has none.

    Also what Python does not count as printable, such as joiners within an emoji and the wide space.
    """
    text = event.character or ""
    return clean(text) if text and not any(unicodedata.category(one) in ("Cc", "Cs") for one in text) else ""


class SanitizedInput(Input):
    """An Input that cleans what is typed or pasted; its cursor is visible without colours."""

    def on_mount(self) -> None:
        self.cursor_blink = False

    def on_key(self, event: events.Key) -> None:
        """Insert text that Textual would drop because Python does not count it as printable."""
        if not event.is_printable and (text := typed_text(event)):
            event.stop()
            event.prevent_default()
            self.insert_text_at_cursor(text)

    def validate_value(self, value: str) -> str:
        return one_line(value)

    def get_component_rich_style(
        self, *names: str, partial: bool = False, default: Style | None = None
    ) -> Style:
        """The style of a part; Textual ignores `reverse` in style sheets."""
        style = super().get_component_rich_style(*names, partial=partial, default=default)
        plain = self.app.native_ansi_color or self.app.no_color
        return style + Style(reverse=True) if plain and "input--cursor" in names else style


class FindBar(SanitizedInput):
    """The search field."""

    def __init__(self) -> None:
        super().__init__(id="wanted", compact=True, placeholder="Find", select_on_focus=True)
