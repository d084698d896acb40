"""The text of a draft: long pastes folded to a label, and files attached as @path."""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from ropechat.util.encodings import decode
from ropechat.util.paths import complete_path, expand_home
from ropechat.util.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

MAX_FILE = 256 * 1024  # bytes
LEFT_OUT = 60  # characters of the line that says what is left out
FOLD_LINES, FOLD_CHARACTERS = 10, 2000
_NAMED = re.compile(r'(?<!\S)(@@?)("[^"\n]+"|[^\s"]+)')
_ENDING = re.compile(r"\.[A-Za-z]\w{0,4}\Z")
_HEAD = re.compile(r"\n\n([^\n]+):\Z")
_BLOCK = re.compile(r"([^\n]+):\n(`{3,})\n")
_GAP = "\n\n"  # between blocks and text
_BEGUN = re.compile(r'(?:^|(?<=\s))@("?)([^\s"]*|(?<=")[^"\n]*)$')


class AttachError(ValueError):
    """A file cannot be attached; the message says which and why."""


@dataclass(frozen=True)
class Unsent:
    """What was typed and not sent. others: changed texts that were shown in place of the draft.

    pastes: the text behind each label.
    """

    text: str = ""
    others: tuple[str, ...] = ()
    pastes: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """As it is stored; "" for nothing."""
        if not self.text.strip() and not self.others:
            return ""
        return json.dumps([self.text, self.others, dict(self.pastes)])

    @classmethod
    def of_json(cls, data: str) -> Unsent:
        """From what was stored; nothing of what is not valid."""
        try:
            text, others, pastes = json.loads(data) if data else ("", (), {})
            return cls(str(text), tuple(map(str, others)), {str(k): str(v) for k, v in pastes.items()})
        except (ValueError, TypeError, AttributeError):
            return cls()


class Pastes:
    """Long pastes: the composer shows a label for each, and the whole text is sent."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def fold(self, text: str) -> str:
        """The label of a long pasted text; a short one is returned as it is."""
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
        """The text with each label replaced by its paste; labels within a paste stay."""
        if not self._texts:
            return text
        words = re.compile("|".join(map(re.escape, self._texts)))
        return words.sub(lambda found: self._texts[found[0]], text)

    def within(self, texts: Iterable[str]) -> dict[str, str]:
        """The pastes whose labels are in these texts."""
        whole = "\n".join(texts) if self._texts else ""
        return {label: text for label, text in self._texts.items() if label in whole}

    def restore(self, pastes: Mapping[str, str]) -> dict[str, str]:
        """Take pastes back; the label of each that is in use for another text gets a new one."""
        renamed = {}
        for label, text in pastes.items():
            if self._texts.setdefault(label, text) != text:
                renamed[label] = self.fold(text)
        return renamed

    @property
    def texts(self) -> list[str]:
        """All that was pasted and folded."""
        return list(self._texts.values())

    def ending(self, text: str) -> str | None:
        """The label of a paste at the end of a text; None without one."""
        return next((label for label in self._texts if text.endswith(label)), None)


def read_attachments(
    text: str, known: Mapping[str, str] = MappingProxyType({}), *, cached: bool = False
) -> str:
    """Read the files that a text names as @path, as blocks; those in `known` are not read again.

    cached: nor those that did not change since they were read, as far as their times and sizes tell.
    Raises AttachError, also for a file that does not exist.
    """
    found: dict[str, str] = {}
    for match in _NAMED.finditer(text):
        name = _path_in(match[2], known) if match[1] == "@" else None
        if name is not None and name not in found:
            found[name] = known.get(name) or f"\n\n{name}:\n{_content(name, cached=cached)}"
    return "".join(found.values())


def attach(text: str, blocks: str) -> str:
    """The text as it is sent: the files come first, so that they are read while the text is written."""
    return f"{blocks.removeprefix(_GAP)}{_GAP}{text}" if blocks else text


def describe_file(block: str) -> str:
    """The size of an attached file, from its block in a sent text."""
    inner = block.split("\n")[4:-1]
    count = sum(map(len, inner)) + max(0, len(inner) - 1)
    return f"{len(inner):,} line{'s' * (len(inner) != 1)}, {count:,} characters"


@dataclass(frozen=True)
class Shortened:
    """A question of which only the end of its longest text is left. what: that text; units: of count."""

    text: str
    what: str
    count: int
    units: str


def keep_end(question: str, pasted: Iterable[str], share: float) -> Shortened | None:
    """Keep the end of the longest file or paste of a question, so that `share` of the question is left.

    Whole lines, if the end holds one; without files and pastes: of the question. A line says what is left
    out. None if that text is too small for it to help, or if all is one typed line.
    """
    written, files = split_attachments(question)
    parts = {name: "\n".join(block.split("\n")[4:-1]) for name, block in files.items()}
    longest = max((text for text in pasted if text in written), key=len, default="")
    parts |= {"the pasted text": longest} if longest else {}
    name = max(parts, key=lambda one: len(parts[one]), default="")
    part = parts[name] if name else question
    room = int(len(question) * share) - (len(question) - len(part)) - LEFT_OUT
    if room < 1 or not part or not (name or "\n" in part):
        return None
    lines = part.split("\n")
    count = size = 0
    while count < len(lines) and (size := size + len(lines[-1 - count]) + 1) <= room:
        count += 1
    if count:
        end, units = "\n".join(lines[-count:]), "lines"
        note = f"[the first {len(lines) - count:,} of {len(lines):,} lines are left out]"
    else:
        end, count, units = part[-room:], room, "characters"
        note = f"[the first {len(part) - room:,} of {len(part):,} characters are left out]"
    place = question.rfind(part)
    text = f"{question[:place]}{note}\n{end}{question[place + len(part) :]}"
    return Shortened(text, name or "the question", count, units)


def unescape(text: str) -> str:
    """The text as it is sent: @@path becomes @path where @path would attach a file."""
    return _NAMED.sub(lambda match: match[0][match[1] == "@@" and _path_in(match[2]) is not None :], text)


def split_attachments(sent: str) -> tuple[str, dict[str, str]]:
    """Split a sent text into what the user wrote and the attached blocks by file name.

    The blocks come first; in chats of older versions last.
    """
    before = _blocks_before(sent)
    while before and not {name for name, _, _ in before} <= _named(sent[before[-1][2] :]):
        before.pop()
    if before:
        files = {name: f"{_GAP}{sent[begin : end - len(_GAP)]}" for name, begin, end in before}
        return sent[before[-1][2] :], files
    end, blocks = len(sent), []
    while (head := _block_before(sent, end)) is not None:
        blocks.append(head)
        end = head[1]
    named = _named(sent[:end])
    files = {}
    end = len(sent)
    for name, begin in blocks:  # the last one first
        if name not in named:
            break
        files[name] = sent[begin:end]
        end = begin
    return sent[:end], dict(reversed(files.items()))


def _named(text: str) -> set[str]:
    """What a text names as @name, with and without the punctuation that may end a sentence."""
    found = [match[2] for match in _NAMED.finditer(text)]
    return {_trimmed(name) for name in found} | {name.strip('"') for name in found}


def _blocks_before(sent: str) -> list[tuple[str, int, int]]:
    """(name, begin, end with the gap behind it) of what may be a file's block at the beginning."""
    found, at = [], 0
    while (head := _BLOCK.match(sent, at)) is not None:
        inner = sent.find(f"\n{head[2]}{_GAP}", head.end() - 1)
        if inner < 0:
            break
        end = inner + 1 + len(head[2]) + len(_GAP)
        found.append((head[1], at, end))
        at = end
    return found


