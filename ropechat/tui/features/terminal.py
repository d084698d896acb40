"""Access to the terminal without Textual: the user's editor, the clipboard, the mouse."""

from __future__ import annotations

import os

from ropechat.tui.terminal import editor
from ropechat.tui.terminal.clipboard import osc52_sequence
from ropechat.tui.ui import ChatUi, Feature, command
from ropechat.util.text import clean

MOUSE_MODES = ("1000", "1003", "1015", "1006")  # xterm's clicks, moves, and how they are written


class TerminalFeature(Feature):
    """Access to the terminal without Textual: the user's editor, the clipboard, the mouse."""

    def __init__(self, ui: ChatUi) -> None:
        super().__init__(ui)
        self._mouse = True  # whether the chat receives mouse events

    @command("composer.editor")
    def open_editor(self) -> None:
        """Write the draft in the user's editor."""
        composer = self.composer
        if not self.ui.app.can_suspend:
            self.ui.hint("cannot open an editor here")
            return
        try:
            text = editor.edit(
                self.ui.app, editor.editor_command(os.environ), composer.pastes.unfold(composer.text)
            )
        except editor.EditorError as error:
            self.ui.hint(str(error))
        else:
            composer.set_text(text)
            self.ui.write()
        self._set_mouse(self._mouse)

    def copy(self, text: str) -> None:
        """Copy through the terminal and report it."""
        self.ui.app.set_clipboard(text)
        sent = osc52_sequence(clean(text), os.environ)
        if sent is None:
            self.ui.hint(f"{len(text):,} characters are too many to copy; /export writes a file")
            return
        self.ui.app.write_terminal(sent)
        self.ui.hint(f"copied: {len(text):,} characters, if the terminal allows it (OSC 52)")

    @command("view.mouse")
    def toggle_mouse(self) -> None:
        """Give the mouse to the terminal, which then selects text itself, or take it back."""
        self._set_mouse(not self._mouse)
        key = self.keymap.shown("view.mouse")
        taken = (
            "the chat has the mouse" if self._mouse else f"the terminal selects text; {key}: back to the chat"
        )
        self.ui.hint(taken)

    def _set_mouse(self, taken: bool) -> None:
        self._mouse = taken
        self.ui.app.write_terminal("".join(f"\x1b[?{mode}{'h' if taken else 'l'}" for mode in MOUSE_MODES))
