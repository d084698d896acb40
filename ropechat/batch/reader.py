"""Reading the rows of a batch: each with its id and its request, or with the error of its line.

An invalid row becomes an error record in the output, and the run continues.
"""

import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ropechat.batch.hash_index import HashIndex, hash64
from ropechat.batch.line import (
    LineError,
    LineId,
    LineRequest,
    parse_plain,
    parse_request,
    read_id,
    reject,
    request_of,
    require_openai,
)
from ropechat.batch.row_template import RowTemplate, canonical
from ropechat.batch.score_line import scored_request
from ropechat.batch.shard import Shard
from ropechat.batch.source import PLAIN_FORMATS, RawRow, Source, printable
from ropechat.conversation import Message
from ropechat.errors import BatchInputError, RequestError, RopechatError

ALL = "all"
TABLES = ("csv", "tsv", "parquet")
"""Formats with columns."""
EARLY_ROWS = 20
"""If the first rows all fail with the same error, the options do not fit the file: the run stops."""
_MAX_EXPECTED = 1 << 24  # ids for which memory is reserved at once
_ID_FIELDS = ("id", "custom_id")


@dataclass(frozen=True)
class BatchRow:
    """A row of the input: with a `request`, or with an `error`."""

    index: int
    """The row number: 0 for the first line that is not blank."""
    line: int
    """Line number in the file, from 1."""
    id: LineId
    request: LineRequest | None = None
    error: RopechatError | None = None
    kept: Mapping[str, Any] | None = None
    """The fields to copy to the record."""
    request_hash: str = ""
    """A hash of the request: it changes when the row changes."""
    dedupe_key: str = ""
    """With `RowOptions.dedupe` a hash that rows with equal prompts and settings have in common, else ""."""
    file: str = ""
    """The name of the input, for errors."""

    @property
    def place(self) -> str:
        """What an error about the row begins with: "in.jsonl: line 3: "."""
        return f"{self.file_place}{self.line}: "

    @property
    def file_place(self) -> str:
        """The part of `place` that all rows of the input have."""
        return f"{self.file}: line " if self.file else "line "


@dataclass(frozen=True)
class RowOptions:
    """How rows become requests.

    prompt_field: the field of the prompt; None takes prompt, messages, turns, text or prefix. template: makes
    the prompt from the fields, all of which are data then. keep: fields to copy to the record, or `ALL`.
    id_field: the field of the id; None takes id or custom_id. limit: read only so many rows. score: rows have
    a completion or choices, see `score_line`. shard: read only its rows. flexible: allow whitespace in JSON
    that a row asks for. dedupe: rows with equal prompts and settings have equal seeds, and are computed once.
    delimiter, encoding: of the input, see `Source`. choices: with score, those of all rows.
    """

    prompt_field: str | None = None
    template: RowTemplate | None = None
    keep: Sequence[str] | str = ()
    id_field: str | None = None
    limit: int | None = None
    score: bool = False
    shard: Shard | None = None
    flexible: bool = False
    dedupe: bool = False
    delimiter: str | None = None
    encoding: str | None = None
    choices: tuple[str, ...] = ()


@dataclass
class _Seen:
    """The ids of the rows so far, with 15 to 23 bytes of memory per id."""

    lines: HashIndex

    def once(self, id: LineId, number: int) -> None:
        key = hash64("s" if isinstance(id, str) else "n", str(id))
        first = self.lines.get(key)
        if first is not None:
            reject(f"id: must be unique (got {id!r:.60} as on line {first})")
        self.lines.put(key, number)


