"""The engine's speed and memory: in the gauge, next to the transcript, or as a dialog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropechat.tui.controllers.view import SIDE_PANEL
from ropechat.tui.format.stats import gauge_figures

if TYPE_CHECKING:
    from ropechat.chat.live import LiveChat
    from ropechat.tui.commands.dispatch import Handler
    from ropechat.tui.controllers.view import View
    from ropechat.tui.widgets.bars import Part
    from ropechat.tui.widgets.side_panel import SidePanel
    from ropechat.tui.widgets.stats import EngineFacts


class StatsController:
    """Shows the figures of the newest answer, the memory and the model."""

    def __init__(self, chat: LiveChat, view: View, side_panel: SidePanel, panel: EngineFacts) -> None:
        self.view, self.session, self.side_panel, self.panel = view, chat.session, side_panel, panel

    def handlers(self) -> dict[str, Handler]:
        return {"engine.facts": lambda words: self.open()}

    def figures(self, width: int) -> list[Part]:
        """The facts of the newest answer, as the gauge shows them."""
        last = self.session.last
        context, used = self.session.context, self.session.used
        full = context is not None and used is not None and used >= context
        if last is None or not last.answer.node.steps or (full and not self.session.generating):
            return []  # the line says that a question does not fit
        return [(one + "  ", "$quiet") for one in gauge_figures(last.answer, width)]

    def open(self) -> None:
        """Show or hide the panel; a dialog if there is no room for it."""
        from ropechat.tui.screens.facts import FactsScreen

        if self.view.app.size.width >= SIDE_PANEL:
            self.side_panel.show(self.panel, not self.panel.display)
            self.view.refresh_status()
        else:
            self.view.push(FactsScreen(self.session, self.view.keymap))

    def refresh_panel(self) -> None:
        """Update the panel; close it if there is no room for it."""
        if self.panel.display and self.view.app.size.width < SIDE_PANEL:
            self.side_panel.show(self.panel, False)
        if self.panel.display:
            self.panel.redraw()
