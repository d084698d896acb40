"""The cache of validated vocabularies, so that the next start neither parses nor validates them again.

Parsing, validating and building a tokenizer.json of 49,152 tokens takes 150 ms; building it from this cache
45; reading the pages that a short text needs 2. A cached file is a CRC-32 and a line of JSON (facts about
the vocabulary, with its base tokens only), the tokenizer.json for the library, and the pages of a BPE
vocabulary.
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

VERSION = 6
"""Increased when the validation or the format of cached files changes."""
_MIN_FILE_BYTES = 256 << 10  # bytes of tokenizer.json
_MAX_FILES = 32
_BULK = ("vocab", "merges")


class CachedVocabulary(NamedTuple):
    """A cached vocabulary.

    key: see `key_of`. data: the parsed tokenizer.json, without merges and with only the base tokens given to
    `pack`. holes: ids without a token, see `validate.fix_numbers`. size: 1 + the largest id with a token.
    content(): an equivalent tokenizer.json; None if it was damaged meanwhile. pages: of a BPE vocabulary;
    None for others. config, end_ids: of a GGUF file, as in `Tokenizer`. confined: whether it works in a
    process with limits.
    """

    key: str
    data: dict[str, Any]
    holes: frozenset[int]
    size: int
    content: Callable[[], bytes | None]
    pages: Pages | None
    config: dict[str, Any] | None
    end_ids: frozenset[int]
    confined: bool


def _folder() -> Path:
    return cache_folder() / "tokenizers"


def key_of(file: Path, vocab_size: int) -> str | None:
    """A key of everything that validation depends on; None for a file too small to cache.

    The inode and its time of change, which no program sets, tell files of one size and time of writing apart:
    images of containers and reproducible builds have such.
    """
    try:
        real = file.resolve(strict=True)
        status = real.stat()
    except (OSError, RuntimeError):
        return None
    if status.st_size < _MIN_FILE_BYTES:
        return None
    state = [status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns]
    return json.dumps([VERSION, vocab_size, str(file), str(real), *state])


def _place(key: str) -> Path:
    return _folder() / f"{crc32(key.encode()):08x}.json"


def _is_private(path: Path) -> bool:
    status = path.lstat()
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def load_cached(file: Path, vocab_size: int) -> CachedVocabulary | None:
    """The cache entry of a tokenizer.json or GGUF file in its current state, or None."""
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
            _pages(place, pages_begin, known["pages"]) if known["pages"] else None,
            known["config"],
            frozenset(known["end_ids"]),
            bool(known["confined"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    with suppress(OSError):
        os.utime(place)  # for the removal of the least recently used
    return kept


def _part(place: Path, begin: int, end: int) -> bytes:
    with place.open("rb", buffering=0) as kept_file:
        kept_file.seek(begin)
        return kept_file.read(end - begin)


def _pages(place: Path, begin: int, size: int) -> Pages:
    return Pages(lambda first, end: _part(place, begin + first, begin + end), size)


def _verified(place: Path, begin: int, end: int, sum: int) -> bytes | None:
    try:
        content = _part(place, begin, end)
    except OSError:
        return None
    return content if crc32(content) == sum else None


class Packed(NamedTuple):
    """The parts of a cached file; see `CachedVocabulary`."""

    data: dict[str, Any]
    content: bytes
    pages: bytes
    size: int


def strip_vocabulary(data: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer.json without the vocabulary and merges of its model."""
    model = {name: value for name, value in data["model"].items() if name not in _BULK}
    return data | {"model": model}


def pack(data: dict[str, Any], letters: Mapping[str, int] | None) -> Packed | None:
    """The parts of a cached file; None for a vocabulary with a lone surrogate, which UTF-8 cannot encode.

    letters: the base tokens of a BPE vocabulary to store in pages too; see `partial_bpe.base_tokens`.
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
    """Tokens by id; added tokens take precedence over the model's."""
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
    confined: bool,
) -> None:
    """Cache a vocabulary. Errors of the disk are ignored."""
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
        "confined": confined,
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
    """Merges as single strings, which the library reads in half the time; {} if ambiguous."""
    pairs = [merge for merge in model.get("merges") or [] if not isinstance(merge, str)]
    if not pairs or any(" " in part for pair in pairs for part in pair):
        return {}
    return {"merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]}


def _make_room(folder: Path) -> None:
    """Remove the least recently used files to make room for one more."""
    files = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    for path in files[: max(0, len(files) - _MAX_FILES + 1)]:
        path.unlink(missing_ok=True)
