"""Packed weights that earlier starts left on disk: where, of what, how many bytes.

The compiled engine writes and reads the files (rust/src/model/pack/file.rs draws them); here is what people do with
them. They can always be made again.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ropechat.errors import FileAccessError, RequestError
from ropechat.util.paths import cache_folder

ENV = "ROPECHAT_CACHE"
_MAGIC = b"RCPACK\0\x02"
_PREFIX = 24  # magic, the header's length, its checksum
_MAX_HEADER = 256 << 20
_SUFFIXES = (".pack", ".part")


class PackedEntry(NamedTuple):
    """One file of packed weights.

    model: the file that lists the model's tensors, "" where that cannot be read. dtype: the one asked for, or
    auto: as stored. size: bytes on disk. used: seconds since the epoch.
    """

    path: Path
    model: str
    dtype: str
    size: int
    used: float


def packed_folder() -> Path:
    """Where packed weights lie; it need not exist."""
    return cache_folder() / "packed"


def cache_mode(chosen: str | None = None) -> str:
    """What is kept on disk for the next start: auto, off, or all (small models too).

    chosen: goes before ROPECHAT_CACHE. Raises RequestError for any other value.
    """
    value = (os.environ.get(ENV) or "auto") if chosen is None else chosen
    if value not in ("auto", "off", "all"):
        raise RequestError(f"{ENV if chosen is None else 'cache'}: {value!r}; auto, off and all are allowed")
    return value


def load_options(mode: str) -> dict[str, Any]:
    """What `_core.Engine.load` is told: the folder, or nothing in mode off (see `cache_mode`)."""
    if mode == "off":
        return {}
    return {"pack_cache": packed_folder(), **({"pack_smallest": 0} if mode == "all" else {})}


def packed_entries() -> list[PackedEntry]:
    """All files in the folder, what was used last first. Raises FileAccessError."""
    return sorted(_entries(), key=lambda entry: (-entry.used, entry.path.name))


def _entries() -> Iterator[PackedEntry]:
    try:
        found = [path for path in packed_folder().iterdir() if path.name.endswith(_SUFFIXES)]
    except FileNotFoundError:
        return
    except OSError as error:
        raise FileAccessError(f"{packed_folder()}: {error.strerror}") from None
    for path in found:
        try:
            status, header = path.lstat(), _header(path)
        except OSError:
            continue  # gone meanwhile, or not ours
        model, dtype = str(header.get("model", "")), str(header.get("dtype", ""))
        yield PackedEntry(path, model, dtype, status.st_size, status.st_mtime)


def _header(path: Path) -> dict[str, Any]:
    """The header of a file, {} when it has none that can be read."""
    import json  # late: only lists of packs look into them

    with path.open("rb") as file:
        prefix = file.read(_PREFIX)
        length = int.from_bytes(prefix[8:16], "little")
        if len(prefix) < _PREFIX or not prefix.startswith(_MAGIC) or length > _MAX_HEADER:
            return {}
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError):
            return {}
    return header if isinstance(header, dict) else {}
