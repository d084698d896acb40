"""`ropechat inspect -i FILE`: the reader as a program of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.binding import Binding

from ropechat.inspector.reader_thread import ReaderThread
from ropechat.inspector.text_reader import TextReader
from ropechat.tui.commands.keymap import Keymap
from ropechat.tui.format import theme
from ropechat.tui.screens.reader import ReaderScreen
from ropechat.tui.terminal.screen import leave_on_signals
from ropechat.tui.terminal.textual_compat import CompatApp

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.binding import BindingType
    from textual.theme import Theme

    from ropechat.engine.engine import Engine
    from ropechat.tui.options import ChatOptions


class ReaderApp(CompatApp):
    """Holds one reader; closing it ends the program."""

    TITLE = "ropechat"
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c,ctrl+q", "leave", show=False, priority=True)]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (70, "-normal"), (100, "-wide")]  # noqa: RUF012

    def __init__(
        self,
        engine: Engine,
        title: str,
        text: str,
        window: int | None,
        look: ChatOptions,
        against: Callable[[], Engine] | None = None,
        against_name: str = "",
    ) -> None:
        self.set_reactive(App.theme, theme.choose_theme(os.environ, look.theme))
        super().__init__()
        self.outcome = 70  # until the app ends as it should
        reader = TextReader.of(engine, text, window)
        self.thread = ReaderThread(
            engine, reader, lambda error: self.call_from_thread(self.reading.fail, error)
        )
        keymap = Keymap(look.keys)
        spell = engine.tokenizer.token_bytes
        self.reading = ReaderScreen(
            title, reader, self.thread, spell, keymap, Path.cwd(), against, against_name
        )
        self._keymap_changes = keymap.changes

    @property
    def available_themes(self) -> dict[str, Theme]:
        """Textual's themes and ours."""
        return super().available_themes | {own.name: own for own in theme.OWN_THEMES}

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Values of ropechat's colour names, for themes that lack them."""
        return dict(theme.DEFAULTS)

    def on_mount(self) -> None:
        """Open the reader; scoring begins after the first frame."""
        self.set_keymap(self._keymap_changes)
        self.push_screen(self.reading, lambda _: self._end(0))
        if not self.is_headless:
            leave_on_signals(self._end)
        self.call_after_refresh(self.thread.start)

    def action_leave(self) -> None:
        """End the program."""
        self._end(0)

    def _end(self, code: int) -> None:
        self.outcome = code
        self.exit()
