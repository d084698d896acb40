"""The journal of a batch run: its settings, then a record per row, in the order in which rows finish.

A stopped run leaves OUT.journal, and `--resume` continues it. Each record is one write, so a kill loses
at most the line in progress, which is removed when the journal is opened again. Each line ends with a
checksum, so that a result damaged on disk is not taken for one.
"""

import contextlib
import json
import os
import shutil
import time
from binascii import crc32
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ropechat.batch.hash_index import HashIndex, hash64
from ropechat.errors import BatchInputError, FileAccessError
from ropechat.util.files import try_lock

SCHEMA = "ropechat.batch/2"
SYNC_SECONDS = 1.0
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_SUM = b',"crc32":"'
_BLOCK = 1 << 16
OF_RESULTS = ("columns", "agree", "excel")
"""Fields of a header that records do not depend on."""
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


def sealed(record: Mapping[str, Any]) -> bytes:
    """A record as a line of the journal: `line_of` with the checksum of its JSON as the last field."""
    data = _ENCODER.encode(record).encode()
    return b'%b%b%08x"}\n' % (data[:-1], _SUM, crc32(data))


def _unsealed(line: bytes) -> dict[str, Any] | None:
    """The record of a line; None if its checksum is wrong. A missing newline is no damage."""
    text, _, sum = line.removesuffix(b"\n").rpartition(_SUM)
    data = text + b"}"
    if sum != b'%08x"}' % crc32(data):
        return None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


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
            made._append(sealed(header))
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
                        f"{self.path}: line {number}: damaged (its checksum is wrong); delete the line, so "
                        "that its row is computed again, or replace --resume by --overwrite"
                    )
                if record["ok"] or not retry_failed:
                    self._index.put(record_key(record["id"], record["sample"], record["req"]), offset)
                    self.lines += 1
                offset += len(data)
        self._size = offset

    def _cut_torn_line(self) -> None:
        """Cut what follows the last newline; a record that lacks only its newline gets it."""
        end = at = os.fstat(self._descriptor).st_size
        begin = 0  # of the line
        while at and not begin:
            start = max(0, at - _BLOCK)
            newline = os.pread(self._descriptor, at - start, start).rfind(b"\n")
            begin, at = (start + newline + 1 if newline >= 0 else 0), start
        if begin == end:
            return
        try:
            with open(self._descriptor, "rb", closefd=False) as file:
                file.seek(max(begin, end - 64))
                if _SUM in file.read():  # else it need not be read whole
                    file.seek(begin)
                    if _record(file.read()) is not None:
                        os.write(self._descriptor, b"\n")
                        return
                file.seek(begin)
                with self.path.with_name(self.path.name + ".torn").open("wb") as torn:
                    shutil.copyfileobj(file, torn)
            os.ftruncate(self._descriptor, begin)
        except OSError as error:
            raise FileAccessError(f"{self.path}: {error.strerror}") from None

    def find(self, id: object, sample: int, req: str) -> int | None:
        """The offset of the record of a request."""
        return self._index.get(record_key(id, sample, req))

    def append(self, record: Mapping[str, Any]) -> int:
        """Append a record as one line; return its offset."""
        at = self._size
        self._append(sealed(record))
        return at

    def _append(self, data: bytes) -> None:
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
        """Yield the records at these offsets. Raises FileAccessError if one was damaged meanwhile."""
        with open(self._descriptor, "rb", closefd=False) as file:
            for offset in offsets:
                file.seek(offset)
                record = _record(file.readline())
                if record is None:
                    raise FileAccessError(
                        f"{self.path}: byte {offset}: damaged while the batch ran; run it again with --resume"
                    )
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


def _record(line: bytes) -> dict[str, Any] | None:
    """The record of a line; None if it is not one."""
    value = _unsealed(line)
    return value if value is not None and _is_record(value) else None


def _is_record(value: Mapping[str, Any]) -> bool:
    """Whether the fields that a resumed run reads have their types."""
    error, counts = value.get("error"), value.get("usage") or {}
    return (
        isinstance(value.get("id"), str | int | float)
        and type(value.get("sample")) is int
        and isinstance(value.get("req"), str)
        and type(value.get("ok")) is bool
        and (value["ok"] or (isinstance(error, dict) and isinstance(error.get("message"), str)))
        and isinstance(counts, dict)
        and all(type(count) is int for count in counts.values())
    )


def read_header(path: Path, line: bytes | None = None) -> dict[str, Any]:
    """The first line of a journal. Raises BatchInputError if it is not a journal's, FileAccessError."""
    try:
        if line is None:
            with path.open("rb") as file:
                line = file.readline()
    except OSError as error:
        raise FileAccessError(f"{path}: {error.strerror}") from None
    header = _unsealed(line)
    if header is not None and header.get("schema") == SCHEMA:
        return header
    old = "; an earlier version of ropechat wrote this one" if b'"ropechat.batch/1"' in line[:64] else ""
    raise BatchInputError(
        f"{path}: line 1: must be the header of a journal ({SCHEMA}){old}; replace --resume by --overwrite "
        "to start again"
    )


def has_header(path: Path) -> bool:
    """Whether the file has a complete first line; without one, nothing was done yet."""
    try:
        with path.open("rb") as file:
            return file.readline().endswith(b"\n")
    except OSError:
        return False


def differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Where two headers differ, for the fields of `now`: `dtype: q8_0 there, f32 here`.

    Without what only says how results are written.
    """
    found: list[str] = []
    for name, here in now.items():
        if name in OF_RESULTS:
            continue
        there = before.get(name)
        if isinstance(here, Mapping) and isinstance(there, Mapping):
            found += differences(there, here, f"{prefix}{name}.")
        elif json.dumps(there) != json.dumps(here):
            found.append(f"{prefix}{name}: {_short(there)} there, {_short(here)} here")
    return found


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:59] + "…"
