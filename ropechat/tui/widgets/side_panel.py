"""The panel next to the transcript; below it on a narrow screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.containers import Vertical

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.widget import Widget


class SidePanel(Vertical):
    """Several widgets below each other; hidden while none of them is shown."""

    def __init__(self, *held: Widget, id: str | None = None) -> None:
        super().__init__(id=id)
        self._held = held
        for widget in (self, *held):
            widget.display = False

    def compose(self) -> ComposeResult:
        yield from self._held

    def show(self, widget: Widget, shown: bool) -> None:
        """Show or hide one of them."""
        widget.display = shown
        self.display = any(one.display for one in self._held)
