"""Checked vocabularies, kept: the next start neither parses nor checks them again.

To parse a tokenizer.json of 49,152 tokens, check it and hand it to the tokenizers library takes 150 ms of a
start; the same file with its merges as single texts, its check remembered, 45; what a short text needs of
its pages, 2. A kept file is a line of JSON after its CRC-32 (what is known about the file, with the letters
of its vocabulary only), then the tokenizer.json for the library, then a BPE vocabulary's pages.
"""

import json
import os
from binascii import crc32
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ropechat.tokenizer.vocabulary_pages import Pages, lay_out
from ropechat.util.paths import cache_folder

VERSION = 4
"""Raised when what is checked, or what is kept, changes."""
_MIN_FILE_BYTES = 256 << 10  # bytes of tokenizer.json
_MAX_FILES = 32
_BULK = ("vocab", "merges")


class CachedVocabulary(NamedTuple):
    """What `load_cached` found.

    key: see `key_of`. data: the parsed tokenizer.json; its model has no merges, and as vocabulary the letters
    given to `pack`. holes: ids without a token, see `tokenizer.file_check.fix_numbers`. size: 1 + the largest
    id that has a token. content(): a tokenizer.json that means the same, None when it was damaged since.
    pages: of a BPE vocabulary, None for one that has to be read whole. config, end_ids: what a GGUF file says
    besides, as `Tokenizer` has them. slow: it has a regex that takes more than linear time.
    """

    key: str
    data: dict[str, Any]
    holes: frozenset[int]
    size: int
    content: Callable[[], bytes | None]
    pages: Pages | None
    config: dict[str, Any] | None
    end_ids: frozenset[int]
    slow: bool


def _folder() -> Path:
    return cache_folder() / "tokenizers"


def key_of(file: Path, vocab_size: int) -> str | None:
    """Everything that the outcome of the check follows from; None for a file that is not worth keeping."""
    try:
        real = file.resolve(strict=True)
        status = real.stat()
    except (OSError, RuntimeError):
        return None
    if status.st_size < _MIN_FILE_BYTES:
        return None
    return json.dumps([VERSION, vocab_size, str(file), str(real), status.st_size, status.st_mtime_ns])


def _place(key: str) -> Path:
    return _folder() / f"{crc32(key.encode()):08x}.json"


def _is_private(path: Path) -> bool:
    status = path.lstat()
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def load_cached(file: Path, vocab_size: int) -> CachedVocabulary | None:
    """What was kept of this tokenizer.json or GGUF file, as it is now, for a model with so many ids."""
    key = key_of(file, vocab_size)
    if key is None:
        return None
    place = _place(key)
    try:
        if place.is_symlink() or not _is_private(place) or not _is_private(place.parent):
            return None
        with place.open("rb") as kept_file:
            line = kept_file.readline()
            end = os.fstat(kept_file.fileno()).st_size
        sum, _, text = line.rstrip(b"\n").partition(b" ")
        known = json.loads(text)
        size, content_sum = known["content"]
        pages_begin = len(line) + size
        if int(sum, 16) != crc32(text) or known["key"] != key or end != pages_begin + known["pages"]:
            return None
        kept = CachedVocabulary(
            key,
            known["data"],
            frozenset(known["holes"]),
            known["size"],
            lambda: _verified(place, len(line), pages_begin, content_sum),
            _pages(place, pages_begin) if known["pages"] else None,
            known["config"],
            frozenset(known["end_ids"]),
            bool(known["slow"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    with suppress(OSError):
        os.utime(place)  # used last, thrown away last
    return kept


def _part(place: Path, begin: int, end: int) -> bytes:
    with place.open("rb", buffering=0) as kept_file:
        kept_file.seek(begin)
        return kept_file.read(end - begin)


def _pages(place: Path, begin: int) -> Pages:
    return Pages(lambda first, end: _part(place, begin + first, begin + end))


def _verified(place: Path, begin: int, end: int, sum: int) -> bytes | None:
    try:
        content = _part(place, begin, end)
    except OSError:
        return None
    return content if crc32(content) == sum else None


class Packed(NamedTuple):
    """A checked tokenizer.json in the parts of a kept file; see `CachedVocabulary`."""

    data: dict[str, Any]
    content: bytes
    pages: bytes
    size: int


def strip_vocabulary(data: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer.json without the vocabulary and merges of its model."""
    model = {name: value for name, value in data["model"].items() if name not in _BULK}
    return data | {"model": model}


def pack(data: dict[str, Any], letters: Mapping[str, int] | None) -> Packed | None:
    """The parts of a kept file; None for a file with a lone surrogate, which is written in escapes only.

    letters: what a BPE vocabulary is without its merges, which then is kept in pages too; see
    `tokenizer.short_texts.letters_of`.
    """
    model, small = data["model"], strip_vocabulary(data)
    tokens = _tokens(data)
    try:
        content = json.dumps(data | {"model": model | _joined(model)}, ensure_ascii=False).encode()
        pages = b"" if letters is None else lay_out(model["vocab"], model["merges"], tokens)
    except UnicodeEncodeError:
        return None
    if letters is not None:
        small["model"]["vocab"] = dict(letters)
    return Packed(small, content, pages, len(tokens))


def _tokens(data: dict[str, Any]) -> list[str | None]:
    """Token by id; added ones go before the model's."""
    vocab, added = data["model"]["vocab"], data.get("added_tokens") or []
    named = [(token, id) for token, id in vocab.items()] if isinstance(vocab, dict) else []
    if isinstance(vocab, list):  # Unigram: [token, score] by id
        named = [(entry[0], id) for id, entry in enumerate(vocab)]
    named += [(token["content"], token["id"]) for token in added]
    tokens: list[str | None] = [None] * (1 + max((id for _, id in named), default=-1))
    for token, id in named:
        tokens[id] = token
    return tokens


def save(
    file: Path,
    vocab_size: int,
    packed: Packed,
    holes: frozenset[int],
    config: dict[str, Any] | None,
    end_ids: frozenset[int],
    *,
    slow: bool,
) -> None:
    """Keep what was checked and what the library took; where that fails, nothing happens."""
    key = key_of(file, vocab_size)
    if key is None:
        return
    known = {
        "key": key,
        "content": [len(packed.content), crc32(packed.content)],
        "pages": len(packed.pages),
        "size": packed.size,
        "holes": sorted(holes),
        "config": config,
        "end_ids": sorted(end_ids),
        "slow": slow,
        "data": packed.data,
    }
    text = json.dumps(known).encode()
    place = _place(key)
    part = place.with_suffix(f".{os.getpid()}.part")
    with suppress(OSError):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_room(place.parent)
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                out.writelines([b"%08x " % crc32(text), text, b"\n", packed.content, packed.pages])
            part.replace(place)
        finally:
            part.unlink(missing_ok=True)


def _joined(model: dict[str, Any]) -> dict[str, Any]:
    """Merges as the single texts of older files, which the library reads in half the time; {} if unclear."""
    pairs = [merge for merge in model.get("merges") or [] if not isinstance(merge, str)]
    if not pairs or any(" " in part for pair in pairs for part in pair):
        return {}
    return {"merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]}


def _make_room(folder: Path) -> None:
    """Remove what was used least lately, so that one more file is not too many."""
    files = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    for path in files[: max(0, len(files) - _MAX_FILES + 1)]:
        path.unlink(missing_ok=True)
