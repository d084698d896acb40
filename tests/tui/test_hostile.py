"""Text that would act on a terminal, and text that looks like markup, in every view of the real program."""

from __future__ import annotations

import re
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import hostile
import pytest
from payloads import BRACKETS, ESCAPES, FORBIDDEN
from program import OWN_TERMINAL, Program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]  # some fifty views, each awaited
CODE = f"{OWN_TERMINAL}sys.path.insert(0, {str(Path(hostile.__file__).parent)!r}); "
CODE += "import hostile; from pathlib import Path; sys.exit(hostile.chat(sys.argv[1], Path(sys.argv[2])))"
ESC, ENTER, UP, DOWN, LEFT, TAB = b"\x1b", b"\r", b"\x1b[A", b"\x1b[B", b"\x1b[D", b"\t"
F1, F2, F3, F4 = b"\x1bOP", b"\x1bOQ", b"\x1bOR", b"\x1bOS"
F5, F6, F7, F9 = b"\x1b[15~", b"\x1b[17~", b"\x1b[18~", b"\x1b[20~"
FIND, PALETTE, RENAME, CLEAR, SEARCH = b"\x06", b"\x10", b"\x12", b"\x15", b"\x12"
WIPE = (CLEAR + b"\x7f") * 60  # line by line
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


class Watched(Program):
    """Keeps all that was written."""

    def __init__(self, *arguments: object, **options: object) -> None:
        self.output = b""
        super().__init__(*arguments, **options)  # type: ignore[arg-type]

    def _read(self, seconds: float) -> bytes:
        data = super()._read(seconds)
        self.output += data or b""
        return data

    def await_rest(self, awaited: bytes) -> None:
        """Wait until a text was written, and until nothing more is."""
        end = time.monotonic() + 60
        while self.drain(0.3) or awaited not in self.output:
            assert time.monotonic() < end, (awaited, self.output[-2000:])


def pasted(text: str) -> bytes:
    """As a terminal sends what is pasted."""
    return b"\x1b[200~" + text.encode("utf-8", "replace") + b"\x1b[201~"


def shown(kind: str, folder: Path) -> tuple[dict[str, bytes], list[str]]:
    """What the program writes in each view, and what is exported."""
    hostile.furnish(folder, kind)
    environ = {"XDG_CONFIG_HOME": str(folder / "settings"), "HF_HOME": str(folder / "hub")}
    screen = Watched([kind, str(folder)], CODE, (200, 160), **environ)
    found: dict[str, bytes] = {}

    def see(view: str, awaited: bytes) -> None:
        screen.await_rest(awaited)
        found[view], screen.output = found.get(view, b"") + screen.output, b""

    see("start", b"1,000,000")
    for view, keys, awaited in VIEWS:
        for key in keys:
            if key == PASTE:
                for text in hostile.texts(kind)[:40]:
                    screen.press(pasted(text))
            else:
                screen.press(key)
            screen.drain(0.2)
        see(view, awaited)
    for command in (b"/rename ", b"/system ", b"/tint ", b"/set ", b"/model ", b"/export md ", b"/", b"@"):
        for text in hostile.texts(kind)[::7]:
            screen.press(WIPE + command + pasted(text))
            screen.drain(0.05)
            screen.press(ENTER)
            screen.drain(0.05)
    screen.await_rest(b"")
    found["commands"], screen.output = screen.output, b""
    screen.quit()  # in order: nothing was raised
    found["end"] = screen.output
    return found, [(folder / f"out.{form}").read_text("utf-8") for form in ("md", "json", "html")]


@cache
def plain() -> tuple[dict[str, bytes], list[str]]:
    with TemporaryDirectory() as folder:
        return shown("plain", Path(folder))


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


@pytest.mark.parametrize("kind", ["escapes", "brackets"])
def test_what_is_said_is_text_in_every_view(kind: str, tmp_path: Path) -> None:
    assert (len(ESCAPES), len(BRACKETS)) == (40, 500)
    usual, _ = plain()
    allowed = set().union(*map(sequences, usual.values()))
    found, files = shown(kind, tmp_path)
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
