"""The real program in a pseudo-terminal: what it leaves behind, and what it returns."""

from __future__ import annotations

import os
import pty
import select
import selectors
import signal
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path

import pytest
from payloads import ESCAPES

from ropechat.tui.terminal.screen import SWITCH_INTERVAL_S, QuickSelector, take_short_turns

SUPPORT = Path(__file__).parents[1] / "support"
HEAD = f"""
import fcntl, os, sys, termios, time
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.path[:0] = [{str(SUPPORT)!r}, {str(SUPPORT.parents[1])!r}]
from fakes import STORY, FakeEngine
from ropechat.chat.live import LiveChat
from ropechat.errors import ModelNotFoundError
from ropechat.sampling import Sampling
from ropechat.tui import run_chat
def load(): return FakeEngine(STORY * 50, rate=50, context=10**6)
"""
RUN = "sys.exit(run_chat(LiveChat(load, 'models/fake', Sampling(max_tokens=10**6))))"
RESTORED = (b"\x1b[?1049l", b"\x1b[?25h")


class Terminal:
    """A program on a pty; stderr is the pty too, unless taken apart."""

    def __init__(self, code: str, log: Path | None = None, rows: int = 24, **environ: str) -> None:
        self.master, slave = pty.openpty()
        self.attributes = termios.tcgetattr(self.master)  # before the program has changed them
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 80, 0, 0))
        env = {
            **os.environ,
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "PYTHONUNBUFFERED": "1",
            **environ,
        }
        stderr = log.open("wb") if log else slave
        self.process = subprocess.Popen(
            [sys.executable, "-c", HEAD + code],
            stdin=slave,
            stdout=slave,
            stderr=stderr,
            env=env,
            start_new_session=True,
        )
        if log:
            stderr.close()
        os.close(slave)
        self.output = b""

    def read(self, seconds: float) -> None:
        """Take in output for a while."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self.master], [], [], left)[0]:
                return
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return
            if not data:
                return
            self.output += data

    def wait_for(self, text: bytes, limit: float = 60) -> None:
        """Read until a text was drawn."""
        end = time.monotonic() + limit
        while text not in self.output:
            assert time.monotonic() < end, self.output[-2000:]
            self.read(0.1)

    def type(self, text: bytes) -> None:
        """Press keys."""
        os.write(self.master, text)

    def leave(self, limit: float = 60) -> int:
        """Read to the end; the exit code."""
        end = time.monotonic() + limit
        while self.process.poll() is None:
            assert time.monotonic() < end, self.output[-2000:]
            self.read(0.05)
        self.read(0.3)
        os.close(self.master)
        return self.process.returncode

    def generating(self) -> None:
        """Ask, and wait for an answer."""
        self.wait_for(b"ready")
        self.type(b"hi\r")
        self.wait_for(b"tok/s")


@pytest.mark.slow
def test_quit_while_generating_is_quick_and_restores() -> None:
    terminal = Terminal(RUN)
    terminal.generating()
    begun = time.monotonic()
    terminal.type(b"\x11")
    assert terminal.leave() == 0
    assert time.monotonic() - begun < 30
    assert all(mark in terminal.output for mark in RESTORED)


@pytest.mark.slow
def test_quit_when_the_engine_does_not_listen() -> None:
    code = "FakeEngine.cancel = lambda self: None\nFakeEngine.close = lambda self: time.sleep(60)\n"
    code += "def load():\n    engine = FakeEngine(); engine.gate.clear(); return engine\n"
    terminal = Terminal(code + RUN)
    terminal.wait_for(b"ready")
    terminal.type(b"hi\r")
    terminal.wait_for(b"reading")
    begun = time.monotonic()
    terminal.type(b"\x11")
    assert terminal.leave() == 0
    assert time.monotonic() - begun < 30


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_signals_restore_the_terminal(number: signal.Signals, code: int) -> None:
    terminal = Terminal(RUN)
    terminal.generating()
    terminal.process.send_signal(number)
    assert terminal.leave() == code
    assert all(mark in terminal.output for mark in RESTORED)


@pytest.mark.slow
def test_a_closed_window_ends_the_app() -> None:
    terminal = Terminal(RUN)
    terminal.generating()
    os.close(terminal.master)
    assert terminal.process.wait(60) == 129


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV])
def test_a_killed_program_leaves_the_terminal_restored(number: signal.Signals) -> None:
    terminal = Terminal("import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n" + RUN)
    terminal.generating()
    assert termios.tcgetattr(terminal.master)[3] != terminal.attributes[3]  # raw: no echo
    terminal.process.send_signal(number)
    terminal.process.wait()
    terminal.wait_for(b"\x1b[?1003l")
    terminal.wait_for(b"\x1b[?25h\x1b[?7h")
    assert b"\x1b[?1049l" in terminal.output
    assert termios.tcgetattr(terminal.master)[3] == terminal.attributes[3]
    assert terminal.leave() == -number


@pytest.mark.slow
def test_the_death_of_a_child_is_no_death() -> None:
    code = "import subprocess\ndef load():\n    child = subprocess.Popen(['sleep', '60'])\n"
    code += "    child.kill()\n    return FakeEngine(STORY * 50, rate=50, context=10**6)\n"
    terminal = Terminal(code + RUN)
    terminal.generating()
    terminal.type(b"\x11")
    assert terminal.leave() == 0


@pytest.mark.slow
def test_the_editor_has_the_terminal(tmp_path: Path) -> None:
    script = tmp_path / "edit.sh"
    script.write_text('#!/bin/sh\n[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && printf "from the editor" > "$1"\n')
    script.chmod(0o700)
    terminal = Terminal(RUN, VISUAL=str(script))
    terminal.wait_for(b"ready")
    terminal.type(b"\x07")
    terminal.wait_for(b"from the editor")
    terminal.type(b"\x11")
    assert terminal.leave() == 0


@pytest.mark.slow
def test_ctrl_c_in_the_editor_is_the_editors(tmp_path: Path) -> None:
    script = tmp_path / "edit.sh"
    script.write_text("#!/bin/sh\ntrap 'printf interrupted > \"$0.out\"; exit 0' INT\n")
    script.write_text(script.read_text() + "echo waiting; i=0; while [ $i -lt 100 ]; do sleep 0.1; done\n")
    script.chmod(0o700)
    terminal = Terminal(RUN, VISUAL=str(script))
    terminal.wait_for(b"ready")
    terminal.type(b"\x07")
    terminal.wait_for(b"waiting")
    terminal.type(b"\x03")
    end = time.monotonic() + 60
    while not script.with_name("edit.sh.out").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    terminal.type(b"still here")
    terminal.wait_for(b"still here")
    terminal.type(b"\x11")
    assert terminal.leave() == 0


@pytest.mark.slow
def test_load_error_on_stderr_after_the_screen() -> None:
    code = "def load(): raise ModelNotFoundError('nowhere: \\x1b[2J not found')\n"
    terminal = Terminal(code + RUN)
    terminal.wait_for(b"not loaded")
    terminal.type(b"\x11")
    assert terminal.leave() == 4
    after = terminal.output.rsplit(b"\x1b[?1049l", 1)[1]
    assert "error: nowhere: ␛[2J not found".encode() in after


def test_a_crash_in_the_app_restores_the_terminal() -> None:
    code = "from ropechat.tui.widgets.token_transcript import TokenTranscript\n"
    code += "def boom(self): raise RuntimeError('boom on purpose')\n"
    code += "TokenTranscript.toggle_view = boom\n"
    terminal = Terminal(code + RUN)
    terminal.generating()
    terminal.type(b"\x1bOR")  # F3
    assert terminal.leave() == 70
    assert all(mark in terminal.output for mark in RESTORED)
    after = terminal.output.rsplit(b"\x1b[?1049l", 1)[1]
    assert b"error: a bug in ropechat: RuntimeError: boom on purpose" in after
    assert b"Traceback" not in after
    assert b"once upon" not in after.lower()


def test_stray_output_stays_off_the_screen() -> None:
    code = "def load():\n    os.write(2, b'stray \\x1b]0;x\\x07 words\\n'); return FakeEngine()\n"
    terminal = Terminal(code + RUN)
    terminal.wait_for(b"ready")
    assert b"stray" not in terminal.output
    terminal.type(b"\x11")
    assert terminal.leave() == 0
    assert "stray ␛]0;x␇ words".encode() in terminal.output.rsplit(b"\x1b[?1049l", 1)[1]


@pytest.mark.slow
def test_alt_enter_is_a_newline() -> None:
    terminal = Terminal(RUN)
    terminal.wait_for(b"ready")
    terminal.type(b"aaa\x1b\r")
    terminal.read(0.5)
    terminal.type(b"bbb")
    terminal.wait_for(b"bbb")
    assert b"reading" not in terminal.output
    terminal.type(b"\x11")
    assert terminal.leave() == 0


@pytest.mark.slow
def test_no_color_sends_no_colours() -> None:
    terminal = Terminal(RUN, NO_COLOR="1")
    terminal.generating()
    terminal.type(b"\x11")
    assert terminal.leave() == 0
    assert b"38;2;" not in terminal.output
    assert b"48;2;" not in terminal.output
    assert b"38;5;" not in terminal.output


def test_with_stderr_in_a_file_the_screen_is_still_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "def load():\n    os.write(2, b'stray words\\n'); return FakeEngine()\n"
    terminal = Terminal(code + RUN, log=log)
    terminal.wait_for(b"ready")
    terminal.type(b"\x11")
    assert terminal.leave() == 0
    assert all(mark in terminal.output for mark in RESTORED)
    assert log.read_bytes() == b"stray words\n"


SENT = [f"{payload}Q{number}Q" for number, payload in enumerate(ESCAPES)]

HOSTILE = """
from payloads import ESCAPES, in_markdown
SENT = [f"{payload}Q{number}Q" for number, payload in enumerate(ESCAPES)]
def load():
    parts = [SENT[first:first + 8] for first in range(0, 40, 8)] * 2
    scripts = ["".join(map(in_markdown, part)) + f"\\nEND{number}" for number, part in enumerate(parts)]
    engine = FakeEngine(scripts, context=10**6, name=SENT[0], facts={"dtype": SENT[1]})
    engine.token_bytes = lambda id: SENT[id % len(SENT)].encode("utf-8", "surrogatepass")
    return engine
