"""The journal of a batch run: its settings, then a record per row, in the order in which rows finish.

A stopped run leaves OUT.journal, and `--resume` continues it. Each record is one write, so a kill loses
at most the line in progress, which is removed when the journal is opened again.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ropechat.batch.hash_index import HashIndex, hash64
from ropechat.errors import BatchInputError, FileAccessError
from ropechat.util.file_lock import try_lock

SCHEMA = "ropechat.batch/1"
SYNC_SECONDS = 1.0
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
INTERNAL = ("req", "cached_tokens")
"""Fields of a journal's record that results do not have."""


def journal_name(out: Path) -> Path:
    """The journal of an output file."""
    return out.with_name(out.name + ".journal")


def record_key(id: object, sample: int, req: str) -> int:
    """The key of a record: the same only for the same request of the same row."""
    return hash64(json.dumps(id), str(sample), req)


def line_of(record: Mapping[str, Any]) -> str:
    """A record as one line of JSON, with the newline."""
    return _ENCODER.encode(record) + "\n"


class Journal:
    """An open journal, locked against other runs. Raises FileAccessError (disk full, no permission).

    lines: records in it. ok, failed: of these. Use `create` or `resume`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = 0
        self._size = self._begun = 0  # bytes of complete lines; of the line in progress
        self._synced = time.monotonic()
        self._index = HashIndex(wide=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._descriptor = os.open(path, flags, 0o666)
        except OSError as error:
            raise FileAccessError(f"{path}: {error.strerror}") from None
        try:
            locked = try_lock(self._descriptor)
        except OSError as error:
            os.close(self._descriptor)
            raise FileAccessError(f"{path}: {error.strerror}") from None
        if not locked:
            os.close(self._descriptor)
            raise BatchInputError(f"{path}: another run is writing it; wait until it ends")

    @classmethod
    def create(cls, path: Path, header: Mapping[str, Any]) -> "Journal":
        """Start an empty journal, discarding what is in the file."""
        made = cls(path)
        try:
            made._truncate(0)
            made._append(line_of(header))
        except BaseException:
            made.remove()
            made.close()
            raise
        made.lines = 0
        return made

    @classmethod
    def resume(cls, path: Path, *, retry_failed: bool = False) -> "Journal":
        """Open a journal with its records. An incomplete last line is moved to OUT.journal.torn.

        retry_failed: forget the records of failed rows. Raises BatchInputError for a damaged line before it.
        """
        made = cls(path)
        try:
            made._load(retry_failed=retry_failed)
        except BaseException:
            made.close()
            raise
        return made

    def _load(self, *, retry_failed: bool) -> None:
        self._cut_torn_line()
        with open(self._descriptor, "rb", closefd=False) as file:
            file.seek(0)
            header = file.readline()
            self.header = read_header(self.path, header)
            offset = len(header)
            for number, data in enumerate(file, 2):
                record = _record(data)
                if record is None:
                    raise BatchInputError(
                        f"{self.path}: line {number}: damaged; repair it, or replace --resume "
                        "by --overwrite to start again"
                    )
                if record["ok"] or not retry_failed:
                    self._index.put(record_key(record["id"], record["sample"], record["req"]), offset)
                    self.lines += 1
                offset += len(data)
        self._size = offset

    def _cut_torn_line(self) -> None:
        """Cut what follows the last newline; a record that lacks only its newline gets it."""
        size = os.fstat(self._descriptor).st_size
        tail, at = b"", size
        while at and b"\n" not in tail:
            start = max(0, at - (1 << 16))
            tail = os.pread(self._descriptor, at - start, start) + tail
            at = start
        torn = tail[tail.rfind(b"\n") + 1 :]
        if not torn:
            return
        try:
            if _record(torn) is not None:
                os.write(self._descriptor, b"\n")
                return
            with self.path.with_name(self.path.name + ".torn").open("wb") as file:
                file.write(torn)
            os.ftruncate(self._descriptor, size - len(torn))
        except OSError as error:
            raise FileAccessError(f"{self.path}: {error.strerror}") from None

    def find(self, id: object, sample: int, req: str) -> int | None:
        """The offset of the record of a request."""
        return self._index.get(record_key(id, sample, req))

    def append(self, record: Mapping[str, Any]) -> int:
        """Append a record as one line; return its offset."""
        at = self._size
        self._append(line_of(record))
        return at

    def _append(self, line: str) -> None:
        data = line.encode("utf-8")
        self._begun = len(data)
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
            self._count()
            if time.monotonic() - self._synced >= SYNC_SECONDS:
                self.sync()
        except OSError as error:
            with contextlib.suppress(OSError):
                self.settle()
            raise FileAccessError(f"{self.path}: {error.strerror}") from None

    def _count(self) -> None:
        self.lines, self._size, self._begun = self.lines + 1, self._size + self._begun, 0

    def sync(self) -> None:
        """Have everything on disk."""
        os.fsync(self._descriptor)
        self._synced = time.monotonic()

    def settle(self) -> None:
        """After an interruption: a line that was being written counts if it is whole, else it is cut off."""
        size = os.fstat(self._descriptor).st_size
        if self._begun and size == self._size + self._begun:
            self._count()
        elif self._begun and size > self._size:
            self._truncate(self._size)

    def _truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise FileAccessError(f"{self.path}: {error.strerror}") from None
        self._size, self._begun = size, 0

    def records(self, offsets: "Iterator[int]") -> Iterator[dict[str, Any]]:
        """Yield the records at these offsets."""
        with open(self._descriptor, "rb", closefd=False) as file:
            for offset in offsets:
                file.seek(offset)
                record: dict[str, Any] = json.loads(file.readline())
                yield record

    def record(self, offset: int) -> dict[str, Any]:
        """The record at an offset."""
        return next(self.records(iter((offset,))))

    def remove(self) -> None:
        """Delete the file, which is no longer needed."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def close(self) -> None:
        """Cut off a line in progress, and unlock."""
        with contextlib.suppress(OSError, FileAccessError):
            self.settle()
        with contextlib.suppress(OSError):
            os.close(self._descriptor)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _record(data: bytes) -> dict[str, Any] | None:
    """Parse a record; None if it is not one."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    known = isinstance(value, dict) and all(name in value for name in ("id", "sample", "req", "ok"))
    return value if known else None


def read_header(path: Path, line: bytes | None = None) -> dict[str, Any]:
    """The first line of a journal. Raises BatchInputError if it is not a journal's, FileAccessError."""
    try:
        if line is None:
            with path.open("rb") as file:
                line = file.readline()
        value = json.loads(line)
    except OSError as error:
        raise FileAccessError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise BatchInputError(
            f"{path}: line 1: must be the header of a journal ({SCHEMA}); replace --resume by "
            "--overwrite to start again"
        )
    return value


def has_header(path: Path) -> bool:
    """Whether the file has a complete first line; without one, nothing was done yet."""
    try:
        with path.open("rb") as file:
            return file.readline().endswith(b"\n")
    except OSError:
        return False


def differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Where two headers differ, for the fields of `now`: `dtype: q8_0 there, f32 here`."""
    found: list[str] = []
    for name, here in now.items():
        there = before.get(name)
        if isinstance(here, Mapping) and isinstance(there, Mapping):
            found += differences(there, here, f"{prefix}{name}.")
        elif json.dumps(there) != json.dumps(here):
            found.append(f"{prefix}{name}: {_short(there)} there, {_short(here)} here")
    return found


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:59] + "…"
