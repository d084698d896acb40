"""Access to the terminal without Textual: the user's editor, the clipboard, the mouse."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ropechat.tui.terminal import editor
from ropechat.tui.terminal.clipboard import osc52_sequence
from ropechat.util.text import clean

if TYPE_CHECKING:
    from ropechat.tui.commands.dispatch import Handler
    from ropechat.tui.controllers.view import View
    from ropechat.tui.widgets.composer import Composer

MOUSE_MODES = ("1000", "1003", "1015", "1006")  # xterm's clicks, moves, and how they are written


class TerminalController:
    """The commands over the terminal of an app."""

    def __init__(self, view: View, composer: Composer) -> None:
        self.app, self.view, self.composer = view.app, view, composer
        self._mouse = True  # whether the chat receives mouse events

    def handlers(self) -> dict[str, Handler]:
        return {
            "composer.editor": lambda words: self.open_editor(),
            "view.mouse": lambda words: self.toggle_mouse(),
        }

    def open_editor(self) -> None:
        """Write the draft in the user's editor."""
        composer = self.composer
        if not self.app.can_suspend:
            self.view.hint("cannot open an editor here")
            return
        try:
            text = editor.edit(
                self.app, editor.editor_command(os.environ), composer.pastes.unfold(composer.text)
            )
        except editor.EditorError as error:
            self.view.hint(str(error))
        else:
            composer.set_text(text)
            self.view.write()
        self._set_mouse(self._mouse)

    def copy(self, text: str) -> None:
        """Copy through the terminal and report it."""
        self.app.set_clipboard(text)
        sent = osc52_sequence(clean(text), os.environ)
        if sent is None:
            self.view.hint(f"{len(text):,} characters are too many to copy; /export writes a file")
            return
        self.app.write_terminal(sent)
        self.view.hint(f"copied: {len(text):,} characters, if the terminal allows it (OSC 52)")

    def toggle_mouse(self) -> None:
        """Give the mouse to the terminal, which then selects text itself, or take it back."""
        self._set_mouse(not self._mouse)
        key = self.view.keymap.shown("view.mouse")
        taken = (
            "the chat has the mouse" if self._mouse else f"the terminal selects text; {key}: back to the chat"
        )
        self.view.hint(taken)

    def _set_mouse(self, taken: bool) -> None:
        self._mouse = taken
        self.app.write_terminal("".join(f"\x1b[?{mode}{'h' if taken else 'l'}" for mode in MOUSE_MODES))
