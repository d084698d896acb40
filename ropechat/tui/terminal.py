"""Keeps everything but the UI off the screen while the UI has it."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager
from enum import StrEnum
from typing import IO, TYPE_CHECKING, Any, cast

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS

from ropechat.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator

KEPT = 64 * 1024  # bytes of stray output that are shown afterwards


class _Extra(StrEnum):
    """Keys that Textual has no name for."""

    ALT_ENTER = "alt+enter"


def teach_keys() -> None:
    """Make alt+enter a key of its own in terminals that send ESC CR for it; Textual reads that as enter."""
    table = cast("dict[str, Any]", ANSI_SEQUENCES_KEYS)
    table["\x1b\r"] = table["\x1b\n"] = (_Extra.ALT_ENTER,)


@contextmanager
def owned_screen() -> Iterator[None]:
    """Keep the terminal for Textual, which draws through `sys.__stderr__`; fd 2 is a scratch file.

    Whatever a library wrote there meanwhile comes out, cleaned, once the screen is restored.
    """
    original = sys.__stderr__
    if os.name == "nt" or original is None or sys.platform == "emscripten":
        yield
        return
    sys.stderr.flush()
    terminal = os.dup(2)
    with (
        tempfile.TemporaryFile() as scratch,
        os.fdopen(terminal, "w", encoding="utf-8", newline="") as screen,
    ):
        os.dup2(scratch.fileno(), 2)
        sys.__stderr__ = screen  # type: ignore[misc]
        try:
            yield
        finally:
            sys.stderr.flush()
            screen.flush()
            sys.__stderr__ = original  # type: ignore[misc]
            os.dup2(terminal, 2)
            _replay(scratch)


def _replay(scratch: IO[bytes]) -> None:
    end = scratch.seek(0, os.SEEK_END)
    scratch.seek(max(0, end - KEPT))
    if text := clean(scratch.read().decode("utf-8", "replace")):
        sys.stderr.write(text if text.endswith("\n") else text + "\n")
        sys.stderr.flush()
