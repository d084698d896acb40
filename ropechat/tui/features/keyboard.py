"""Which widget gets a key, and the keys esc and ctrl+c."""

from __future__ import annotations

from textual import events

from ropechat.tui.features.reading import ReadingFeature
from ropechat.tui.features.sampling import SamplingFeature
from ropechat.tui.features.terminal import TerminalFeature
from ropechat.tui.features.writing import WritingFeature
from ropechat.tui.ui import ChatUi, Feature, command
from ropechat.tui.widgets.input import typed_text


class KeyboardFeature(Feature):
    """Which widget gets a key, and the keys esc and ctrl+c."""

    def __init__(self, ui: ChatUi) -> None:
        super().__init__(ui)
        self.writing, self.reading, self.sampling = (
            ui[WritingFeature],
            ui[ReadingFeature],
            ui[SamplingFeature],
        )

    def key_for_transcript(self, event: events.Key | events.Paste | events.MouseDown) -> str:
        """The key if the transcript handles it, else "".

        Text focuses the composer, unless letters are commands.
        """
        if isinstance(event, events.MouseDown):
            return ""
        if self._is_text(event):
            self.ui.write()
            return ""
        return event.key if isinstance(event, events.Key) and self.ui.chat_focus is self.transcript else ""

    def press(self, symbol: str) -> None:
        """Press a key with the mouse. symbol: as a line of keys shows it."""
        if key := self.keymap.of_symbol(symbol):
            self.ui.app.post_message(events.Key(key, key if len(key) == 1 else None))

    def _is_text(self, event: events.Key | events.Paste) -> bool:
        """Whether a key is text for the composer, with any focus."""
        fields = self.ui.chat_focus in (self.composer, self.reading.find.find_bar)
        if fields or self.sampling.panel_focus not in (None, self.sampling.panel):
            return False
        if isinstance(event, events.Paste):
            return True
        for_sampling = self.sampling.panel_focus is not None and event.key in self.sampling.panel.own_keys
        return bool(typed_text(event)) and not self.reading.reading and not for_sampling

    @command("read.write")
    def _write(self) -> None:
        self.ui.write()

    @command("app.help")
    def _open_help(self) -> None:
        """List keys and commands, those of this place first."""
        from ropechat.tui.screens.dialog import Dialog
        from ropechat.tui.screens.help import HelpScreen

        screen, place = self.ui.app.screen, "composer"
        if isinstance(screen, Dialog):
            place = screen.context
        elif self.ui.chat_focus is self.transcript:
            place = "transcript"
        self.ui.push(HelpScreen(self.keymap, place))

    @command("chat.stop")
    def _stop_or_leave(self) -> None:
        """Stop the answer; with nothing to stop, move between composer and transcript."""
        if self.chat.stop() or self.session.generating:
            return
        if self.writing.leave_edit() or self.reading.step_back():
            return
        if self.ui.chat_focus is self.composer:
            self.ui.give_keys(self.transcript)
            self.ui.refresh()
        else:
            self.ui.write()

    @command("answer.stop")
    def _stop(self) -> str:
        stopped = self.chat.stop() or self.session.generating
        return "" if stopped else "nothing to stop: no answer is being written"

    @command("chat.interrupt")
    def _interrupt(self) -> None:
        """ctrl+c: stop, copy the selection, clear the draft, or quit when pressed twice."""
        selected = self.composer.selected_text or self.ui.app.screen.get_selected_text()
        if self.chat.stop() or self.session.generating:
            return
        if selected:
            self.ui[TerminalFeature].copy(selected)
        elif self.composer.text and not self.ui.covered:
            self.writing.clear_draft()
        elif self.ui.again("chat.interrupt", f"{self.keymap.named('chat.interrupt')} again quits"):
            self.ui.app.call_later(self.ui.run, "app.quit")
