"""Saves KV caches of chats, in a thread of low priority that computes nothing."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from ropechat.engine.native import load_core
from ropechat.errors import RopechatError
from ropechat.util.kv_files import remove_files

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from ropechat.engine import _core
    from ropechat.util.kv_files import ChatFile

NICENESS = 19  # the lowest priority


class KvWriter:
    """Writes files one after another; of each file only the newest content.

    A file that cannot be written (no room, no permission) is not: the text is then read again.
    """

    def __init__(self) -> None:
        self._waiting: dict[Path, tuple[ChatFile, _core.KeptPrefix, int]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._cancel: Any = None  # of the file that is being written
        self._closed = False

    def put(self, file: ChatFile, path: Path, prefix: _core.KeptPrefix, total: int) -> None:
        """Write a file soon. total: bytes of all files at most."""
        with self._changed:
            self._waiting[path] = (file, prefix, total)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ropechat-kv", daemon=True)
                self._thread.start()

    def close(self, limit: float) -> bool:
        """Write the waiting files, for at most `limit` seconds; False if the thread is still writing then."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is None:
            return True
        self._thread.join(limit)
        if self._thread.is_alive():
            with self._changed:
                self._waiting.clear()
                if self._cancel is not None:
                    self._cancel.cancel()
            self._thread.join(0.1)
        return not self._thread.is_alive()

    def _run(self) -> None:
        if sys.platform == "linux":
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if not self._waiting:
                    return
                path = next(iter(self._waiting))
                file, prefix, total = self._waiting.pop(path)
                self._cancel = load_core().CancelToken()
            if file.is_current:
                with suppress(RopechatError):
                    prefix.write(path, self._cancel, total=total)
                if not file.is_current:  # deleted meanwhile
                    remove_files(file.chat)
            del prefix  # its memory is the cache's
