"""Keys typed before the chat has the terminal wait there, in order and without an echo."""

from __future__ import annotations

import fcntl
import os
import termios
from array import array
from contextlib import suppress

_INPUT, _LOCAL, _CHARACTERS = 0, 3, 6  # places in what `tcgetattr` returns
_WORDS = {  # those that are switched off, by their names in termios and for stty
    _INPUT: ("ICRNL", "INLCR", "IGNCR", "IXON"),
    _LOCAL: ("ECHO", "ICANON", "IEXTEN"),
}

before: list | None = None  # type: ignore[type-arg]
"""The attributes of the terminal before `hold`, as `tcgetattr` returns them; None while it is not held."""
_lines = 0


def hold() -> None:
    """Let the terminal keep each key that is typed without an echo; ctrl+c still ends the program.

    Does nothing without a terminal that has a screen, or when it is held already.
    """
    global before, _lines
    if before is not None or "TEXTUAL_DRIVER" in os.environ:
        return
    if os.environ.get("TERM") == "dumb" or not (os.isatty(0) and os.isatty(1)):
        return  # as `has_screen` of cli/common.py, which is not imported yet
    with suppress(termios.error, OSError):
        found, held = termios.tcgetattr(0), termios.tcgetattr(0)
        for place, words in _WORDS.items():
            for word in words:
                held[place] &= ~getattr(termios, word)
        held[_CHARACTERS][termios.VMIN], held[_CHARACTERS][termios.VTIME] = 1, 0
        termios.tcsetattr(0, termios.TCSANOW, held)
        before = found
        waiting = array("i", [0])
        fcntl.ioctl(0, termios.FIONREAD, waiting)
        _lines = waiting[0]
        if _lines and found[_LOCAL] & termios.ECHO:
            os.write(1, b"\r\x1b[K")  # the terminal has shown what was typed so far


def release() -> None:
    """Restore the terminal. Keys that were not read stay for the next reader."""
    global before, _lines
    found, before, _lines = before, None, 0
    if found is not None:
        with suppress(termios.error):
            termios.tcsetattr(0, termios.TCSANOW, found)


def read_early() -> bytes:
    """Read, once, what was typed before `hold`; its line ends become the enter key."""
    global _lines
    count, _lines = _lines, 0
    return os.read(0, count).replace(b"\n", b"\r") if count else b""


def cleared_flags() -> str:
    """The flags that `stty` must set again after the terminal was held."""
    if before is None:
        return ""
    flags = [
        (word, before[place] & getattr(termios, word)) for place, words in _WORDS.items() for word in words
    ]
    return " ".join(word.lower() for word, on in flags if on)
