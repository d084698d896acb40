"""The line of progress on stderr: on a terminal, in a pipe, as JSON."""

import io
import json
import threading
from types import SimpleNamespace

import pytest
from readings import trace_of

from ropechat.cli import exit_codes, status
from ropechat.cli.status import ProgressLine
from ropechat.util.progress import Progress, Wait

WAIT = Wait(Progress("reading", 133, 828), 7.3, 95.0, 18.0, notes=("a\x1b[2J",))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Stderr as a terminal of 100 columns, on which even short waits are shown."""
    for name in ("_QUIET_S", "_POLL_S", "_JSON_S"):
        monkeypatch.setattr(status, name, 0.0)
    for name, value in (("COLUMNS", "100"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    made = Terminal()
    # Between the phases of a test pytest puts its own stream there.
    monkeypatch.setattr(status, "sys", SimpleNamespace(stderr=made))
    monkeypatch.setattr(exit_codes, "sys", SimpleNamespace(stderr=made))
    return made


def test_a_terminal_shows_a_bar_and_the_time_left(terminal: Terminal) -> None:
    line = ProgressLine()
    line.show(WAIT)
    shown = terminal.getvalue()
    assert "reading" in shown
    assert "━" in shown
    assert "133 of 828 tokens · 7.3 tok/s · 1 min 35 s left" in shown
    assert "\x1b[2J" not in shown, "what strangers wrote is cleaned"
    line.note("done")
    assert terminal.getvalue().endswith("done\n")


def test_the_line_fits_a_narrow_terminal(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    ProgressLine().show(WAIT)
    assert "━" not in terminal.getvalue()
    assert "133 of 828 tokens" in terminal.getvalue()


def test_a_pipe_stays_quiet(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(status.sys, "stderr", pipe)
    line = ProgressLine()
    line.show(WAIT)
    with line.watch(lambda: Progress("loading", 1, 2)):
        pass
    assert pipe.getvalue() == ""


def test_json_lines_come_from_a_thread_while_the_command_waits(terminal: Terminal) -> None:
    asked, line = threading.Event(), ProgressLine("json")
    seen = iter([Progress("loading", 1, 4, "bytes"), Progress("loading", 3, 4, "bytes")])

    def read() -> Progress | None:
        found = next(seen, None)
        if found is None:
            asked.set()
        return found

    with line.watch(read):
        assert asked.wait(60)
    records = [json.loads(text) for text in terminal.getvalue().splitlines()]
    assert [(one["stage"], one["done"], one["total"]) for one in records] == [
        ("loading", n, 4) for n in (1, 3)
    ]


def is_watched() -> bool:
    """Whether a thread draws beside this one; others may end at any time."""
    return any(thread.name == "ropechat-progress" for thread in threading.enumerate())


def test_only_the_wait_for_the_first_item_is_watched(terminal: Terminal) -> None:
    line, asked = ProgressLine(), threading.Event()

    def items() -> "object":
        assert asked.wait(60)
        yield 1
        assert not is_watched()
        yield 2

    def read() -> Progress:
        asked.set()
        return Progress("reading", 1, 2)

    assert list(line.until_first(read, items())) == [1, 2]  # type: ignore[arg-type]


@pytest.mark.parametrize("appears", [False, True])
def test_scores_that_go_to_a_file_are_watched_to_the_end(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, *, appears: bool
) -> None:
    from ropechat.cli import inspect
    from ropechat.inspector.scored_text import ScoredText

    text, watching = trace_of("ab", window=None), list[bool]()

    class Scores(SimpleNamespace):
        def __iter__(self) -> "object":
            for token in text:
                watching.append(is_watched())
                yield token

    monkeypatch.setattr(inspect, "sys", SimpleNamespace(stdout=Terminal()))
    progress = Progress("reading", 1, 2, growth=0.5)
    engine = SimpleNamespace(progress=SimpleNamespace(read=lambda: progress))
    watcher = inspect._Progress(ProgressLine(), engine, streams=appears)  # type: ignore[arg-type]
    scored = ScoredText(Scores(meta=text.meta, next=None), observer=watcher)  # type: ignore[arg-type]
    assert list(scored) == list(text)
    assert watching == [True, not appears]
    assert watcher._read() == Progress("scoring", 1, 2, growth=0.5)
