"""A line to type in, and what of a key is text."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from rich.style import Style
from textual.widgets import Input

from ropechat.util.text import clean, one_line

if TYPE_CHECKING:
    from textual import events


def typed(event: events.Key) -> str:
    """The text of a key, "" for one that has none.

    Also what Python does not count as printable, such as joiners within an emoji and the wide space.
    """
    text = event.character or ""
    return clean(text) if text and not any(unicodedata.category(one) in ("Cc", "Cs") for one in text) else ""


class SanitizedInput(Input):
    """Nothing that is typed or pasted acts on the terminal; the cursor shows without colours too."""

    def on_mount(self) -> None:
        """No timer while idle."""
        self.cursor_blink = False

    def on_key(self, event: events.Key) -> None:
        """Take in what Textual would drop: text that Python does not count as printable."""
        if not event.is_printable and (text := typed(event)):
            event.stop()
            event.prevent_default()
            self.insert_text_at_cursor(text)

    def validate_value(self, value: str) -> str:
        """One line, cleaned."""
        return one_line(value)

    def get_component_rich_style(
        self, *names: str, partial: bool = False, default: Style | None = None
    ) -> Style:
        """The style of a part; Textual leaves out `reverse` of a style sheet."""
        style = super().get_component_rich_style(*names, partial=partial, default=default)
        plain = self.app.native_ansi_color or self.app.no_color
        return style + Style(reverse=True) if plain and "input--cursor" in names else style


class FindBar(SanitizedInput):
    """The text that is looked for."""

    def __init__(self) -> None:
        super().__init__(id="wanted", compact=True, placeholder="Find", select_on_focus=True)
