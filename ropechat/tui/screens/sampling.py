"""The dialog of the sampler's settings, for narrow screens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.containers import Vertical

from ropechat.tui.screens.dialog import Dialog
from ropechat.tui.widgets.sampling_panel import ITEMS, SamplingPanel

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from ropechat.chat.session import Session
    from ropechat.tui.commands.keymap import Keymap
    from ropechat.tui.render.cursor import TokenPlace
    from ropechat.tui.vocabularies import Vocabularies


class SamplingScreen(Dialog[None]):
    """The settings, tried on one token."""

    context = "dials"
    heading = "sampling"

    def __init__(
        self, token: TokenPlace | None, session: Session, keymap: Keymap, words: Vocabularies
    ) -> None:
        super().__init__(keymap)
        self._token = token
        self._panel = SamplingPanel(session, keymap, words, ITEMS)

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet"):
            yield self._panel

    def on_mount(self) -> None:
        self._panel.begin(self._token)
        self._panel.focus()

    def on_sampling_panel_closed(self) -> None:
        self.dismiss(None)
