"""Gives the UI the screen, and keeps the output of everything else off it."""

from __future__ import annotations

import asyncio
import io
import os
import selectors
import signal
import sys
import tempfile
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO, TYPE_CHECKING

from textual import constants

from ropechat.tui.terminal import typeahead
from ropechat.tui.terminal.watchdog import watch_terminal
from ropechat.util.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SWITCH_INTERVAL_S = 0.001  # how long a thread may keep the interpreter (default: 0.005)
MAX_REPLAYED = 64 * 1024  # bytes of stray output that are shown afterwards


class QuickSelector(selectors.SelectSelector):
    """Waits for keys. After one it waits briefly: until an esc differs from an escape sequence."""

    _just_read = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._just_read and timeout is not None:
            timeout = min(timeout, 1.1 * constants.ESCAPE_DELAY)
        found = super().select(timeout)
        self._just_read = bool(found)
        return found


def take_short_turns() -> None:
    """Let the inference thread run Python code during a repaint, not only after it."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)


_handlers: dict[int, Callable[[], None]] = {}  # by signal: those that `leave_on_signals` installed


def leave_on_signals(leave: Callable[[int], None]) -> None:
    """Make signals that end a program end the app in order: `leave` is called with the exit code."""
    loop = asyncio.get_running_loop()
    for name in ("SIGHUP", "SIGINT", "SIGTERM"):
        number = getattr(signal, name, None)
        if number is not None:
            with suppress(NotImplementedError, ValueError):
                handler = partial(leave, 128 + number)
                loop.add_signal_handler(number, handler)
                _handlers[number] = handler


@contextmanager
def ignore_interrupts() -> Iterator[None]:
    """Leave ctrl+c to another program that has the terminal; its process group is this one's."""
    handler = _handlers.get(signal.SIGINT)
    if handler is None:
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    try:
        yield
    finally:  # two rounds later: in the next one the loop handles the signals that came in between
        loop.call_soon(loop.call_soon, partial(loop.add_signal_handler, signal.SIGINT, handler))


class _Screen(io.TextIOWrapper):
    """The terminal to draw on. Once its window is closed, drawing does nothing.

    An error would end Textual's writing thread, for which the app waits; SIGHUP could not end the app then.
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

    File descriptor 2 is a scratch file meanwhile; what a library writes there is shown, cleaned, once the
    screen is restored. If it is not a terminal (`2> log`) it stays as it is, and the UI draws on /dev/tty.
    """
    terminal = None if "TEXTUAL_DRIVER" in os.environ else _terminal()  # set: a browser is the terminal
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
    """A new descriptor of the terminal, or None without one."""
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
