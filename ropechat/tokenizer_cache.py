"""Checked tokenizer files, kept small: the next start neither parses nor checks the vocabulary again.

To parse a tokenizer.json of 49,152 tokens, check it and hand it to the tokenizers library takes 150 ms of a
start; the same file with its merges as single texts, its check remembered, 45. A kept file is a line of JSON
(what is known about the file, without vocabulary and merges), then the tokenizer.json for the library.
"""

import json
import os
from binascii import crc32
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropechat.paths import cache_folder

VERSION = 1
"""Raised when what is checked, or what is kept, changes."""
_WORTH = 256 << 10  # bytes of tokenizer.json
_MOST_FILES = 32
_BULK = ("vocab", "merges")


@dataclass(frozen=True)
class Kept:
    """What `recall` found.

    data: the parsed tokenizer.json without its model's vocabulary and merges. content: a tokenizer.json that
    means the same. holes: ids without a token, see `tokenizer_file.fix_numbers`.
    """

    data: dict[str, Any]
    content: bytes
    holes: frozenset[int]


def _folder() -> Path:
    return cache_folder() / "tokenizers"


def _key(file: Path, vocab_size: int) -> str | None:
    """Everything that the outcome of the check follows from; None where nothing is kept."""
    if os.environ.get("ROPECHAT_CACHE") == "off":
        return None
    try:
        real = file.resolve(strict=True)
        status = real.stat()
    except (OSError, RuntimeError):
        return None
    if status.st_size < _WORTH:
        return None
    return json.dumps([VERSION, vocab_size, str(file), str(real), status.st_size, status.st_mtime_ns])


def _place(key: str) -> Path:
    return _folder() / f"{crc32(key.encode()):08x}.json"


def _is_private(path: Path) -> bool:
    status = path.lstat()
    return not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & 0o022)


def recall(file: Path, vocab_size: int) -> Kept | None:
    """What was kept of this tokenizer.json, as it is now, for a model with so many ids."""
    key = _key(file, vocab_size)
    if key is None:
        return None
    place = _place(key)
    try:
        if place.is_symlink() or not _is_private(place) or not _is_private(place.parent):
            return None
        with place.open("rb") as kept_file:
            known = json.loads(kept_file.readline())
            content = kept_file.read()
        if known["key"] != key or known["crc32"] != crc32(content):
            return None
        kept = Kept(known["data"], content, frozenset(known["holes"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    with suppress(OSError):
        os.utime(place)  # used last, thrown away last
    return kept


def keep(file: Path, vocab_size: int, data: dict[str, Any], holes: frozenset[int]) -> None:
    """Keep a tokenizer.json that was checked and that the library took; where that fails, nothing happens."""
    key = _key(file, vocab_size)
    if key is None:
        return
    model = data["model"]
    content = json.dumps(data | {"model": model | _joined(model)}, ensure_ascii=False).encode()
    small = data | {"model": {name: value for name, value in model.items() if name not in _BULK}}
    known = {"key": key, "crc32": crc32(content), "holes": sorted(holes), "data": small}
    place = _place(key)
    part = place.with_suffix(f".{os.getpid()}.part")
    with suppress(OSError):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_room(place.parent)
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                out.write(json.dumps(known).encode() + b"\n" + content)
            part.replace(place)
        finally:
            part.unlink(missing_ok=True)


def _joined(model: dict[str, Any]) -> dict[str, Any]:
    """Merges as the single texts of older files, which the library reads in half the time; {} if unclear."""
    pairs = [merge for merge in model.get("merges") or [] if isinstance(merge, list)]
    if not pairs or any(" " in part for pair in pairs for part in pair):
        return {}
    return {"merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]}


def _make_room(folder: Path) -> None:
    """Remove what was used least lately, so that one more file is not too many."""
    files = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    for path in files[: max(0, len(files) - _MOST_FILES + 1)]:
        path.unlink(missing_ok=True)
