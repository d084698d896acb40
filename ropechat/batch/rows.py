"""Rows of a batch file: its lines, each read on its own.

Lines end at "\\n" bytes only. A line with a fault becomes an error record in the output, and the run
goes on.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ropechat.batch.line import LineError, LineId, LineRequest, id_of, parse, reject, request_of
from ropechat.errors import BatchInputError, FileAccessError, RequestError, RopechatError

MAX_LINE_BYTES = 16 << 20
_NOT_JSON_LINES = {
    b"\x1f\x8b": "compressed with gzip; unpack it first",
    b"\xff\xfe": "UTF-16; save it as UTF-8",
    b"\xfe\xff": "UTF-16; save it as UTF-8",
    b"PK": "a zip archive; unpack it first",
}


@dataclass(frozen=True)
class BatchRow:
    """A line of the input: with a `request`, or with an `error`."""

    index: int
    """Which row: 0 for the first line that is not blank."""
    line: int
    """Line number in the file, from 1."""
    id: LineId
    request: LineRequest | None = None
    error: RopechatError | None = None


class BatchReader:
    """Reads a batch file row by row; memory does not grow with the file, but for some 200 bytes per id.

    prompt_field: the only field that may hold the prompt; None takes prompt, messages, text or prefix.
    """

    def __init__(self, path: Path, prompt_field: str | None = None) -> None:
        self.path = path
        self.prompt_field = prompt_field
        self._seen: dict[bytes, int] = {}

    def _open(self) -> IO[bytes]:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise BatchInputError(f"{self.path}: no such file") from None
        except OSError as error:
            raise FileAccessError(f"{self.path}: {error.strerror}") from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise BatchInputError(f"{self.path}: not a regular file; a JSONL file is required")
        return os.fdopen(descriptor, "rb")

    def check(self) -> int:
        """Refuse a file that is no JSONL at all; returns how many rows it has.

        Raises BatchInputError, FileAccessError.
        """
        with self._open() as file:
            first, count, head = b"", 0, file.read(4)
            for magic, what in _NOT_JSON_LINES.items():
                if head.startswith(magic):
                    raise BatchInputError(f"{self.path}: {what}")
            file.seek(0)
            while line := file.readline(MAX_LINE_BYTES + 1):
                if line.strip():
                    count += 1
                    first = first or line[: MAX_LINE_BYTES >> 4]
                while line and not line.endswith(b"\n"):
                    line = file.readline(MAX_LINE_BYTES)
        self._check_first(first.removeprefix(b"\xef\xbb\xbf").strip())
        return count

    def _check_first(self, line: bytes) -> None:
        if not line:
            return
        if b"\r" in line:
            raise BatchInputError(f"{self.path}: lines end in CR alone; LF or CRLF is required")
        if line == b"[" or line.startswith(b"[{") or not _looks_like_json(line):
            raise BatchInputError(
                f"{self.path}: line 1 is {line[:40]!r}; JSON lines are required, one object a line"
            )

    def __iter__(self) -> Iterator[BatchRow]:
        with self._open() as file:
            index = number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                whole = len(line) <= MAX_LINE_BYTES
                while not line.endswith(b"\n") and not whole:
                    rest = file.readline(MAX_LINE_BYTES)
                    if not rest or rest.endswith(b"\n"):
                        break
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if line.strip():
                    yield self._row(index, number, line.rstrip(b"\r\n"), whole)
                    index += 1

    def _row(self, index: int, number: int, line: bytes, whole: bool) -> BatchRow:
        id: LineId = f"line-{number}"
        try:
            if not whole:
                reject(f"line: more than {MAX_LINE_BYTES} bytes; that is the limit")
            record = parse(line)
            id = id_of(record, number)
            self._once(id, number)
            return BatchRow(index, number, id, request_of(record, self.prompt_field))
        except LineError as fault:
            text = f"{self.path.name}: line {number}: {fault}"
            # A stranger's field name may hold half a surrogate pair, which no output file can.
            error = RequestError(text.encode("utf-8", "backslashreplace").decode("utf-8"))
            return BatchRow(index, number, id, error=error)

    def _once(self, id: LineId, number: int) -> None:
        digest = hashlib.blake2b(json.dumps(id).encode(), digest_size=16).digest()
        first = self._seen.setdefault(digest, number)
        if first != number:
            reject(f"id: {id!r:.60} stands on line {first} already; each id may stand once")


def _looks_like_json(line: bytes) -> bool:
    """Whether a line begins as some JSON value does; a CSV header or a binary file does not."""
    return line[:1] in b'{["-0123456789' or line in (b"null", b"true", b"false")
