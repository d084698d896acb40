"""Reading the rows of a batch file.

Lines end at "\\n" bytes only. An invalid line becomes an error record in the output, and the run continues.
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
"""How long to wait for a program that writes to a named pipe."""
_SHOWN_BYTES = 1 << 20  # how much of the first line is examined
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
    """The row number: 0 for the first line that is not blank."""
    line: int
    """Line number in the file, from 1."""
    id: LineId
    request: LineRequest | None = None
    error: RopechatError | None = None


class _InputLine(NamedTuple):
    """A line that is not blank: number from 1, bytes without the newline; truncated if not `whole`."""

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
    """Reads a batch file row by row, with about 200 bytes of memory per id.

    source: a path, or an open stream such as stdin. A stream, pipe or terminal is read once, row by row on
    demand; a regular file is read twice, as `check` counts its rows.
    prompt_field: the field of the prompt; None takes prompt, messages, text or prefix.
    """

    def __init__(self, source: Path | IO[bytes], prompt_field: str | None = None) -> None:
        self.prompt_field = prompt_field
        self._source = source
        self._where, self._name = (
            (str(source), source.name) if isinstance(source, Path) else ("stdin", "stdin")
        )
        self._rest: Iterator[_InputLine] | None = None
        """The lines of a source that can be read only once."""
        self._seen: dict[bytes, int] = {}

    def reads(self, path: Path) -> bool:
        """Whether this file is the source."""
        try:
            source = self._source
            own = source.stat() if isinstance(source, Path) else os.fstat(source.fileno())
            return os.path.samestat(own, path.stat())
        except OSError:  # also for a stream without a descriptor
            return False

    def _open(self, path: Path) -> IO[bytes]:
        try:
            mode = path.stat().st_mode
            if stat.S_ISDIR(mode) or stat.S_ISBLK(mode):
                raise BatchInputError(f"{self._where}: must be a JSONL file or a pipe")
            return _open_pipe(path) if stat.S_ISFIFO(mode) else path.open("rb")
        except FileNotFoundError:
            raise BatchInputError(f"{self._where}: file not found") from None
        except OSError as error:
            raise FileAccessError(f"{self._where}: {error.strerror}") from None

    def _lines(self) -> Iterator[_InputLine]:
        if isinstance(self._source, Path):
            with self._open(self._source) as file:
                yield from _lines(file)
        else:
            yield from _lines(self._source)

    def check(self) -> int | None:
        """Reject a file that is not JSONL; return its number of rows, None if unknown.

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
            raise BatchInputError(f"{self._where}: lines must end in LF or CRLF (got CR)")
        if line == b"[" or line.startswith(b"[{") or not _looks_like_json(line):
            raise BatchInputError(
                f"{self._where}: line 1: must be a JSON object, one per line (got {line[:40]!r})"
            )

    def __iter__(self) -> Iterator[BatchRow]:
        for index, line in enumerate(self._lines() if self._rest is None else self._rest):
            yield self._row(index, *line)

    def _row(self, index: int, number: int, line: bytes, whole: bool) -> BatchRow:
        id: LineId = f"line-{number}"
        try:
            if not whole:
                reject(f"line: must be at most {MAX_LINE_BYTES} bytes")
            record = parse_line(line)
            id = read_id(record, number)
            self._once(id, number)
            return BatchRow(index, number, id, parse_request(record, self.prompt_field))
        except LineError as fault:
            text = f"{self._name}: line {number}: {fault}"
            # A field name may contain a lone surrogate, which cannot be written as UTF-8.
            error = RequestError(text.encode("utf-8", "backslashreplace").decode("utf-8"))
            return BatchRow(index, number, id, error=error)

    def _once(self, id: LineId, number: int) -> None:
        digest = hashlib.blake2b(json.dumps(id).encode(), digest_size=16).digest()
        first = self._seen.setdefault(digest, number)
        if first != number:
            reject(f"id: must be unique (got {id!r:.60} as on line {first})")


def _open_pipe(path: Path) -> IO[bytes]:
    """Open a named pipe. Raises BatchInputError if no program opens it for writing."""
    opened: list[IO[bytes] | OSError] = []

    def wait() -> None:
        try:
            opened.append(path.open("rb"))
        except OSError as error:
            opened.append(error)

    # In a thread: open() blocks until there is a writer, and only it tells no writer from a silent one.
    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(WRITER_SECONDS)
    if not opened:
        raise BatchInputError(f"{path}: no program writes to this pipe; start that program first")
    if isinstance(opened[0], OSError):
        raise opened[0]
    return opened[0]


def _looks_like_json(line: bytes) -> bool:
    """Whether a line starts like a JSON value, unlike a CSV header or a binary file."""
    return line[:1] in b'{["-0123456789' or line in (b"null", b"true", b"false")
