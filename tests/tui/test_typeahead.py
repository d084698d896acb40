"""What is typed while the chat starts arrives, without an echo; and the terminal is given back as it was."""

from __future__ import annotations

import signal
import sys
import termios
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from program import OWN_TERMINAL, Program
from textual import events

from ropechat.tui.terminal.driver import PasteParser

sys.path.append(str(Path(__file__).parents[1] / "bench"))

import typed_early

if TYPE_CHECKING:
    from collections.abc import Sequence

LOG = (
    "log \x1b[31mERROR\x1b[0m one\rline \x1b]8;;http://a\x1b\\two\x1b]8;;\x07\r/quit\r\x1b(Bline three\r\x1b["
)
PLAIN = "log ERROR one\rline two\r/quit\rline three\r"


# --- keys ---


@pytest.mark.slow
def test_no_key_of_the_first_seconds_is_lost(tmp_path: Path) -> None:
    assert typed_early.lost(tmp_path) == 0


@pytest.mark.slow
def test_a_question_typed_before_the_program_runs_is_asked(tmp_path: Path) -> None:
    program = typed_early.started(tmp_path)
    program.press("Né, early?\r".encode())  # Python itself takes longer to start than this
    typed_early.ended(program)
    assert typed_early.asked(tmp_path) == ["Né, early?"]
    program = typed_early.started(tmp_path, "--continue")
    program.press(b"And this?\r")
    typed_early.ended(program, answers=2)
    assert typed_early.asked(tmp_path) == ["Né, early?", "And this?"]
    store = typed_early.Store(tmp_path / "data" / "conversations")
    assert len(store.conversations(5).result(60)) == 1  # it went into the chat that was opened
    store.close()


HOLDING = f"""{OWN_TERMINAL}
import os, select, tty
from ropechat.tui.terminal import typeahead
typeahead.hold()
print("held", flush=True)
select.select([0], [], [], 20)
typeahead.release()
before = termios.tcgetattr(0)
tty.setraw(0, termios.TCSANOW)
print("got", os.read(0, 100))
termios.tcsetattr(0, termios.TCSANOW, before)
"""


def test_what_is_typed_ahead_is_not_shown_and_stays_for_who_reads_next() -> None:
    program = Program([], HOLDING)
    program.until(b"held", 20)
    assert termios.tcgetattr(program.master)[3] != program.attributes[3]
    program.press(b"typed\r")
    seen = program.drain(20)
    assert program.child.wait(60) == 0
    assert b"got b'typed\\r'" in seen
    assert seen.count(b"typed") == 1  # no echo
    assert termios.tcgetattr(program.master)[:4] == program.attributes[:4]


@pytest.mark.parametrize("arguments", [["chat", "--nonsense"], ["--nonsense"], ["chat", "--help"]])
def test_a_refused_start_gives_the_terminal_back(arguments: Sequence[str]) -> None:
    program = Program(arguments)
    program.drain(30)
    program.child.wait(60)
    assert termios.tcgetattr(program.master) == program.attributes


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, None])
def test_the_terminal_is_given_back_as_it_was(end: signal.Signals | None, tmp_path: Path) -> None:
    program = typed_early.started(tmp_path)
    program.until(b"ready", 60)
    assert termios.tcgetattr(program.master)[:4] != program.attributes[:4]
    if end is None:
        program.press(b"\x11")
    else:
        program.child.send_signal(end)
    program.until(b"\x1b[?1049l", 20)
    program.drain(1)
    program.child.wait(60)
    program.drain(1)
    assert termios.tcgetattr(program.master)[:4] == program.attributes[:4]


# --- pastes ---


@pytest.mark.slow
def test_a_paste_with_escape_sequences_is_one_paste(tmp_path: Path) -> None:
    program = typed_early.started(tmp_path)
    program.until(b"ready", 60)
    program.press(f"See: \x1b[200~{LOG}\x1b[201~!\r".encode())
    typed_early.ended(program)
    assert typed_early.asked(tmp_path) == ["See: " + PLAIN.replace("\r", "\n") + "!"]


def fed(pieces: Sequence[str]) -> list[Any]:
    parser = PasteParser()
    found = [event for piece in pieces for event in parser.feed(piece)]
    return [event.text if isinstance(event, events.Paste) else event.key for event in found]


def test_key_sequences_whose_numbers_are_no_characters_are_ignored() -> None:
    for numbers in ("204:~", "97:;5u", "97;:u", "55296u", "1114112u", "99999999999999999999u", "97;;55296u"):
        assert fed([f"a\x1b[{numbers}b"]) == ["a", "b"], numbers


def test_a_paste_is_one_however_its_bytes_come() -> None:
    data = f"a\x1b[A\x1b[200~{LOG}\x1b[201~b\x1b[200~\x1b[201~\x1b[200~c\x1b[201~"
    wanted = ["a", "up", PLAIN, "b", "", "c"]
    for at in range(len(data) + 1):
        assert fed([part for part in (data[:at], data[at:]) if part]) == wanted, at
    assert fed(list(data)) == wanted


def test_keys_are_read_as_ever_around_pastes() -> None:
    assert fed(["\x1b[20", "0~x\x1b[201~\x1b[1;5A", "\x1bOR\x1b\r"])[:3] == ["x", "ctrl+up", "f3"]
