"""Text that would act on a terminal, and text that looks like markup: what a terminal gets in every view."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import hostile
import pytest
import simulated_time
from payloads import BRACKETS, ESCAPES, FORBIDDEN
from textual.constants import ESCAPE_DELAY
from textual.drivers.headless_driver import HeadlessDriver

from ropechat.tui.app import ChatApp
from ropechat.tui.terminal.driver import PasteParser

pytestmark = pytest.mark.slow  # some fifty views
ESC, ENTER, UP, DOWN, LEFT, TAB = b"\x1b", b"\r", b"\x1b[A", b"\x1b[B", b"\x1b[D", b"\t"
F1, F2, F3, F4 = b"\x1bOP", b"\x1bOQ", b"\x1bOR", b"\x1bOS"
F5, F6, F7, F9 = b"\x1b[15~", b"\x1b[17~", b"\x1b[18~", b"\x1b[20~"
FIND, PALETTE, RENAME, CLEAR, SEARCH = b"\x06", b"\x10", b"\x12", b"\x15", b"\x12"
WIPE = (CLEAR + b"\x7f") * 60  # line by line
COMMANDS = (b"/rename ", b"/system ", b"/tint ", b"/set ", b"/model ", b"/export md ", b"/", b"@")
PASTE = b""  # all texts, one after another
RAW = FORBIDDEN - set(b"\a\t\n\r\x1b")
VIEWS: list[tuple[str, list[bytes], bytes]] = [  # name, keys, what is seen then
    ("prose", [F3], b"prose: Markdown"),
    ("tokens", [F3], b"tokens: the text"),
    ("transcript", [ESC], b"scroll"),
    ("inspector", [LEFT, F4], b"all others"),
    ("preview", [b"k", b"p"], b"greedy"),
    ("no inspector", [ESC, ESC], b"scroll"),
    ("find", [FIND, b"Q1Q"], b"to the matches"),
    ("found", [ENTER, b"N", ESC, ESC], b"scroll"),
    ("looked for", [FIND, PASTE], b"Q"),
    ("not found", [ESC, ESC], b"scroll"),
    ("branches", [F5], b"branches, 42 answers"),
    ("no branches", [ESC], b"send"),
    ("compare", [ESC, LEFT, b"="], b"tokens shared"),
    ("no compare", [ESC], b"send"),
    ("chats", [F2], b"earch chats"),
    ("search", [b"Q1Q"], b"with "),
    ("rename", [RENAME], b"saves this title"),
    ("renamed", [PASTE], b"Q"),
    ("no chats", [ESC, CLEAR, ESC], b"send"),
    ("searched", [F2, PASTE], b"Q"),
    ("not found in chats", [ESC], b"send"),
    ("models", [F6], b"to download"),
    ("wanted", [PASTE], b"Q"),
    ("a path", [CLEAR, b"/", PASTE], b"Q"),
    ("no models", [ESC], b"send"),
    ("sampling", [F7], b"temperature"),
    ("typed", [ENTER, PASTE], b"Q"),
    ("no sampling", [ESC, ESC], b"send"),
    ("alternatives", [b"/fork 1", ENTER], b"fork here"),
    ("no alternatives", [ESC], b"send"),
    ("personas", [b"/persona", ENTER], b"begins a branch"),
    ("named", [b"n", PASTE], b"Q"),
    ("refused", [ENTER], b"must be 1 to 40"),
    ("no personas", [ESC, ESC], b"send"),
    ("facts", [F9], b"Q"),
    ("no facts", [F9], b"Q"),
    ("help", [F1], b"Other keys"),
    ("no help", [ESC], b"send"),
    ("palette", [PALETTE], b"Search"),
    ("no palette", [ESC], b"send"),
    ("history", [UP], b"Q"),
    ("history search", [WIPE, b"Q1", SEARCH], b"sent before"),
    ("no history", [ESC, WIPE], b"essage"),
    ("draft", [PASTE], b"Q"),
    ("no draft", [WIPE], b"essage"),
    ("files", [b"@"], b"Q"),
    ("no files", [WIPE], b"essage"),
    ("export", [b"/export md ../out.md", ENTER], b"written"),
    ("export", [b"/export json ../out.json", ENTER], b"written"),
    ("export", [b"/export html ../out.html", ENTER], b"written"),
]


class Terminal(HeadlessDriver):
    """Takes what a terminal sends, and keeps what it gets."""

    is_headless = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.output, self._parser = "", PasteParser()

    def write(self, data: str) -> None:
        self.output += data

    def press(self, keys: bytes) -> None:
        """The events of these bytes."""
        for event in self._parser.feed(keys.decode("utf-8", "replace")):
            self.process_message(event)

    def tick(self) -> None:
        """Nothing else comes: an esc was one. The parser looks at a clock that is not simulated."""
        if self._parser._timeout_time is not None:
            self._parser._timeout_time = 0.0
        for event in self._parser.tick():
            self.process_message(event)


def pasted(text: str) -> bytes:
    """As a terminal sends what is pasted."""
    return b"\x1b[200~" + text.encode("utf-8", "replace") + b"\x1b[201~"


async def shown(kind: str, folder: Path) -> tuple[dict[str, bytes], list[str]]:
    """What the app writes in each view, and what is exported."""
    hostile.furnish(folder, kind)
    found: dict[str, bytes] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder / "settings"))
        patch.setenv("HF_HOME", str(folder / "hub"))
        patch.chdir(folder / "files")
        chat = hostile.chat(kind, folder)
        app = ChatApp(chat, "whole")
        app.driver_class = Terminal
        async with app.run_test(headless=False, size=(120, 70)) as pilot:
            screen: Any = app._driver

            async def press(keys: bytes) -> None:
                if keys == WIPE:
                    app.composer.set_text("")
                    return
                if keys == PASTE:
                    keys = b"".join(map(pasted, hostile.texts(kind)[:40]))
                screen.press(keys)
                await pilot.pause(1.1 * ESCAPE_DELAY)
                screen.tick()
                await pilot.pause(0.05)

            async def see(view: str, awaited: str) -> None:
                end = simulated_time.real() + 60
                while awaited not in screen.output:
                    assert simulated_time.real() < end, (view, awaited, screen.output[-2000:])
                    await pilot.pause(0.1)
                await pilot.pause(0.5)
                output, screen.output = screen.output.encode("utf-8", "surrogatepass"), ""
                found[view] = found.get(view, b"") + output

            await see("start", "1,000,000")
            for view, keys, awaited in VIEWS:
                for key in keys:
                    await press(key)
                await see(view, awaited.decode())
            for number, command in enumerate(COMMANDS):
                for text in hostile.texts(kind)[number :: len(COMMANDS)][:3]:
                    await press(WIPE)
                    await press(command + pasted(text))
                    await press(ENTER)
            await see("commands", "")
        app.inference.shutdown(2.0)
        assert chat.session.recorder.store is not None
        assert chat.session.recorder.store.close()
        found["end"] = screen.output.encode("utf-8", "surrogatepass")
    return found, [(folder / f"out.{form}").read_text("utf-8") for form in ("md", "json", "html")]


def sequences(output: bytes) -> set[tuple[bytes, ...]]:
    """The kinds of control sequences: how they begin and end; of modes, which one."""
    found: set[tuple[bytes, ...]] = set()
    for match in re.finditer(rb"\x1b(?:\[([<-?]?)([\d;:]*)[ -/]*([@-~])|([^\[]))", output):
        private, numbers, final, other = match.groups()
        kind = (b"[", private, final) if final else (other,)
        found.add((*kind, numbers) if final in (b"h", b"l") else kind)
    return found


def marks(output: bytes) -> set[bytes]:
    """The marks that are on the screen."""
    return set(re.findall(rb"Q\d+Q", output))


@pytest.mark.usefixtures("every_frame")
async def test_what_is_said_is_text_in_every_view(tmp_path: Path) -> None:
    assert (len(ESCAPES), len(BRACKETS)) == (40, 500)
    usual, _ = await shown("plain", tmp_path / "plain")
    for kind in ("escapes", "brackets"):
        check(kind, usual, *await shown(kind, tmp_path / kind))


def check(kind: str, usual: dict[str, bytes], found: dict[str, bytes], files: list[str]) -> None:
    """What was shown and exported is text. usual: the same with harmless texts."""
    allowed = set().union(*map(sequences, usual.values()))
    for view, output in found.items():
        # Where the whole screen was drawn again. How much commands draw depends on the time between keys.
        if view not in {"commands", "end"} and len(marks(usual[view])) > 20:
            assert marks(output), view
        assert sequences(output) <= allowed, view
        assert not RAW & set(map(ord, output.decode("utf-8", "ignore"))), view
        for sent in hostile.texts(kind) if kind == "escapes" else ():
            assert sent.encode("utf-8", "surrogatepass") not in output, (view, sent)
    for file in files:  # nor does a file act that is shown as it is
        assert not RAW & set(map(ord, file))
        assert "\x1b" not in file
        assert marks(file.encode()) >= {f"Q{number}Q".encode() for number in range(len(hostile.texts(kind)))}
