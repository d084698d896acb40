"""The source of a batch: a file, a pipe or stdin, its format, and its rows as dictionaries.

Formats: jsonl (a JSON object per line; OpenAI's batch format is one), json (an array of objects), csv and tsv
(the first line names the columns), lines (one prompt per line), parquet. A name that ends in .gz is unpacked.
A row that cannot be read has a `fault` instead of fields; the others are read.
"""

import codecs
import contextlib
import csv
import itertools
import json
import os
import re
import stat
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast

from ropechat.batch.line import LineError, parse_line, parse_value
from ropechat.batch.pipe import PipeReader
from ropechat.errors import BatchInputError, FileAccessError
from ropechat.util.encodings import encoding_of
from ropechat.util.text import format_bytes

MAX_LINE_BYTES = 16 << 20
MAX_ARRAY_BYTES = 256 << 20
"""Limit of a JSON array, which is read as a whole."""
WRITER_SECONDS = 10.0
"""How long to wait for a program that writes to a named pipe."""
FORMATS = ("jsonl", "openai", "json", "csv", "tsv", "lines", "parquet")
PLAIN_FORMATS = ("csv", "tsv", "lines")
"""Formats whose fields are texts: settings in them would be guesses, so all fields are data."""
_JSON_FORMATS = ("jsonl", "openai", "json")
_BY_SUFFIX = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "lines",
    ".parquet": "parquet",
}
_SHOWN_BYTES = 1 << 20  # how much of the first line is examined
_PARQUET_ROWS = 256
_BOM = b"\xef\xbb\xbf"
_SAMPLE_BYTES = 1 << 16  # from which the encoding is guessed
_DELIMITERS = ",;\t|"
_NOT_TEXT = {
    b"\x1f\x8b": "compressed with gzip; unpack it first, or give it a name that ends in .gz",
    b"\xff\xfe": "UTF-16; save it as UTF-8, or add --encoding utf-16",
    b"\xfe\xff": "UTF-16; save it as UTF-8, or add --encoding utf-16",
    b"PK": "a zip archive; unpack it first",
    b"PAR1": "a Parquet file; add --input-format parquet",
}


class _Lines(Protocol):
    """A file or pipe that is read by lines."""

    def readline(self, limit: int, /) -> bytes: ...


class RawRow(NamedTuple):
    """A row. number: of its (first) line, from 1; in an array or a Parquet file, of the row."""

    number: int
    fields: dict[str, Any]
    fault: str | None = None


class _InputLine(NamedTuple):
    """A line that is not blank: number from 1, bytes without the newline; truncated if not `whole`."""

    number: int
    data: bytes
    whole: bool


def format_of(path: Path) -> str:
    """The format of a file, by its suffix; jsonl for an unknown one."""
    name = Path(path.name[:-3]) if path.name.lower().endswith(".gz") else path
    return _BY_SUFFIX.get(name.suffix.lower(), "jsonl")


