"""Edits a text in the user's editor while the chat is suspended."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ropechat.tui.terminal.screen import ignore_interrupts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from textual.app import App

MAX_TEXT = 4 << 20  # bytes


class EditorError(Exception):
    """The editor cannot be used; the message says why."""


def editor_command(environ: Mapping[str, str]) -> list[str]:
    """The command of the editor. Raises EditorError when none is set or it cannot be parsed."""
    command = environ.get("VISUAL", "").strip() or environ.get("EDITOR", "").strip()
    if not command:
        raise EditorError("no editor: set $VISUAL or $EDITOR")
    try:
        return shlex.split(command)
    except ValueError as error:
        raise EditorError(f"$VISUAL or $EDITOR: {error}") from None


def edit(app: App[None], command: list[str], text: str) -> str:
    """Let the user edit a text; returns it. Raises EditorError without a changed text."""
    with tempfile.TemporaryDirectory(prefix="ropechat-") as folder:
        file = Path(folder) / "message.md"
        file.write_text(text, encoding="utf-8", errors="replace")
        try:
            with app.suspend(), ignore_interrupts():
                code = subprocess.call([*command, str(file)], stderr=sys.__stderr__)
        except OSError as error:
            raise EditorError(f"{command[0]}: {error.strerror or error}") from None
        if code:
            raise EditorError(f"{command[0]} ended with exit code {code}; nothing was changed")
        try:
            with file.open("rb") as stream:
                data = stream.read(MAX_TEXT + 1)
        except OSError as error:
            raise EditorError(f"{file.name}: {error.strerror or error}; nothing was changed") from None
    if len(data) > MAX_TEXT:
        raise EditorError("more than 4 MiB; nothing was changed")
    return data.decode("utf-8", "replace").replace("\r\n", "\n").removesuffix("\n")
