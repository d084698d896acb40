"""What the chat and the reader share as programs: themes, changed keys, signals and the exit code."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from textual.app import App

from ropechat.errors import InternalError
from ropechat.tui.commands.keymap import Keymap
from ropechat.tui.format import theme
from ropechat.tui.terminal.screen import leave_on_signals
from ropechat.tui.terminal.textual_compat import CompatApp

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.theme import Theme

    from ropechat.tui.options import ChatOptions


class BaseApp(CompatApp):
    """An app with ropechat's themes and keys."""

    TITLE = "ropechat"
    CSS_PATH = "app.tcss"

    def __init__(self, options: ChatOptions) -> None:
        self.set_reactive(App.theme, theme.choose_theme(os.environ, options.theme))
        super().__init__()
        self.options, self.keymap = options, Keymap(options.keys)
        self._code = InternalError.exit_code

    @cached_property
    def available_themes(self) -> dict[str, Theme]:
        """Textual's themes and ropechat's; made when asked for, since `App.__init__` already needs them."""
        return super().available_themes | {own.name: own for own in theme.OWN_THEMES}

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Values of ropechat's colour names, for themes that lack them."""
        return dict(theme.DEFAULTS)

    def on_mount(self) -> None:
        """Use the changed keys, and end in order when a signal comes."""
        self.set_keymap(self.keymap.changes)
        if not self.is_headless:
            leave_on_signals(self.leave)

    def call_from_thread(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function in the app's thread, from another one; its result, or None if the app has ended."""
        if not self.is_running:
            return None
        try:
            return super().call_from_thread(callback, *args, **kwargs)
        except RuntimeError:
            if self.is_running:
                raise
            return None

    @property
    def outcome(self) -> int:
        """The exit code; that of an internal error unless the app ended normally."""
        return self._code if self.crash is None else InternalError.exit_code

    def leave(self, code: int) -> None:
        """End with an exit code."""
        self._code = code
        self.exit(return_code=code)