class BatchReader:
    """Reads the rows of a batch file. source: a path, or an open stream such as stdin.

    form: see `source`; None goes by the suffix. prompt_field: as in `RowOptions`.
    """

    def __init__(
        self,
        source: Path | IO[bytes],
        prompt_field: str | None = None,
        *,
        form: str | None = None,
        options: RowOptions | None = None,
    ) -> None:
        self.options = options or RowOptions(prompt_field)
        self.source = Source(source, form, self.options.delimiter, self.options.encoding)
        self._total = 0  # until it is known
        self.above_limit = 0
        """Rows of a regular file that the limit leaves out, once `check` has counted them."""
        self._unseen = dict.fromkeys(() if isinstance(self.options.keep, str) else self.options.keep)
        self._has_fields = False
        self._fields: Collection[str] = ()  # of the first row

    def check(self) -> int | None:
        """Reject a file that is not of its format; return its number of rows, None if unknown.

        Raises BatchInputError, FileAccessError.
        """
        total = self.source.check()
        if total is not None and self.options.limit is not None:
            self.above_limit = max(0, total - self.options.limit)
        if total and self.options.shard is not None:
            total = sum(1 for _ in self.ids())
        elif total is not None and self.options.limit is not None:
            total = min(total, self.options.limit)
        self._total = total or 0
        return total

    @property
    def unkept(self) -> list[str]:
        """The fields to keep that no row so far has; [] if no row could be read."""
        return [*self._unseen] if self._has_fields else []

    @property
    def warning(self) -> str | None:
        """A warning about the template of the prompt; of a pipe, before its rows are known."""
        template = self.options.template
        return None if template is None else template.warning(self._fields)

    def check_first_rows(self) -> None:
        """Raise AllAlikeError if the first rows of a regular file all fail with the same error."""
        if self.source.is_regular:
            judge = EarlyStop()
            for _, row in zip(range(EARLY_ROWS), self, strict=False):
                if row.error is None:
                    return
                judge.take(row.index, type(row.error).__name__, str(row.error))

    def __iter__(self) -> Iterator[BatchRow]:
        seen = _Seen(HashIndex(expected=min(self._total, _MAX_EXPECTED)))
        for index, raw in self._raw_rows():
            yield self._row(index, raw, seen)

    def ids(self) -> Iterator[tuple[int, LineId]]:
        """Yield (index, id) of each row, without looking at the rest of it."""
        for index, raw in self._raw_rows():
            yield index, self._id_of(raw)

    def _raw_rows(self) -> Iterator[tuple[int, RawRow]]:
        shard = self.options.shard
        # islice: a pipe is not read beyond the limit, where no row may ever come
        for index, raw in enumerate(itertools.islice(self.source.rows(), self.options.limit)):
            if shard is None or shard.has(self._id_of(raw)):
                yield index, raw

    def _id_of(self, raw: RawRow) -> LineId:
        """The id of a row's record: that of its place if it has none, or no valid one."""
        try:
            return _place_id(raw) if raw.fault is not None else self._id(raw.fields, raw.number)
        except LineError:
            return _place_id(raw)

    def _row(self, index: int, raw: RawRow, seen: _Seen) -> BatchRow:
        id: LineId = _place_id(raw)
        kept: Mapping[str, Any] | None = None
        try:
            if raw.fault is not None:
                reject(raw.fault)
            fields = raw.fields
            self._fields = self._fields or tuple(fields)
            id = self._id(fields, raw.number)
            seen.once(id, raw.number)
            kept = self._kept(fields)
            request = self._scored(fields, index) if self.options.score else self._request(fields, index)
            asked = _request_fields(request)
            dedupe_key = _hash(canonical(asked)) if self.options.dedupe else ""
            request_hash = _hash(canonical([asked, kept]))
            facts = (kept, request_hash, dedupe_key, self.source.name)
            return BatchRow(index, raw.number, id, request, None, *facts)
        except LineError as fault:
            row = BatchRow(
                index, raw.number, id, kept=kept, request_hash=_hash(str(fault)), file=self.source.name
            )
            # A field name may contain a lone surrogate.
            return dataclasses.replace(row, error=RequestError(printable(f"{row.place}{fault}")))

    def _id(self, fields: Mapping[str, Any], number: int) -> LineId:
        named = self.options.id_field
        if named is not None:
            if named not in fields:
                reject(f"{named}: missing, but given by --id-field")
            return read_id({"id": fields[named]}, number)
        if self.source.form in PLAIN_FORMATS:
            found = {name: fields[name] for name in _ID_FIELDS if fields.get(name)}
            return read_id(found, number)
        return read_id(fields, number)

    def _scored(self, fields: Mapping[str, Any], index: int) -> LineRequest:
        return scored_request(fields, lambda others: self._request(others, index), self.options.choices)

    def _request(self, fields: Mapping[str, Any], index: int) -> LineRequest:
        options = self.options
        if options.template is not None:
            return request_of(options.template.content(fields, index))
        if self.source.form in PLAIN_FORMATS:
            request = parse_plain(fields, options.prompt_field)
        else:
            if self.source.form == "openai":
                require_openai(fields)
            request = parse_request(fields, options.prompt_field, flexible=options.flexible)
        if not request.unused or not (options.keep or options.id_field):
            return request
        names = request.unused if options.keep == ALL else (*options.keep, options.id_field)
        unused = tuple(name for name in request.unused if name not in names)
        return dataclasses.replace(request, unused=unused)

    def _kept(self, fields: Mapping[str, Any]) -> dict[str, Any] | None:
        keep = self.options.keep
        if not keep:
            return None
        self._has_fields = True
        for name in [name for name in self._unseen if name in fields]:
            del self._unseen[name]
        if keep == ALL:
            kept = {name: value for name, value in fields.items() if name not in _ID_FIELDS}
        else:
            kept = {name: fields[name] for name in keep if name in fields}
        try:
            json.dumps(kept, ensure_ascii=False, allow_nan=False).encode("utf-8")
        except ValueError:
            reject("--keep: fields must have finite numbers and valid Unicode")
        return kept


