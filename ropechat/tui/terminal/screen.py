"""Keeps everything but the UI off the screen while the UI has it."""

from __future__ import annotations

import asyncio
import io
import os
import selectors
import signal
import sys
import tempfile
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import IO, TYPE_CHECKING, Any, cast

from textual import constants
from textual import screen as textual_screen
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS

from ropechat.tui.terminal import typeahead
from ropechat.tui.terminal.watchdog import watch_terminal
from ropechat.util.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ESCAPE_DELAY = 0.025  # seconds; the bytes of a sequence come in one piece, also over ssh and in tmux
REPAINTS = 120  # a second, at most
TURN = 0.001  # seconds that one thread keeps Python from another
MAX_REPLAYED = 64 * 1024  # bytes of stray output that are shown afterwards


class _Extra(StrEnum):
    """Keys that Textual has no name for."""

    ALT_ENTER = "alt+enter"


class QuickSelector(selectors.SelectSelector):
    """Waits for keys; right after one only as long as it takes to know that an esc came alone."""

    _just_read = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._just_read and timeout is not None:
            timeout = min(timeout, 1.1 * constants.ESCAPE_DELAY)
        found = super().select(timeout)
        self._just_read = bool(found)
        return found


def teach_keys() -> None:
    """Make alt+enter a key of its own in terminals that send ESC CR for it; Textual reads that as enter.

    And esc acts sooner: Textual waits 100 ms for what may follow in a sequence, and looks ten times a second.
    """
    if "ESCDELAY" not in os.environ:
        constants.ESCAPE_DELAY = ESCAPE_DELAY  # type: ignore[misc]
    table = cast("dict[str, Any]", ANSI_SEQUENCES_KEYS)
    table["\x1b\r"] = table["\x1b\n"] = (_Extra.ALT_ENTER,)


def take_short_turns() -> None:
    """Draw what changed sooner: after a repaint Textual lets one or two of its 60ths of a second pass.

    And the thread that asks the model gets Python in the middle of a repaint, not at its end.
    """
    sys.setswitchinterval(TURN)
    if "TEXTUAL_FPS" not in os.environ:
        textual_screen.UPDATE_PERIOD = 1 / REPAINTS  # type: ignore[misc]


def leave_on_signals(leave: Callable[[int], None]) -> None:
    """Make signals that end a program end the app in order: `leave` is called with the exit code."""
    loop = asyncio.get_running_loop()
    for name in ("SIGHUP", "SIGINT", "SIGTERM"):
        number = getattr(signal, name, None)
        if number is not None:
            with suppress(NotImplementedError, ValueError):
                loop.add_signal_handler(number, leave, 128 + number)


class _Screen(io.TextIOWrapper):
    """The terminal to draw on; once it is gone, as its window was closed, drawing does nothing.

    An error would end Textual's writing thread, for which the app waits: SIGHUP could not end it.
    """

    def write(self, text: str, /) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()

    def close(self) -> None:
        with suppress(OSError):
            super().close()


@contextmanager
def own_screen() -> Iterator[None]:
    """Give Textual, which draws through `sys.__stderr__`, the terminal, and nothing else the screen.

    File descriptor 2 is a scratch file meanwhile; whatever a library wrote there comes out, cleaned, once the
    screen is restored. If it was no terminal to begin with (`2> log`) it stays, and the UI draws on /dev/tty.
    """
    terminal = None if "TEXTUAL_DRIVER" in os.environ else _terminal()  # else a browser is the terminal
    if terminal is None:
        yield
        return
    original, redirected = sys.__stderr__, os.isatty(2)
    sys.stderr.flush()
    with (
        tempfile.TemporaryFile() as scratch,
        _Screen(os.fdopen(terminal, "wb"), encoding="utf-8", newline="") as screen,
    ):
        if redirected:
            os.dup2(scratch.fileno(), 2)
        sys.__stderr__ = screen  # type: ignore[misc]
        try:
            with watch_terminal(screen.fileno(), typeahead.cleared_flags()):
                yield
        finally:
            sys.stderr.flush()
            screen.flush()
            sys.__stderr__ = original  # type: ignore[misc]
            if redirected:
                os.dup2(terminal, 2)
                _replay(scratch)


def _terminal() -> int | None:
    """A new descriptor of the terminal, or None where there is none."""
    if sys.__stderr__ is None:
        return None
    try:
        return os.dup(2) if os.isatty(2) else os.open("/dev/tty", os.O_RDWR)
    except OSError:
        return None


def _replay(scratch: IO[bytes]) -> None:
    end = scratch.seek(0, os.SEEK_END)
    scratch.seek(max(0, end - MAX_REPLAYED))
    if text := clean(scratch.read().decode("utf-8", "replace")):
        sys.stderr.write(text if text.endswith("\n") else text + "\n")
        sys.stderr.flush()
