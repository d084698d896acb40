"""Which widget gets a key, and the keys esc and ctrl+c."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import events

from ropechat.tui.widgets.input import typed_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropechat.chat.live import LiveChat
    from ropechat.tui.commands.dispatch import Handler
    from ropechat.tui.controllers.composer import ComposerController
    from ropechat.tui.controllers.hints import HintsController
    from ropechat.tui.controllers.inspector import InspectorController
    from ropechat.tui.controllers.sampling import SamplingController
    from ropechat.tui.controllers.view import View


class KeyboardController:
    """Routes keys. copy: puts a text into the clipboard; leave: ends the program."""

    def __init__(
        self,
        chat: LiveChat,
        view: View,
        writing: ComposerController,
        reading: InspectorController,
        sampling: SamplingController,
        hints: HintsController,
        copy: Callable[[str], None],
        leave: Callable[[], object],
    ) -> None:
        self.chat, self.view, self.session, self.keymap = chat, view, chat.session, view.keymap
        self.writing, self.reading, self.sampling, self.hints = writing, reading, sampling, hints
        self.composer, self.transcript = writing.composer, reading.transcript
        self._copy, self._leave = copy, leave

    def handlers(self) -> dict[str, Handler]:
        return {
            "chat.stop": lambda words: self._stop_or_leave(),
            "answer.stop": self._stop,
            "chat.interrupt": lambda words: self._interrupt(),
            "app.help": lambda words: self._open_help(),
            "read.write": lambda words: self.view.write(),
        }

    def key_for_transcript(self, event: events.Key | events.Paste | events.MouseDown) -> str:
        """The key if the transcript handles it, else "".

        Text focuses the composer, unless letters are commands.
        """
        if isinstance(event, events.MouseDown):
            return ""
        if self._is_text(event):
            self.view.write()
            return ""
        return event.key if isinstance(event, events.Key) and self.view.chat_focus is self.transcript else ""

    def press(self, symbol: str) -> None:
        """Press a key with the mouse. symbol: as a line of keys shows it."""
        if key := self.keymap.of_symbol(symbol):
            self.view.app.post_message(events.Key(key, key if len(key) == 1 else None))

    def _is_text(self, event: events.Key | events.Paste) -> bool:
        """Whether a key is text for the composer, with any focus."""
        fields = self.view.chat_focus in (self.composer, self.reading.find.find_bar)
        if fields or self.sampling.panel_focus not in (None, self.sampling.panel):
            return False
        if isinstance(event, events.Paste):
            return True
        for_dials = self.sampling.panel_focus is not None and event.key in self.sampling.panel.own_keys
        return bool(typed_text(event)) and not self.reading.reading and not for_dials

    def _open_help(self) -> None:
        """List keys and commands, those of this place first."""
        from ropechat.tui.screens.dialog import Dialog
        from ropechat.tui.screens.help import HelpScreen

        screen, place = self.view.app.screen, "composer"
        if isinstance(screen, Dialog):
            place = screen.context
        elif self.view.chat_focus is self.transcript:
            place = "transcript"
        self.view.push(HelpScreen(self.keymap, place))

    def _stop_or_leave(self) -> None:
        """Stop the answer; with nothing to stop, move between composer and transcript."""
        if self.chat.stop() or self.session.generating:
            return
        if self.writing.leave_edit() or self.reading.step_back():
            return
        if self.view.chat_focus is self.composer:
            self.view.give_keys(self.transcript)
            self.view.refresh_status()
        else:
            self.view.write()

    def _stop(self, words: str) -> str:
        stopped = self.chat.stop() or self.session.generating
        return "" if stopped else "nothing to stop: no answer is being written"

    def _interrupt(self) -> None:
        """ctrl+c: stop, copy the selection, clear the draft, or quit when pressed twice."""
        selected = self.composer.selected_text or self.view.app.screen.get_selected_text()
        if self.chat.stop() or self.session.generating:
            return
        if selected:
            self._copy(selected)
        elif self.composer.text and not self.view.covered:
            self.writing.clear_draft()
        elif self.hints.again("chat.interrupt", f"{self.keymap.named('chat.interrupt')} again quits"):
            self._leave()