def _place_id(raw: RawRow) -> LineId:
    return f"line-{raw.number}"


def _request_fields(request: LineRequest) -> list[Any]:
    """What a request asks for, without the names of ignored fields."""
    content: Any = request.content
    if isinstance(content, list):
        content = [part if isinstance(part, int) else _message_fields(part) for part in content]
    return [
        content,
        _sampling_fields(request.sampling),
        request.stop,
        request.template_vars,
        request.samples,
        request.logprobs,
        request.turns,
        request.endpoint,
        request.continues,
        *([request.echo] if request.echo else []),
        *([] if request.answers else [{"answers": False}]),
        *(
            {name: value}
            for name in ("fail_below", "truncate")
            if (value := getattr(request, name)) is not None
        ),
        *([request.choices, request.is_pair, request.answer] if request.choices else []),
    ]


def _message_fields(message: Message) -> list[Any]:
    return [message.role, message.content, *([message.reasoning] if message.reasoning else [])]


def _sampling_fields(sampling: Mapping[str, Any]) -> dict[str, Any]:
    grammar = sampling.get("grammar")
    return {**sampling, "grammar": dataclasses.asdict(grammar)} if grammar is not None else dict(sampling)


def _hash(text: str) -> str:
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=8).hexdigest()


class AllAlikeError(BatchInputError):
    """The first rows all failed with the same error."""


class EarlyStop:
    """Notices when the first rows of a run all fail with the same error."""

    def __init__(self) -> None:
        self._first: tuple[str, str] | None = None
        self._rows: set[int] = set()

    def take(self, index: int, name: str, message: str) -> None:
        """A row failed. Raises AllAlikeError if all of the first rows have failed with the same error."""
        if index >= EARLY_ROWS:
            return
        if self._first is None:
            self._first = name, message
        if _kind(name, message) == _kind(*self._first):
            self._rows.add(index)
        if len(self._rows) == EARLY_ROWS:
            raise AllAlikeError(f"the first {EARLY_ROWS} rows all fail with the same error: {self._first[1]}")


def _kind(name: str, message: str) -> str:
    """An error without the parts that differ from row to row: numbers and values. name: of its class."""
    text = message.partition(" (got")[0]
    return name + re.sub(r"\d+", "0", text)


def table_columns(reader: BatchReader, form: str) -> list[str]:
    """The kept fields as columns of a table; [] for other forms. Use it after `check`."""
    keep, columns = reader.options.keep, reader.source.columns
    if columns and keep != ALL and (missing := [name for name in keep if name not in columns]):
        raise RequestError(f"--keep: {missing[0]}: no such column (got {', '.join(columns):.200})")
    if form not in TABLES or keep != ALL:
        return list(keep) if keep != ALL else []
    if reader.source.form not in TABLES:
        raise RequestError(f"--keep all: {form} needs the names of its columns; list the fields: --keep a,b")
    return [name for name in columns if name not in ("id", "custom_id")]
