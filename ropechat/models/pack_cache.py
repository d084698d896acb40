"""The caches on disk, of packed weights and of keys and values: listing their files, choosing their mode.

The compiled engine writes and reads the files (their layouts are in rust/core/src/model/pack/ and
rust/core/src/kv_cache/file.rs). Deleting them is safe.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ropechat.errors import FileAccessError, RequestError
from ropechat.util import kv_files
from ropechat.util.paths import cache_folder

ENV = "ROPECHAT_CACHE"
_MAGIC, _KV_MAGIC = b"RCPACK\0\x02", b"RCKEYS\0\x01"
_PREFIX = 24  # magic, the header's length, its checksum
_MAX_HEADER = 256 << 20
_PACK, _UNFINISHED = ".pack", (".part", ".partial")


class PackedEntry(NamedTuple):
    """One file of packed weights, or of keys and values.

    model: the file that lists the model's tensors, "" if unreadable. dtype: of weights the requested one, or
    auto (as stored). size: bytes on disk. used: time of last use, in seconds since the epoch.
    """

    path: Path
    model: str
    dtype: str
    size: int
    used: float


def packed_folder() -> Path:
    """The folder of packed weights; it may not exist."""
    return cache_folder() / "packed"


def cache_mode(chosen: str | None = None) -> str:
    """The cache mode: auto, off, or all (small models too).

    chosen: overrides ROPECHAT_CACHE. Raises RequestError for any other value.
    """
    value = (os.environ.get(ENV) or "auto") if chosen is None else chosen
    if value not in ("auto", "off", "all"):
        raise RequestError(f"{ENV if chosen is None else 'cache'}: must be auto, off or all (got {value!r})")
    return value


def load_options(mode: str) -> dict[str, Any]:
    """The options of `_core.Engine.load` for a mode of `cache_mode`."""
    if mode == "off":
        return {}
    return {"pack_cache": packed_folder(), **({"pack_smallest": 0} if mode == "all" else {})}


def packed_entries() -> list[PackedEntry]:
    """All files in the folder, most recently used first. Raises FileAccessError."""
    return _by_use(_entries(packed_folder(), _PACK, _MAGIC))


def kv_entries() -> list[PackedEntry]:
    """The files with KV caches, most recently used first. Raises FileAccessError."""
    return _by_use(_entries(kv_files.kv_folder(), kv_files.SUFFIX, _KV_MAGIC))


def _by_use(entries: Iterator[PackedEntry]) -> list[PackedEntry]:
    return sorted(entries, key=lambda entry: (-entry.used, entry.path.name))


def _entries(folder: Path, suffix: str, magic: bytes) -> Iterator[PackedEntry]:
    try:
        found = [path for path in folder.iterdir() if path.name.endswith((suffix, *_UNFINISHED))]
    except FileNotFoundError:
        return
    except OSError as error:
        raise FileAccessError(f"{folder}: {error.strerror}") from None
    for path in found:
        try:
            status, header = path.lstat(), _header(path, magic)
        except OSError:
            continue  # deleted meanwhile, or inaccessible
        model, dtype = str(header.get("model", "")), str(header.get("dtype", ""))
        yield PackedEntry(path, model, dtype, status.st_size, status.st_mtime)


def _header(path: Path, magic: bytes) -> dict[str, Any]:
    """The header of a file; {} if unreadable."""
    import json  # imported here: only listings read headers

    with path.open("rb") as file:
        prefix = file.read(_PREFIX)
        length = int.from_bytes(prefix[8:16], "little")
        if len(prefix) < _PREFIX or not prefix.startswith(magic) or length > _MAX_HEADER:
            return {}
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError):
            return {}
    return header if isinstance(header, dict) else {}