def _block_before(sent: str, end: int) -> tuple[str, int] | None:
    """(name, where it begins) of a file's block that ends at `end`; from there a block is read backwards."""
    inner = end
    while inner and sent[inner - 1] == "`":
        inner -= 1
    fence = sent[inner:end]
    ends = len(fence) >= 3 and sent[inner - 1] == "\n"
    begin = sent.rfind(f"\n{fence}\n", 0, inner) if ends else -1
    start = sent.rfind("\n\n", 0, begin) if begin > 0 else -1
    head = _HEAD.match(sent, start, begin) if start >= 0 else None
    return None if head is None else (head[1], start)


def to_draft(sent: str) -> str:
    """The draft that sends a question again, with the same files attached."""
    text, files = split_attachments(sent)

    def escape(match: re.Match[str]) -> str:
        name = _path_in(match[2], files) if match[1] == "@" else None
        return match[0] if name is None or name in files else f"@{match[0]}"

    return ("/" if text.startswith("/") else "") + _NAMED.sub(escape, text)


def _trimmed(name: str) -> str:
    """Strip quotes and the punctuation that ends a sentence."""
    return name.strip('"') if name.startswith('"') else name.rstrip(".,;:!?)")


def _path_in(name: str, known: Mapping[str, str] = MappingProxyType({})) -> str | None:
    """The path that an @name means; None for a word that is no file and does not look like a path.

    A path is quoted, or contains a slash or an ending such as .txt. A decorator with brackets and an address
    such as @name@a.host are words.
    """
    trimmed = _trimmed(name)
    for path in (name.strip('"'), trimmed):
        if path and (path in known or os.path.lexists(os.path.expanduser(path))):
            return path
    word = not trimmed or any(mark in trimmed for mark in "@()[]{}<>=")
    is_path = name.startswith('"') or (not word and ("/" in trimmed or _ENDING.search(trimmed)))
    return trimmed if is_path else None


def _content(name: str, *, cached: bool) -> str:
    """The content of a file, fenced."""
    path, shown = expand_home(name), one_line(f'"{name}"' if " " in name else name)
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise AttachError(f"@{shown}: a folder; name a text file, or @@{shown} to send it as text")
        if not stat.S_ISREG(status.st_mode):
            raise AttachError(f"@{shown}: must be a regular file; name a text file")
        identity = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        if not cached:
            _read_file.cache_clear()
        text, fault = _read_file(path, identity)
    except OSError as error:
        raise AttachError(f"@{shown}: {error.strerror or error}; @@{shown} sends it as text") from None
    if fault:
        raise AttachError(f"@{shown}: {fault}")
    return text


@lru_cache(maxsize=16)
def _read_file(path: Path, identity: tuple[int, ...]) -> tuple[str, str]:
    """(content, fenced; or why it cannot be attached). identity: changes with the file. Raises OSError."""
    with path.open("rb") as stream:
        data = stream.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        return "", f"more than {MAX_FILE // 1024} KiB; attach a part of it"
    try:
        text, _ = decode(data)
    except ValueError:
        text = "\0"
    if "\0" in text:
        return "", "not a text file; only text files can be attached"
    return _fenced(text.replace("\r\n", "\n")), ""


def _fenced(text: str) -> str:
    """The text in a fence that is longer than any fence within it."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}\n{text.rstrip(chr(10))}\n{fence}"


def find_path(before: str) -> tuple[int, str] | None:
    """(where it begins, the path so far) of an @path that a line ends with."""
    match = _BEGUN.search(before)
    return None if match is None else (match.start(), match[2])


def complete_attachment(begun: str) -> list[str]:
    """Complete a path: @paths of its folder's entries; a folder ends with a slash. Empty without matches."""
    return [f'@"{name}"' if " " in name else f"@{name}" for name in complete_path(begun)]
