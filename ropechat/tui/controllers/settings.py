"""Settings: their dialog, and the display settings that the chat stores."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ropechat.errors import RopechatError
from ropechat.tui.format import theme

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.timer import Timer

    from ropechat.tui.commands.dispatch import Handler
    from ropechat.tui.controllers.view import View
    from ropechat.tui.options import ChatOptions

DELAY_S = 1.0  # seconds from a change until it is written
NOWHERE = "settings are not stored here"


class SettingsController:
    """Writes changed display settings to the file. apply: {name: applies a changed setting}."""

    def __init__(self, view: View, look: ChatOptions) -> None:
        self.view, self._editor = view, look.settings
        self.apply: dict[str, Callable[[object], object]] = {}
        self._known: dict[str, object] = {"inspector": look.inspector, "tint": look.tint, "view": look.view}
        self._known |= {"tips": look.tips}
        self._known |= {"theme": look.theme, "overview": look.overview}
        self._pending: dict[str, object] = {}
        self._timer: Timer | None = None
        self._applying = False

    def handlers(self) -> dict[str, Handler]:
        return {"app.settings": lambda words: self.open()}

    def open(self) -> str:
        """Open the dialog of all settings."""
        from ropechat.tui.screens.settings import SettingsScreen

        if self._editor is None:
            return NOWHERE
        self.write()
        self.view.push(SettingsScreen(self._editor, self.view.keymap, self._changed))
        return ""

    def _changed(self, name: str, value: object) -> None:
        """Apply a setting that was changed in the dialog, if the running chat can."""
        self._known[name] = value
        if name in self.apply:
            self._applying = True
            self.apply[name](value)
            self._applying = False
            self._pending.pop(name, None)

    def remember(self, name: str, value: object) -> None:
        """Keep a choice for the next time."""
        if self._editor is None or self._applying or self._known.get(name) == value:
            return
        self._known[name] = self._pending[name] = value
        if self._timer is None:
            self._timer = self.view.app.set_timer(DELAY_S, self.write)

    def remember_theme(self, name: str) -> None:
        """Keep the theme, unless the setting chooses it already."""
        if theme.choose_theme(os.environ, str(self._known["theme"])) != name:
            self.remember("theme", theme.setting_of(name))

    def write(self) -> None:
        """Write the settings that must be remembered."""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        pending, self._pending = self._pending, {}
        try:
            for name, value in pending.items():
                if self._editor is not None:
                    self._editor.change(name, value)
        except RopechatError as error:
            self.view.hint(str(error))
