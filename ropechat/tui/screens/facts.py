"""The dialog of the engine's figures, for narrow screens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.containers import Vertical

from ropechat.tui.screens.dialog import Dialog, bindings
from ropechat.tui.widgets.stats import EngineFacts

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.timer import Timer

    from ropechat.chat.session import Session
    from ropechat.tui.commands.keymap import Keymap

POLL_INTERVAL_S = 0.5  # seconds between two updates while an answer is written


class FactsScreen(Dialog[None]):
    """The newest answer, the memory and the model."""

    BINDINGS = bindings("facts", "engine.facts")
    heading = "facts"
    items = (("↓ ↑", "scroll"), "sheet.leave")

    def __init__(self, session: Session, keymap: Keymap) -> None:
        super().__init__(keymap)
        self._session = session
        self._facts = EngineFacts(session)
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet whole"):
            yield self._facts
            yield self.key_hints

    def on_mount(self) -> None:
        """Update the figures while an answer is written."""
        self._facts.redraw()
        if self._session.generating:
            self._timer = self.set_interval(POLL_INTERVAL_S, self._look)

    def _look(self) -> None:
        self._facts.redraw()
        if self._timer is not None and not self._session.generating:
            self._timer.stop()
