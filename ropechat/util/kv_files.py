"""The files with KV caches of chats and of shared prefixes, saved for the next time.

The compiled engine writes and reads them (their layout is in rust/core/src/kv_cache/file.rs). Deleting them
is safe: the text is then read again.
"""

import contextlib
import os
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from ropechat.util.paths import cache_folder

SUFFIX, PART = ".kv", ".part"
LEAST_KEPT = 32
"""Least tokens of a text that is written to a file."""
_PIECE = 1 << 20  # bytes that are overwritten at a time
_deleted: set[str] = set()  # chats that were deleted by this process
_erased: dict[str, int] = {}  # how often a part of a chat was deleted


class ChatFile(NamedTuple):
    """The file of a chat. erased: how often parts had been deleted when its KV cache was computed."""

    chat: str
    erased: int

    @classmethod
    def of(cls, chat: str) -> "ChatFile | None":
        """The file of a chat; None for a deleted one."""
        return None if chat in _deleted else cls(chat, _erased.get(chat, 0))

    @property
    def is_current(self) -> bool:
        """Whether nothing of the chat was deleted since."""
        return ChatFile.of(self.chat) == self

    def path(self, key: str) -> Path:
        """The path. key: the engine's `cache_key`."""
        return _path(self.chat, key)


def kv_folder() -> Path:
    """The folder of the files; it may not exist."""
    return cache_folder() / "kv"


def prefix_path(name: str, key: str) -> Path:
    """The file of a prefix that is kept under a name; key: as for `ChatFile.path`."""
    return _path(f"prefix {name}", key)


def _path(owner: str, key: str) -> Path:
    return kv_folder() / f"{_digest(owner)}-{_digest(key)}{SUFFIX}"


def forget_chat(chat: str) -> None:
    """From now on this process writes no file for a chat, which is deleted."""
    _deleted.add(chat)


def forget_part(chat: str) -> None:
    """From now on no keys are written that were read before a part of a chat was deleted."""
    _erased[chat] = _erased.get(chat, 0) + 1


def remove_files(chat: str) -> None:
    """Overwrite and remove the files of a chat, for all models.

    Unfinished files are removed first, so none of them gets its final name.
    """
    for suffix in (PART, SUFFIX):
        with contextlib.suppress(OSError):
            for path in kv_folder().glob(f"{_digest(chat)}-*{suffix}"):
                with contextlib.suppress(OSError):
                    _overwrite(path)
                path.unlink(missing_ok=True)


def _overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        left = os.fstat(file.fileno()).st_size
        while left > 0:
            left -= file.write(bytes(min(left, _PIECE)))
        file.flush()
        os.fsync(file.fileno())


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
