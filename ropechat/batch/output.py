"""The file of results: written line by line beside its final name, which it gets when it is complete."""

import contextlib
import errno
import fcntl
import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from ropechat.errors import BatchInputError, FileAccessError

SYNC_SECONDS = 1.0


def partial_name(path: Path) -> Path:
    """Where the lines stand until the run is complete."""
    return path.with_name(path.name + ".partial")


def refuse_output(path: Path, source: Path, *, overwrite: bool) -> None:
    """Raise BatchInputError for an output that would destroy something."""
    partial = partial_name(path)
    for name in (path, partial):
        if name.is_symlink():
            raise BatchInputError(f"{name}: a symbolic link; name the file itself")
        if name.exists() and source.exists() and name.samefile(source):
            raise BatchInputError(f"{name}: is the input; name another output")
    if path.exists() and not path.is_file():
        raise BatchInputError(f"{path}: not a regular file; name another output")
    if overwrite:
        return
    if path.exists():
        raise BatchInputError(f"{path}: exists; name another output or give --overwrite")
    if partial.exists():
        raise BatchInputError(f"{partial}: left by a run that was stopped; give --overwrite to discard it")


class Output:
    """Appends whole lines to OUT.partial, synced to disk each second; `complete` gives it its name.

    Leaving without `complete` keeps the partial file. Raises FileAccessError (disk full, no permission).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partial = partial_name(path)
        self.lines = 0
        self._size = self._begun = 0  # bytes of whole lines; of the line that is being written
        self._synced = time.monotonic()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._descriptor = os.open(self.partial, flags, 0o666)
        except OSError as error:
            raise FileAccessError(f"{self.partial}: {error.strerror}") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, 0)
        except OSError as error:
            os.close(self._descriptor)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise BatchInputError(f"{self.partial}: another run writes it; wait for its end") from None
            raise FileAccessError(f"{self.partial}: {error.strerror}") from None

    def write(self, record: dict[str, Any]) -> None:
        """Append a record as one line."""
        data = json.dumps(record, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"
        self._begun = len(data)
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
            self._count()
            if time.monotonic() - self._synced >= SYNC_SECONDS:
                os.fsync(self._descriptor)
                self._synced = time.monotonic()
        except OSError as error:
            raise self._failure(error) from None

    def _count(self) -> None:
        self.lines, self._size, self._begun = self.lines + 1, self._size + self._begun, 0

    def settle(self) -> None:
        """After an interruption: a line that was being written counts if it is whole, else it is cut off."""
        size = os.fstat(self._descriptor).st_size
        if self._begun and size == self._size + self._begun:
            self._count()
        elif size > self._size:
            os.ftruncate(self._descriptor, self._size)

    def complete(self) -> None:
        """Sync and rename to the final name."""
        try:
            os.fsync(self._descriptor)
            os.replace(self.partial, self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise self._failure(error) from None

    def _failure(self, error: OSError) -> FileAccessError:
        with contextlib.suppress(OSError):
            self.settle()
        return FileAccessError(f"{self.partial}: {error.strerror}; it holds the first {self.lines} results")

    def __enter__(self) -> "Output":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self.settle()
            os.close(self._descriptor)
