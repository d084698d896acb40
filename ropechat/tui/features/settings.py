"""Settings: their dialog, and the display settings that the chat stores."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ropechat.errors import RopechatError
from ropechat.tui.format import theme
from ropechat.tui.ui import ChatUi, Feature, command, setting

if TYPE_CHECKING:
    from textual.timer import Timer


DELAY_S = 1.0  # seconds from a change until it is written
NOWHERE = "settings are not stored here"


class SettingsFeature(Feature):
    """Writes changed display settings to the file."""

    def __init__(self, ui: ChatUi) -> None:
        super().__init__(ui)
        options = ui.options
        self._file = options.settings
        self._known: dict[str, object] = {
            name: getattr(options, name)
            for name in ("inspector", "tint", "view", "tips", "theme", "overview")
        }
        self._pending: dict[str, object] = {}
        self._timer: Timer | None = None
        self._applying = False

    @command("app.settings")
    def open(self) -> str:
        """Open the dialog of all settings."""
        from ropechat.tui.screens.settings import SettingsScreen

        if self._file is None:
            return NOWHERE
        self.write()
        self.ui.push(SettingsScreen(self._file, self.keymap, self._changed))
        return ""

    @setting("theme")
    def _use_theme(self, name: str) -> None:
        self.ui.app.theme = theme.choose_theme(os.environ, name)

    def _changed(self, name: str, value: object) -> None:
        """Apply a setting that was changed in the dialog, if the running chat can."""
        self._known[name] = value
        if name in self.ui.settings:
            self._applying = True
            self.ui.settings[name](value)
            self._applying = False
            self._pending.pop(name, None)

    def remember(self, name: str, value: object) -> None:
        """Keep a choice for the next time."""
        if self._file is None or self._applying or self._known.get(name) == value:
            return
        self._known[name] = self._pending[name] = value
        if self._timer is None:
            self._timer = self.ui.app.set_timer(DELAY_S, self.write)

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
                if self._file is not None:
                    self._file.change(name, value)
        except RopechatError as error:
            self.ui.hint(str(error))