"""
F3, F4, CTRL_F = b"\x1bOR", b"\x1bOS", b"\x06"


@pytest.mark.slow
def test_nothing_of_a_hostile_answer_arrives_raw_in_any_view() -> None:
    assert len(ESCAPES) == 40
    terminal = Terminal(HOSTILE + RUN, rows=220)
    terminal.wait_for(b"1,000,000")
    for number in range(10):
        if number == 5:
            terminal.type(F3)
            terminal.wait_for(b"prose: Markdown")
        terminal.type(b"hi\r")
        terminal.wait_for(f"END{number}".encode())
        terminal.read(0.5)  # it is complete before the next is asked
    for keys, answer in ((F4, b"all others"), (b"hhk", b"choice"), (F3, b"tokens: the text")):
        terminal.type(keys)
        terminal.wait_for(answer)
    terminal.type(CTRL_F + b"END1")
    terminal.wait_for(b"1/1")
    terminal.type(b"\x11")
    assert terminal.leave() == 0
    shown = sum(f"Q{number}Q".encode() in terminal.output for number in range(40))
    assert shown == 40  # all of them were on the screen
    for sent in SENT:
        raw = sent.encode("utf-8", "surrogatepass")
        assert raw not in terminal.output, sent
    decoded = terminal.output.decode("utf-8", "replace")
    assert not {
        character for character in decoded if 0x80 <= ord(character) < 0xA0 or character in "\u202e\u2066"
    }


def test_after_a_key_the_next_wait_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []
    answers = [[], ["a key"], [], []]

    def select(self: selectors.SelectSelector, timeout: float | None = None) -> list[object]:
        waits.append(timeout)
        return answers[len(waits) - 1]

    monkeypatch.setattr(selectors.SelectSelector, "select", select)
    waiting = QuickSelector()
    for _ in answers:
        waiting.select(10.0)
    assert [wait == 10.0 for wait in waits] == [True, True, False, True]


def test_threads_take_short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[float] = []
    monkeypatch.setattr(sys, "setswitchinterval", turns.append)
    take_short_turns()
    assert turns == [SWITCH_INTERVAL_S]
