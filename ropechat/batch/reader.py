"""Rows of a batch file: its lines, each read on its own.

Lines end at "\\n" bytes only. A line with a fault becomes an error record in the output, and the run
goes on.
"""

import hashlib
import itertools
import json
import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from ropechat.batch.line import LineError, LineId, LineRequest, parse_line, parse_request, read_id, reject
from ropechat.errors import BatchInputError, FileAccessError, RequestError, RopechatError

MAX_LINE_BYTES = 16 << 20
WRITER_SECONDS = 10.0
"""How long a named pipe may be without a program that writes to it."""
_SHOWN_BYTES = 1 << 20  # of a first line that is looked at
_BOM = b"\xef\xbb\xbf"
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


class _InputLine(NamedTuple):
    """A line that is not blank: number from 1, bytes without the line end; if not `whole`, only the first."""

    number: int
    data: bytes
    whole: bool


def _lines(file: IO[bytes]) -> Iterator[_InputLine]:
    number = 0
    while data := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        whole = len(data) <= MAX_LINE_BYTES
        if not whole:
            ended, data = data.endswith(b"\n"), data[:_SHOWN_BYTES]
            while not ended:
                rest = file.readline(_SHOWN_BYTES)
                ended = not rest or rest.endswith(b"\n")
        if number == 1:
            data = data.removeprefix(_BOM)
        if data and not data.isspace():
            yield _InputLine(number, data.rstrip(b"\r\n"), whole)


class BatchReader:
    """Reads a batch file row by row; memory does not grow with the file, but for some 200 bytes per id.

    source: a path, or an open stream such as stdin. A stream, a pipe and a terminal are read once, as rows
    are asked for; a regular file twice: `check` counts its rows.
    prompt_field: the only field that may hold the prompt; None takes prompt, messages, text or prefix.
    """

    def __init__(self, source: Path | IO[bytes], prompt_field: str | None = None) -> None:
        self.prompt_field = prompt_field
        self._source = source
        self._where, self._name = (
            (str(source), source.name) if isinstance(source, Path) else ("stdin", "stdin")
        )
        self._rest: Iterator[_InputLine] | None = None
        """The lines of what can be read once only."""
        self._seen: dict[bytes, int] = {}

    def reads(self, path: Path) -> bool:
        """Whether this file is the one that is read."""
        try:
            source = self._source
            own = source.stat() if isinstance(source, Path) else os.fstat(source.fileno())
            return os.path.samestat(own, path.stat())
        except OSError:  # also of a stream without a descriptor
            return False

    def _open(self, path: Path) -> IO[bytes]:
        try:
            mode = path.stat().st_mode
            if stat.S_ISDIR(mode) or stat.S_ISBLK(mode):
                raise BatchInputError(f"{self._where}: neither a file nor a pipe; a JSONL file is required")
            return _open_pipe(path) if stat.S_ISFIFO(mode) else path.open("rb")
        except FileNotFoundError:
            raise BatchInputError(f"{self._where}: no such file") from None
        except OSError as error:
            raise FileAccessError(f"{self._where}: {error.strerror}") from None

    def _lines(self) -> Iterator[_InputLine]:
        if isinstance(self._source, Path):
            with self._open(self._source) as file:
                yield from _lines(file)
        else:
            yield from _lines(self._source)

    def check(self) -> int | None:
        """Refuse a file that is no JSONL at all; returns how many rows it has, None where that is not known.

        Raises BatchInputError, FileAccessError.
        """
        lines = self._lines()
        first = next(lines, None)
        if first is not None:
            self._check_first(first.data[:_SHOWN_BYTES].strip())
        if isinstance(self._source, Path) and self._source.is_file():
            return 0 if first is None else 1 + sum(1 for _ in lines)
        self._rest = lines if first is None else itertools.chain([first], lines)
        return 0 if first is None else None

    def _check_first(self, line: bytes) -> None:
        for magic, what in _NOT_JSON_LINES.items():
            if line.startswith(magic):
                raise BatchInputError(f"{self._where}: {what}")
        if b"\r" in line:
            raise BatchInputError(f"{self._where}: lines end in CR alone; LF or CRLF is required")
        if line == b"[" or line.startswith(b"[{") or not _looks_like_json(line):
            raise BatchInputError(
                f"{self._where}: line 1 is {line[:40]!r}; JSON lines are required, one object a line"
            )

    def __iter__(self) -> Iterator[BatchRow]:
        for index, line in enumerate(self._lines() if self._rest is None else self._rest):
            yield self._row(index, *line)

    def _row(self, index: int, number: int, line: bytes, whole: bool) -> BatchRow:
        id: LineId = f"line-{number}"
        try:
            if not whole:
                reject(f"line: more than {MAX_LINE_BYTES} bytes; that is the limit")
            record = parse_line(line)
            id = read_id(record, number)
            self._once(id, number)
            return BatchRow(index, number, id, parse_request(record, self.prompt_field))
        except LineError as fault:
            text = f"{self._name}: line {number}: {fault}"
            # A stranger's field name may hold half a surrogate pair, which no output file can.
            error = RequestError(text.encode("utf-8", "backslashreplace").decode("utf-8"))
            return BatchRow(index, number, id, error=error)

    def _once(self, id: LineId, number: int) -> None:
        digest = hashlib.blake2b(json.dumps(id).encode(), digest_size=16).digest()
        first = self._seen.setdefault(digest, number)
        if first != number:
            reject(f"id: {id!r:.60} stands on line {first} already; each id may stand once")


def _open_pipe(path: Path) -> IO[bytes]:
    """Open a named pipe, which takes a program at its other end. Raises BatchInputError when none comes."""
    opened: list[IO[bytes] | OSError] = []

    def wait() -> None:
        try:
            opened.append(path.open("rb"))
        except OSError as error:
            opened.append(error)

    # In a thread: only opening tells "no writer" from "a writer that is still silent", and it may not return.
    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(WRITER_SECONDS)
    if not opened:
        raise BatchInputError(f"{path}: no program writes to this pipe; start that program first")
    if isinstance(opened[0], OSError):
        raise opened[0]
    return opened[0]


def _looks_like_json(line: bytes) -> bool:
    """Whether a line begins as some JSON value does; a CSV header or a binary file does not."""
    return line[:1] in b'{["-0123456789' or line in (b"null", b"true", b"false")
