"""A line to type in."""

from __future__ import annotations

from rich.style import Style
from textual.widgets import Input

from ropechat.text import one_line


class Field(Input):
    """Nothing that is typed or pasted acts on the terminal; the cursor shows without colours too."""

    def on_mount(self) -> None:
        """No timer while idle."""
        self.cursor_blink = False

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
