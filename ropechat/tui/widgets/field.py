"""A line to type in."""

from __future__ import annotations

from textual.widgets import Input

from ropechat.text import one_line


class Field(Input):
    """An input of one line, clean whatever is pasted into it."""

    def __init__(
        self, placeholder: str, *, compact: bool = False, id: str | None = None, classes: str | None = None
    ) -> None:
        super().__init__(placeholder=placeholder, compact=compact, id=id, classes=classes)
        self.cursor_blink = False  # no timer while idle

    def validate_value(self, value: str) -> str:
        """Nothing that is typed or pasted acts on the terminal."""
        return one_line(value)
