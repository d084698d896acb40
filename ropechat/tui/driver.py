"""How keys come in: none is lost while the chat starts, and a paste is text whatever it holds."""

from __future__ import annotations

import os
import re
import selectors
from codecs import getincrementaldecoder
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from textual import events
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

from ropechat.tui import typeahead
from ropechat.tui.terminal import QuickSelector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.message import Message

    from ropechat.tui.app import ChatApp

WAIT = 0.1  # seconds between two looks whether the chat ends
SOON = 0.01  # the same, while keys wait for the chat
BLOCK = 4096  # bytes that are read at once
GONE = 129  # the exit code once there is no terminal any more, as of SIGHUP
PASTE, PASTED = "\x1b[200~", "\x1b[201~"
_SEQUENCE = re.compile(  # ECMA-48: control sequences, strings, other escapes; or what is left of one
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])?"
)


class PasteParser(XTermParser):
    """Textual's parser of keys, with pastes that hold no escape sequences: it would take them for keys."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._tail = ""  # the last characters, among which a mark may begin
        self._pasted: list[str] | None = None  # what came of the paste that is under way

    def feed(self, data: str) -> Iterable[Message]:
        """The events of some input; of a paste once all of it is there."""
        if not data:
            yield from super().feed(data)
        while data:
            if self._pasted is None:
                part, data = self._upto(PASTE, data)
                yield from super().feed(part)
                self._pasted = [] if self._tail == PASTE else None
            else:
                part, data = self._upto(PASTED, data)
                self._pasted.append(part)
                if self._tail == PASTED:
                    text = "".join(self._pasted)[: -len(PASTED)]
                    self._pasted = None
                    yield from super().feed(_SEQUENCE.sub("", text) + PASTED)

    def _upto(self, mark: str, data: str) -> tuple[str, str]:
        """The input up to the end of a mark, which may have begun earlier, and the rest."""
        kept = self._tail[1 - len(mark) :]
        at = (kept + data).find(mark)
        end = len(data) if at < 0 else at + len(mark) - len(kept)
        self._tail = (kept + data[:end])[-len(mark) :]
        return data[:end], data[end:]


class ChatDriver(LinuxDriver):
    """Textual's driver, but keys wait until the app wants them: before that nothing has the focus."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._early: list[Message] = []

    def start_application_mode(self) -> None:
        """Take the terminal; it is given back as it was before it was held."""
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self.attrs_before = typeahead.before or self.attrs_before

    def run_input_thread(self) -> None:
        """Read until the chat ends."""
        parser, decode = PasteParser(self._debug), getincrementaldecoder("utf-8")("replace").decode
        selector = QuickSelector()
        selector.register(self.fileno, selectors.EVENT_READ)
        try:
            if early := typeahead.first():
                self._take(parser.feed(decode(early)))
            while not self.exit_event.is_set():
                if selector.select(SOON if self._early else WAIT):
                    data = os.read(self.fileno, BLOCK)
                    if not data:
                        raise EOFError
                    if text := decode(data):
                        self._take(parser.feed(text))
                else:  # an esc came alone only if nothing waits that may belong to it
                    self._take(parser.tick())
                self._pass_on()
        except (OSError, EOFError):  # the terminal is gone; SIGHUP says so too, but it may be ignored
            with suppress(RuntimeError):  # the app has ended meanwhile
                self._loop.call_soon_threadsafe(cast("ChatApp", self._app)._leave, GONE)
        finally:
            selector.close()

    def _take(self, found: Iterable[Message]) -> None:
        for event in found:
            self.process_message(event)

    def process_message(self, message: Message) -> None:
        """Pass an event on, in order; keys and the like when they are wanted."""
        early = isinstance(message, events.InputEvent | events.Paste)
        if early and (self._early or not self._wanted):
            self._early.append(message)
        else:
            super().process_message(message)

    @property
    def _wanted(self) -> bool:
        return cast("ChatApp", self._app).keys_wanted.is_set()

    def _pass_on(self) -> None:
        if self._early and self._wanted:
            early, self._early = self._early, []
            for message in early:
                super().process_message(message)
