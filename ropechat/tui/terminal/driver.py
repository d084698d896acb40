"""Reads keys and pastes: none is lost while the chat starts, and escape sequences in a paste are removed."""

from __future__ import annotations

import os
import re
import selectors
from codecs import getincrementaldecoder
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, cast

from textual import events
from textual.keys import Keys

from ropechat.tui.terminal import typeahead
from ropechat.tui.terminal.screen import QuickSelector
from ropechat.tui.terminal.textual_compat import CompatDriver, XTermParser
from ropechat.util.text import is_unicode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from threading import Event

    from textual.message import Message

POLL_S = 0.1  # how often the reading thread checks whether the chat ends
EARLY_POLL_S = 0.01  # the same, while early keys wait for the chat
READ_BYTES = 4096  # read at once
EXIT_CODE_SIGHUP = 129  # also where the terminal is gone without a signal
PASTE_START, PASTE_END = "\x1b[200~", "\x1b[201~"
_SEQUENCE = re.compile(  # ECMA-48: control sequences, strings, other escapes; or what is left of one
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])?"
)


class WantsKeys(Protocol):
    """The app as the driver uses it."""

    @property
    def keys_wanted(self) -> Event:
        """Set once a key finds the chat that was asked for."""

    def leave(self, code: int) -> None:
        """End with an exit code; running work is cancelled."""


class PasteParser(XTermParser):
    """Textual's parser of input. Removes escape sequences from pastes, which Textual would take for keys."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._tail = ""  # the last characters, in which a mark may begin
        self._pasted: list[str] | None = None  # the parts of a paste that has not ended

    def feed(self, data: str) -> Iterable[Message]:
        """The events of some input; a paste is one event, once it is complete."""
        if not data:
            yield from super().feed(data)
        while data:
            if self._pasted is None:
                part, data = self._upto(PASTE_START, data)
                yield from super().feed(part)
                self._pasted = [] if self._tail == PASTE_START else None
            else:
                part, data = self._upto(PASTE_END, data)
                self._pasted.append(part)
                if self._tail == PASTE_END:
                    text = "".join(self._pasted)[: -len(PASTE_END)]
                    self._pasted = None
                    yield from super().feed(_SEQUENCE.sub("", text) + PASTE_END)

    def _parse_extended_key(self, sequence: str) -> list[events.Key] | None:  # type: ignore[override]  # cached
        """The keys of kitty's protocol in a sequence; an ignored one where a number is no character."""
        try:
            keys = super()._parse_extended_key(sequence)
        except (ValueError, OverflowError):  # of int and chr
            keys = [events.Key(Keys.Ignore, None)]
        if keys is None or all(is_unicode(key.character or key.key) for key in keys):
            return keys
        return [events.Key(Keys.Ignore, None)]

    def _upto(self, mark: str, data: str) -> tuple[str, str]:
        """The input up to the end of a mark, which may have begun earlier, and the rest."""
        kept = self._tail[1 - len(mark) :]
        at = (kept + data).find(mark)
        end = len(data) if at < 0 else at + len(mark) - len(kept)
        self._tail = (kept + data[:end])[-len(mark) :]
        return data[:end], data[end:]


class ChatDriver(CompatDriver):
    """Textual's driver. Keys wait until the app wants them: before that no widget has the focus."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._early: list[Message] = []

    def start_application_mode(self) -> None:
        """Take the terminal. When the app ends it is restored to its state before `typeahead.hold`."""
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self.attrs_before = typeahead.before or self.attrs_before

    def run_input_thread(self) -> None:
        """Read until the chat ends."""
        parser, decode = PasteParser(self.debug), getincrementaldecoder("utf-8")("replace").decode
        selector = QuickSelector()
        selector.register(self.fileno, selectors.EVENT_READ)
        try:
            if early := typeahead.read_early():
                self._take(parser.feed(decode(early)))
            while not self.exit_event.is_set():
                if selector.select(EARLY_POLL_S if self._early else POLL_S):
                    data = os.read(self.fileno, READ_BYTES)
                    if not data:
                        raise EOFError
                    if text := decode(data):
                        self._take(parser.feed(text))
                else:  # an esc came alone only if nothing waits that may belong to it
                    self._take(parser.tick())
                self._pass_on()
        except (OSError, EOFError):  # the terminal is gone; SIGHUP says so too, but it may be ignored
            with suppress(RuntimeError):  # the app has ended meanwhile
                self.loop.call_soon_threadsafe(cast("WantsKeys", self.app).leave, EXIT_CODE_SIGHUP)
        finally:
            selector.close()

    def _take(self, found: Iterable[Message]) -> None:
        for event in found:
            self.process_message(event)

    def process_message(self, message: Message) -> None:
        """Pass an event on, in order; keys and pastes not before the app wants them."""
        early = isinstance(message, events.InputEvent | events.Paste)
        if early and (self._early or not self._wanted):
            self._early.append(message)
        else:
            super().process_message(message)

    @property
    def _wanted(self) -> bool:
        return cast("WantsKeys", self.app).keys_wanted.is_set()

    def _pass_on(self) -> None:
        if self._early and self._wanted:
            early, self._early = self._early, []
            for message in early:
                super().process_message(message)