def printable(text: str) -> str:
    """The text with lone surrogates escaped, which cannot be written as UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


class Source:
    """Where rows come from. source: a path, or an open stream such as stdin.

    A regular file can be read several times. A stream, pipe or terminal is read once, row by row on demand.

    delimiter: of CSV; None takes the one that the first line has most of. encoding: None is UTF-8, or of a
    regular file the one that it is probably in; of JSON that of its BOM.
    """

    def __init__(
        self,
        source: Path | IO[bytes],
        form: str | None = None,
        delimiter: str | None = None,
        encoding: str | None = None,
    ) -> None:
        is_path = isinstance(source, Path)
        self.form = form or (format_of(source) if isinstance(source, Path) else "jsonl")
        self.where, name = (str(source), source.name) if isinstance(source, Path) else ("stdin", "stdin")
        self.name = printable(name)
        self._source = source
        self._packed = is_path and self.name.lower().endswith(".gz")
        self._rest: Iterator[RawRow] | None = None
        """The rows of a source that can be read only once."""
        self._pipe: PipeReader | None = None
        self._delimiter, self._encoding = delimiter, encoding
        self.delimiter = delimiter or ","
        """Of a CSV file, once `check` was called."""
        self.notes: list[str] = []
        """What was guessed of the file, once `check` was called."""
        self.columns: list[str] = []
        """The columns of a CSV, TSV or Parquet file, once `check` was called."""

    @property
    def is_regular(self) -> bool:
        """Whether it can be read again."""
        return isinstance(self._source, Path) and self._source.is_file()

    def is_file(self, path: Path) -> bool:
        """Whether this file is the source."""
        try:
            source = self._source
            own = source.stat() if isinstance(source, Path) else os.fstat(source.fileno())
            return os.path.samestat(own, path.stat())
        except OSError:  # also for a stream without a descriptor
            return False

    def check(self) -> int | None:
        """Reject a file that is not of its format; return its number of rows, None if unknown.

        Raises BatchInputError, FileAccessError.
        """
        rows = self._read()
        first = next(rows, None)
        if not self.is_regular:
            self._rest = rows if first is None else itertools.chain([first], rows)
            return 0 if first is None else None
        if first is None:
            return 0
        if self.form in ("jsonl", "openai"):
            rows.close()
            with self._damage_named(), self._open() as file:
                return sum(1 for _ in _lines(self._text(file)))
        return 1 + sum(1 for _ in rows)

    def rows(self) -> Iterator[RawRow]:
        """Yield the rows. Raises BatchInputError for a damaged archive, FileAccessError."""
        return self._read() if self._rest is None else self._rest

    def _read(self) -> Generator[RawRow, None, None]:
        with self._damage_named():
            if isinstance(self._source, Path):
                with self._open() as file:
                    yield from self._rows_of(self._text(file))
            else:
                yield from self._rows_of(self._text(self._source))

    @contextlib.contextmanager
    def _damage_named(self) -> Iterator[None]:
        try:
            yield
        except _damages(packed=self._packed) as error:
            raise BatchInputError(f"{self.where}: damaged gzip file ({error}); make it again") from None
        except OSError as error:
            raise FileAccessError(f"{self.where}: {error.strerror or error}") from None

    def _rows_of(self, file: IO[bytes]) -> Iterator[RawRow]:
        whole: dict[str, Callable[[IO[bytes]], Iterator[RawRow]]] = {
            "json": self._json_array,
            "parquet": self._parquet,
        }
        by_lines: dict[str, Callable[[_Lines], Iterator[RawRow]]] = {
            "jsonl": self._json_lines,
            "openai": self._json_lines,
            "csv": lambda file: self._table(file, self._delimiter),
            "tsv": lambda file: self._table(file, "\t"),
            "lines": self._text_lines,
        }
        if self.form in whole:
            return whole[self.form](file)
        if not self.is_regular and not self._packed and self._encoding is None and _has_descriptor(file):
            self._pipe = PipeReader(file)
        return by_lines[self.form](self._pipe or file)

    def has_row(self) -> bool:
        """Whether the next row is there; False while the program that writes to a pipe has written none."""
        return self._pipe is None or self._pipe.has_line()

    def _open(self) -> IO[bytes]:
        path = self._source
        assert isinstance(path, Path)
        try:
            mode = path.stat().st_mode
            if stat.S_ISDIR(mode) or stat.S_ISBLK(mode):
                raise BatchInputError(f"{self.where}: must be a file or a pipe")
            return _open_pipe(path) if stat.S_ISFIFO(mode) else path.open("rb")
        except FileNotFoundError:
            raise BatchInputError(f"{self.where}: file not found") from None
        except OSError as error:
            raise FileAccessError(f"{self.where}: {error.strerror}") from None

    def _unpacked(self, file: IO[bytes]) -> IO[bytes]:
        if not self._packed:
            return file
        import gzip  # imported here: rarely needed

        return cast("IO[bytes]", gzip.GzipFile(fileobj=file, mode="rb"))

    def _text(self, file: IO[bytes]) -> IO[bytes]:
        """The file unpacked, and if it is not in UTF-8 as UTF-8."""
        unpacked = self._unpacked(file)
        if self.form == "parquet":
            return unpacked
        if self._encoding is None and self.is_regular:
            self._encoding = self._guess(unpacked.read(_SAMPLE_BYTES))
            unpacked.seek(0)
        if self._encoding in (None, "utf-8"):
            return unpacked
        return cast("IO[bytes]", _Recoded(unpacked, self._encoding))

    def _guess(self, sample: bytes) -> str:
        found = encoding_of(sample)
        if found.startswith("utf-8") or (self.form in _JSON_FORMATS and not found.startswith("utf-")):
            return "utf-8"
        self.notes.append(f"note: {self.name}: read as {found}; --encoding sets another")
        return found

    def _check_text(self, line: bytes) -> None:
        for magic, what in _NOT_TEXT.items():
            if line.startswith(magic):
                raise BatchInputError(f"{self.where}: {what}")

    def _json_lines(self, file: _Lines) -> Iterator[RawRow]:
        first = True
        for line in _lines(file):
            if first:
                self._check_first(line.data[:_SHOWN_BYTES].strip())
                first = False
            if not line.whole:
                yield RawRow(line.number, {}, f"line: must be at most {format_bytes(MAX_LINE_BYTES)}")
                continue
            try:
                yield RawRow(line.number, parse_line(line.data))
            except LineError as fault:
                yield RawRow(line.number, {}, str(fault))

    def _check_first(self, line: bytes) -> None:
        self._check_text(line)
        if b"\r" in line:
            raise BatchInputError(f"{self.where}: lines must end in LF or CRLF (got CR)")
        shown = line[:40].decode("utf-8", "replace")
        if line == b"[" or line.startswith(b"[{"):
            raise BatchInputError(
                f"{self.where}: line 1: must be a JSON object, one per line (got {shown!r}); for a JSON "
                "array add --input-format json"
            )
        if not _looks_like_json(line):
            raise BatchInputError(
                f"{self.where}: line 1: must be a JSON object, one per line (got {shown!r}); for other "
                "formats add --input-format csv, tsv or lines"
            )

    def _json_array(self, file: IO[bytes]) -> Iterator[RawRow]:
        data = file.read(MAX_ARRAY_BYTES + 1).removeprefix(_BOM)
        self._check_text(data)
        if len(data) > MAX_ARRAY_BYTES:
            raise BatchInputError(
                f"{self.where}: a JSON array must be at most {format_bytes(MAX_ARRAY_BYTES)}; write one "
                "object per line (jsonl)"
            )
        if not data.strip():
            return
        try:
            items = parse_value(data)
        except LineError as fault:
            raise BatchInputError(
                f"{self.where}: {fault}; for one object per line add --input-format jsonl"
            ) from None
        if not isinstance(items, list):
            raise BatchInputError(
                f"{self.where}: must be a JSON array (got {type(items).__name__}); for one object per line "
                "add --input-format jsonl"
            )
        for number, item in enumerate(items, 1):
            if isinstance(item, dict):
                yield RawRow(number, item)
            else:
                yield RawRow(number, {}, f"JSON: must be an object (got {type(item).__name__})")

    def _text_lines(self, file: _Lines) -> Iterator[RawRow]:
        first = True
        for line in _lines(file):
            if first:
                self._check_text(line.data)
                first = False
            try:
                fault = None if line.whole else f"line: must be at most {format_bytes(MAX_LINE_BYTES)}"
                yield RawRow(line.number, {"text": line.data.decode()}, fault)
            except UnicodeDecodeError as error:
                yield RawRow(line.number, {}, f"line: must be UTF-8 (byte {error.start} is not)")

    def _table(self, file: _Lines, delimiter: str | None) -> Iterator[RawRow]:
        """The rows of a CSV or TSV file (RFC 4180): cells may be quoted and hold newlines."""
        csv.field_size_limit(MAX_LINE_BYTES)
        # surrogateescape: a byte that is not UTF-8 is an error of its row only
        lines = self._table_lines(file)
        if delimiter is None:
            first = next(lines, b"")
            lines = itertools.chain([first], lines)
            delimiter = self._find_delimiter(first.decode("utf-8", "replace"))
        texts = (line.decode("utf-8", "surrogateescape") for line in lines)
        reader = csv.reader(texts, delimiter=delimiter, strict=True)
        header: list[str] | None = None
        while True:
            number = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                if header is None:
                    raise BatchInputError(f"{self.where}: line {number}: {error}") from None
                yield RawRow(number, {}, f"{self.form.upper()}: {error}")
                continue
            if not cells:
                continue
            fault = _cell_fault(cells)
            if header is None:
                self.columns = header = self._header(cells, fault)
                continue
            if fault is None and len(cells) != len(header):
                fault = f"cells: must be {len(header)}, as in the first line (got {len(cells)})"
            yield RawRow(number, {} if fault else dict(zip(header, cells, strict=True)), fault)

    def _find_delimiter(self, line: str) -> str:
        """The character that separates the names of the columns."""
        plain = re.sub(r'"[^"]*"?', "", line)
        found = max(_DELIMITERS, key=plain.count)
        if found != "," and self.delimiter != found:
            self.notes.append(
                f"note: {self.name}: cells are separated by {found!r}; --delimiter sets another"
            )
        self.delimiter = found
        return found

    def _table_lines(self, file: _Lines) -> Iterator[bytes]:
        line = file.readline(MAX_LINE_BYTES).removeprefix(_BOM)
        self._check_text(line)
        while line:
            yield line
            line = file.readline(MAX_LINE_BYTES)

    def _header(self, cells: list[str], fault: str | None) -> list[str]:
        what = fault
        if what is None and "" in cells:
            what = f"column {cells.index('') + 1} has no name"
        if what is None and len({*cells}) < len(cells):
            twice = next(name for name in cells if cells.count(name) > 1)
            what = f"column names must be unique ({twice!r:.60} occurs twice)"
        if what is not None:
            raise BatchInputError(f"{self.where}: line 1: must be the names of the columns: {what}")
        return cells

    def _parquet(self, file: IO[bytes]) -> Iterator[RawRow]:
        if not self.is_regular or self._packed:
            raise BatchInputError(f"{self.where}: a Parquet file must be a regular file")
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise BatchInputError(
                f"{self.where}: Parquet needs pyarrow; install it with `pip install 'ropechat[parquet]'`"
            ) from None
        try:
            table = pyarrow.parquet.ParquetFile(file)
            self.columns = list(table.schema_arrow.names)
            number = 0
            for batch in table.iter_batches(batch_size=_PARQUET_ROWS):
                for fields in batch.to_pylist():
                    number += 1
                    yield _typed(number, fields)
        except pyarrow.ArrowException as error:
            raise BatchInputError(f"{self.where}: not a valid Parquet file ({error})") from None


class _Recoded:
    """A text file as if it were in UTF-8. A byte that is no character stays as it is."""

    def __init__(self, file: IO[bytes], encoding: str) -> None:
        errors = "replace" if encoding.startswith("utf") else "surrogateescape"
        self._file, self._decoder = file, codecs.getincrementaldecoder(encoding)(errors)
        self._ready, self._ended = bytearray(), False

    def _fill(self) -> None:
        data = self._file.read(_SAMPLE_BYTES)
        self._ended = not data
        text = self._decoder.decode(data, final=self._ended)
        self._ready += text.removeprefix("\ufeff").encode("utf-8", "surrogateescape")

    def _take(self, count: int) -> bytes:
        taken = bytes(self._ready[:count])
        del self._ready[:count]
        return taken

    def readline(self, limit: int, /) -> bytes:
        seen = 0
        while (end := self._ready.find(b"\n", seen)) < 0 and len(self._ready) < limit and not self._ended:
            seen = len(self._ready)
            self._fill()
        return self._take(limit if end < 0 else min(end + 1, limit))

    def read(self, limit: int, /) -> bytes:
        while len(self._ready) < limit and not self._ended:
            self._fill()
        return self._take(limit)


def _damages(*, packed: bool) -> tuple[type[Exception], ...]:
    """The exceptions of a damaged archive."""
    if not packed:
        return ()
    import gzip
    import zlib

    return (EOFError, gzip.BadGzipFile, zlib.error)


def _typed(number: int, fields: dict[str, Any]) -> RawRow:
    """A row of a Parquet file; dates and decimals become texts, bytes and NaN are faults."""

    def plain(value: object) -> str:
        if isinstance(value, bytes):
            raise ValueError("bytes are not supported")
        return str(value)

    try:
        text = json.dumps(fields, ensure_ascii=False, allow_nan=False, default=plain)
    except ValueError as error:
        return RawRow(number, {}, f"row: must have JSON values ({error})")
    value: dict[str, Any] = json.loads(text)
    return RawRow(number, value)


def _lines(file: _Lines) -> Iterator[_InputLine]:
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


def _cell_fault(cells: list[str]) -> str | None:
    """Why cells are not text; None if they are."""
    try:
        for cell in cells:
            cell.encode()
    except UnicodeEncodeError:
        return "row: must be UTF-8"
    return None


def _has_descriptor(file: IO[bytes]) -> bool:
    try:
        return file.fileno() >= 0
    except OSError:
        return False


def _open_pipe(path: Path) -> IO[bytes]:
    """Open a named pipe. Raises BatchInputError if no program opens it for writing."""
    opened: list[IO[bytes] | OSError] = []

    def wait() -> None:
        try:
            opened.append(path.open("rb"))
        except OSError as error:
            opened.append(error)

    # In a thread: open() blocks until there is a writer; other calls cannot detect a missing writer.
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
