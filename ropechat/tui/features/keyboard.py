"""Which widget gets a key, and the keys esc and ctrl+c."""

from __future__ import annotations

import time

from textual import events

from ropechat.chat import events as ev
from ropechat.tui.features.reading import ReadingFeature
from ropechat.tui.features.sampling import SamplingFeature
from ropechat.tui.features.terminal import TerminalFeature
from ropechat.tui.features.writing import WritingFeature
from ropechat.tui.ui import ChatUi, Feature, command, event
from ropechat.tui.widgets.input import typed_text

JUST_ENDED_S = 0.5  # seconds in which esc was meant to stop an answer that has ended
BURST_S = 0.5  # seconds between two letters of one word, at most


class KeyboardFeature(Feature):
    """Which widget gets a key, and the keys esc and ctrl+c."""

    def __init__(self, ui: ChatUi) -> None:
        super().__init__(ui)
        self.writing, self.reading, self.sampling = (
            ui[WritingFeature],
            ui[ReadingFeature],
            ui[SamplingFeature],
        )
        self._typed, self._typed_at = "", 0.0  # letters that came one after the other while reading
        self._ended_at = 0.0  # when an answer ended by itself

    def key_for_transcript(self, event: events.Key | events.Paste | events.MouseDown) -> events.Key | None:
        """The key if the transcript handles it, else None; text for the composer focuses it."""
        if isinstance(event, events.MouseDown):
            return None
        if self._is_text(event):
            self.ui.write()
        if isinstance(event, events.Paste) or not self.reading.reading:
            self._typed = ""
            return None
        text, now = typed_text(event), time.monotonic()
        goes_on = bool(text) and now - self._typed_at <= BURST_S
        self._typed, self._typed_at = (self._typed if goes_on else "") + text, now
        return event

    def begin_to_write(self, event: events.Key) -> bool:
        """A letter without a command, while reading, begins to write: with the letters typed just before it.

        They were part of the word, although some of them were commands. False for other keys.
        """
        if not typed_text(event) or not self.reading.reading:
            return False
        before, self._typed = self._typed[: -len(typed_text(event))], ""
        self.ui.write()
        self.composer.insert(before)
        return True

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
        """Stop the answer; with nothing to stop, read, or write again."""
        if self.chat.stop() or self.session.generating:
            return
        if self.writing.leave_edit():
            return
        if self.ui.chat_focus is not self.composer or not self.session.turns:
            if not self.reading.step_back():
                self.ui.write()
        elif time.monotonic() - self._ended_at < JUST_ENDED_S:
            self.ui.hint(f"the answer is complete; {self.keymap.first('chat.stop')} again reads it")
        else:
            self.ui.give_keys(self.transcript)
            self.ui.refresh()

    @event(ev.Finished)
    def _ended(self, event: ev.Finished) -> None:
        self._ended_at = 0.0 if event.reason == "cancelled" else time.monotonic()

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
