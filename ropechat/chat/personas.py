"""Personas: named system prompts, each a text file in the settings folder."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ropechat.errors import FileAccessError, RequestError
from ropechat.util.files import replacing
from ropechat.util.paths import personas_folder

if TYPE_CHECKING:
    from pathlib import Path

_NAME = re.compile(r"\w[\w -]{0,39}")
_LARGEST = 256 << 10  # bytes
_END = ".txt"


def _file(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise RequestError(f"persona: must be 1 to 40 letters, digits, spaces, - or _ (got {name!r:.20})")
    return personas_folder() / (name + _END)


def load() -> dict[str, str]:
    """Name -> text of all personas, sorted. Skips empty and oversized files. Raises FileAccessError."""
    found: dict[str, str] = {}
    try:
        for path in sorted(personas_folder().glob("*" + _END)):
            if _NAME.fullmatch(path.stem) and path.is_file() and path.stat().st_size <= _LARGEST:
                text = path.read_bytes().decode("utf-8", "replace").strip()
                found |= {path.stem: text} if text else {}
    except OSError as error:
        raise FileAccessError(f"{personas_folder()}: {error.strerror}") from None
    return found


def save(name: str, text: str) -> Path:
    """Save a persona, replacing an older one. Raises RequestError, FileAccessError."""
    path = _file(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(f"{text.strip()}\n".encode("utf-8", "replace"))
    except OSError as error:
        raise FileAccessError(f"{path}: {error.strerror}") from None
    return path


def delete(name: str) -> None:
    """Delete a persona. Raises RequestError, FileAccessError."""
    path = _file(name)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise FileAccessError(f"{path}: {error.strerror}") from None
