"""The output of a batch run: stdout, or a file that gets its final name when it is complete."""

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from ropechat.errors import BatchInputError, FileAccessError

SYNC_SECONDS = 1.0


def partial_name(path: Path) -> Path:
    """The name of the file until the run is complete."""
    return path.with_name(path.name + ".partial")


def refuse_output(path: Path, is_input: Callable[[Path], bool], *, overwrite: bool) -> None:
    """Raise BatchInputError if the output would overwrite a file, FileAccessError if it is not writable.

    is_input: whether a file is the input.
    """
    folder, partial = path.parent, partial_name(path)
    if not folder.is_dir():
        raise FileAccessError(f"{path}: folder {folder} not found; create it, or choose another output")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise FileAccessError(f"{path}: folder {folder} is not writable; choose another output")
    for name in (path, partial):
        if name.is_symlink():
            raise BatchInputError(f"{name}: must not be a symbolic link; give the file itself (- is stdout)")
        if is_input(name):
            raise BatchInputError(f"{name}: is the input; choose another output")
    if path.exists() and not path.is_file():
        raise BatchInputError(f"{path}: must be a regular file; choose another output (- is stdout)")
    if overwrite:
        return
    if path.exists():
        raise BatchInputError(f"{path}: exists; choose another output or add --overwrite")
    if partial.exists():
        raise BatchInputError(f"{partial}: left by a stopped run; add --overwrite to discard it")


def line_of(record: dict[str, Any]) -> str:
    """A record as one line of JSON, with the newline."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


class Sink(Protocol):
    """A destination of records."""

    def write(self, record: dict[str, Any]) -> None:
        """Write a record."""


class Printed:
    """Writes each record with `put`, which writes a line to stdout and flushes; raises OSError."""

    def __init__(self, put: Callable[[str], None]) -> None:
        self._put = put
        self.lines = 0

    def write(self, record: dict[str, Any]) -> None:
        """Write a record as one line."""
        self._put(line_of(record))
        self.lines += 1


class Output:
    """Appends lines to OUT.partial, synced to disk every second; `complete` renames it.

    Without `complete` the partial file is kept. Raises FileAccessError (disk full, no permission).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partial = partial_name(path)
        self.lines = 0
        self._size = self._begun = 0  # bytes of complete lines; of the line in progress
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
                raise BatchInputError(
                    f"{self.partial}: another run is writing it; wait until it ends"
                ) from None
            raise FileAccessError(f"{self.partial}: {error.strerror}") from None

    def write(self, record: dict[str, Any]) -> None:
        """Append a record as one line."""
        data = line_of(record).encode("utf-8")
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
        return FileAccessError(
            f"{self.partial}: {error.strerror}; it contains the first {self.lines} results"
        )

    def __enter__(self) -> "Output":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self.settle()
            os.close(self._descriptor)
