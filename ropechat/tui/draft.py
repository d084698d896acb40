"""What a draft stands for: long pastes folded to a word, and files named as @path."""

from __future__ import annotations

import os
import re
import stat
from itertools import islice
from pathlib import Path

from ropechat.text import clean, one_line

MAX_FILE = 256 * 1024  # bytes
FOLD_LINES, FOLD_CHARACTERS = 10, 2000
_LISTED = 5000  # entries of a folder that are looked at
_NAMED = re.compile(r'(?<!\S)@("[^"\n]+"|[^\s"]+)')
_BEGUN = re.compile(r'(?:^|(?<=\s))@("?)([^\s"]*|(?<=")[^"\n]*)$')


class AttachError(ValueError):
    """A file that was named cannot be put in; the message says which and why."""


class Pastes:
    """Long pastes: the composer shows a word for each, and the whole text is sent."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def fold(self, text: str) -> str:
        """What stands for a pasted text; short ones stand for themselves."""
        lines = len(text.removesuffix("\n").split("\n"))
        if lines < FOLD_LINES and len(text) < FOLD_CHARACTERS:
            return text
        size = f"{lines:,} lines" if lines >= FOLD_LINES else f"{len(text):,} characters"
        label, number = f"[pasted {size}]", 1
        while self._texts.get(label, text) != text:
            number += 1
            label = f"[pasted {size} #{number}]"
        self._texts[label] = text
        return label

    def unfold(self, text: str) -> str:
        """The text with every paste in its place; a paste that holds such a word keeps it."""
        if not self._texts:
            return text
        words = re.compile("|".join(map(re.escape, self._texts)))
        return words.sub(lambda found: self._texts[found[0]], text)

    def ending(self, text: str) -> str | None:
        """The word for a paste at the end of a text."""
        return next((label for label in self._texts if text.endswith(label)), None)


def attachments(text: str) -> str:
    """The files that a text names as @path, to be put behind it. Raises AttachError."""
    found: dict[str, str] = {}
    for match in _NAMED.finditer(text):
        name = match[1].strip('"')
        for wanted in (name, name.rstrip(".,;:!?)")):
            if wanted and os.path.lexists(os.path.expanduser(wanted)):
                found.setdefault(wanted, _content(wanted))
                break
    return "".join(f"\n\n{name}:\n{_fenced(content)}" for name, content in found.items())


def _content(name: str) -> str:
    path, shown = Path(name).expanduser(), one_line(name)
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise AttachError(f"@{shown}: a folder; name a text file")
        if not stat.S_ISREG(status.st_mode):
            raise AttachError(f"@{shown}: no regular file; name a text file")
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE + 1)
    except OSError as error:
        raise AttachError(f"@{shown}: {error.strerror or error}") from None
    if len(data) > MAX_FILE:
        raise AttachError(f"@{shown}: more than {MAX_FILE // 1024} KiB; attach a part of it")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise AttachError(f"@{shown}: not UTF-8 text; only text can be attached")
    return text.replace("\r\n", "\n")


def _fenced(text: str) -> str:
    """In a fence longer than any within."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}\n{text.rstrip(chr(10))}\n{fence}"


def begun_path(before: str) -> tuple[int, str] | None:
    """(where it begins, the path so far) of an @path that a line ends with."""
    match = _BEGUN.search(before)
    return None if match is None else (match.start(), match[2])


def paths(begun: str, limit: int = 50) -> list[str]:
    """What could be meant: @paths of a folder's entries; folders end with a slash. None elsewhere."""
    head, _, start = begun.rpartition("/")
    folder = Path(f"{head}/" if "/" in begun else ".").expanduser()
    try:
        with os.scandir(folder) as entries:
            found = sorted(
                (entry.name + ("/" if entry.is_dir() else ""))
                for entry in islice(entries, _LISTED)
                if entry.name.startswith(start) and (start or not entry.name.startswith("."))
            )
    except (OSError, ValueError, RuntimeError):
        return []
    whole = [(f"{head}/" if "/" in begun else "") + name for name in found if _is_plain(name)]
    return [f'@"{name}"' if " " in name else f"@{name}" for name in whole[:limit]]


def _is_plain(name: str) -> bool:
    return clean(name) == name and not re.search(r'["\n\t]', name)
