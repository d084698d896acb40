"""The output of a run: stdout, or a file that is made from the journal when all rows are done."""

import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ropechat.batch.forms import Form, Records, Shape, write_parquet
from ropechat.batch.journal import Journal, journal_name, line_of
from ropechat.batch.reader import BatchRow
from ropechat.batch.records import tokens_of
from ropechat.errors import BatchInputError, FileAccessError
from ropechat.util.files import partial_name, replacing
from ropechat.util.text import count_of

_MISSING = -1
RUN_SCHEMA = "ropechat.run/1"
OnFailedCopy = Callable[[BatchRow, Mapping[str, Any]], None]


class Sink:
    """A destination of records.

    ordered: whether records must come in the order of the rows. found: records of earlier runs that are used
    again. copied: records that are copies of others, see `dedupe`. is_full: whether no row may be announced
    until records in progress are written. on_failed_copy: called after a copy of a failed record is written.
    """

    ordered = False
    found = 0
    copied = 0
    is_full = False
    on_failed_copy: OnFailedCopy | None = None

    def begin(self, row: BatchRow, samples: int) -> list[int]:
        """Announce a row, in order; return which of its samples must be computed."""
        return [*range(samples)]

    def write(self, row: BatchRow, record: Mapping[str, Any]) -> object:
        """Write a record of an announced row."""
        raise NotImplementedError


def refuse_output(path: Path, inputs: Iterable[object], *, overwrite: bool) -> None:
    """Raise BatchInputError if the output would overwrite a file, FileAccessError if it is not writable.

    inputs: those that are files must not be overwritten. A device, such as /dev/null, is written directly.
    """
    if path.is_char_device():
        return
    files = [file for file in inputs if isinstance(file, Path) and file.exists()]
    _refuse_names(
        path, [path, partial_name(path)], lambda name: name.exists() and any(map(name.samefile, files))
    )
    if path.exists() and not overwrite:
        raise _exists(path)


def _exists(path: Path) -> BatchInputError:
    return BatchInputError(f"{path}: exists; choose another output or add --overwrite")


def _refuse_names(out: Path, names: Sequence[Path], is_input: Callable[[Path], bool]) -> None:
    """Raise if a file cannot be written: no folder, a link, the input, or not a regular file."""
    folder = out.parent
    if not folder.is_dir():
        raise FileAccessError(f"{out}: folder {folder} not found; create it, or choose another output")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise FileAccessError(f"{out}: folder {folder} is not writable; choose another output")
    for name in names:
        if name.is_symlink():
            raise BatchInputError(f"{name}: must not be a symbolic link; give the file itself (- is stdout)")
        if is_input(name):
            raise BatchInputError(f"{name}: is the input; choose another output")
        if name.exists() and not name.is_file():
            raise BatchInputError(f"{name}: must be a regular file; choose another output (- is stdout)")


class Target:
    """The files of an output: OUT, its journal, its run record, and the errors of the form openai."""

    def __init__(self, out: Path, *, errors: bool = False) -> None:
        if not out.name:
            raise BatchInputError(f"{out}: must be the name of a file; give another output (- is stdout)")
        self.out = out
        self.journal = journal_name(out)
        self.temporary = partial_name(out)
        self.run_record = out.with_name(out.name + ".run.json")
        self.errors: Path | None = None
        if errors:
            plain, packed = (out.name[:-3], ".gz") if out.name.lower().endswith(".gz") else (out.name, "")
            suffix = Path(plain).suffix
            self.errors = out.with_name(f"{plain.removesuffix(suffix)}.errors{suffix}{packed}")

    def _without_journal(self) -> str:
        """Why there is nothing that --resume continues."""
        absent = f"exists, but not {self.journal.name}, which --resume continues"
        try:
            record = json.loads(self.run_record.read_bytes())
            records = int(record["ok"]) + int(record["failed"])
            if record["schema"] != RUN_SCHEMA:
                return absent
        except (OSError, ValueError, RecursionError, LookupError, TypeError):
            return absent
        # It has no digests of the rows: the input may have changed since.
        return (
            f"complete ({count_of(records, 'record')}, by {self.run_record.name}), but without "
            f"{self.journal.name}, by which --resume knows which rows have changed"
        )

    def refuse(self, is_input: Callable[[Path], bool], *, overwrite: bool, resume: bool) -> None:
        """Raise BatchInputError if a file would be overwritten, FileAccessError if one is not writable.

        is_input: whether a file is the input.
        """
        names = (self.out, self.errors, self.journal, self.temporary, self.run_record)
        _refuse_names(self.out, [name for name in names if name is not None], is_input)
        if overwrite:
            return
        left = self.journal.exists()
        if resume:
            if self.out.exists() and not left:
                raise BatchInputError(
                    f"{self.out}: {self._without_journal()}; choose another output or replace --resume by "
                    "--overwrite"
                )
            return
        for name in filter(None, (self.out, self.errors)):
            if name.exists():
                raise _exists(name)
        if left:
            raise BatchInputError(
                f"{self.journal}: left by a stopped run; add --resume to continue it, or "
                "--overwrite to discard it"
            )


class Printed(Sink):
    """Writes records in their order with `put`, which writes text to stdout and flushes; raises OSError.

    count: called with each record.
    """

    ordered = True

    def __init__(
        self, put: Callable[[str], None], form: Form, count: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._put, self._form, self._count = put, form, count
        self._head = form.head
        self._waiting: list[Mapping[str, Any]] = []
        self._samples: dict[int, int] = {}
        self.lines = 0

    def begin(self, row: BatchRow, samples: int) -> list[int]:
        self._samples[row.index] = samples
        return super().begin(row, samples)

    def write(self, row: BatchRow, record: Mapping[str, Any]) -> None:
        self._count(record)
        self._waiting.append(record)
        if len(self._waiting) < self._samples[row.index]:
            return
        del self._samples[row.index]
        self._put(self._head + self._form.lines(self._waiting))
        self._head = ""
        self.lines += len(self._waiting)
        self._waiting.clear()

    def finish(self) -> None:
        """Write what follows the last record."""
        if self._head + self._form.tail:
            self._put(self._head + self._form.tail)


class Journaled(Sink):
    """Writes records to a journal as they come, and knows the place of each in the output.

    ok, failed, and tokens (prompt, cached, new) are those of all records, earlier runs included, once
    `write_output` has read them.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._offsets = array("q")
        self._samples = array("B")
        self._indexes = array("I")
        self._places: dict[int, int] = {}
        """Row in progress -> the place of its first sample."""
        self._left: dict[int, int] = {}
        self.found = 0

    def begin(self, row: BatchRow, samples: int) -> list[int]:
        place, missing = len(self._offsets), []
        self._samples.append(samples)
        self._indexes.append(row.index)
        for sample in range(samples):
            offset = self.journal.find(row.id, sample, row.request_hash)
            self._offsets.append(_MISSING if offset is None else offset)
            if offset is None:
                missing.append(sample)
        self.found += samples - len(missing)
        if missing:
            self._places[row.index], self._left[row.index] = place, len(missing)
        return missing

    def offset(self, row: BatchRow, sample: int) -> int:
        """Where the journal has a record that was found."""
        offset = self.journal.find(row.id, sample, row.request_hash)
        assert offset is not None
        return offset

    def write(self, row: BatchRow, record: Mapping[str, Any]) -> int:
        """Write a record; return where the journal has it."""
        offset = self.journal.append(record)
        self._offsets[self._places[row.index] + record["sample"]] = offset
        self._left[row.index] -= 1
        if not self._left[row.index]:
            del self._places[row.index], self._left[row.index]
        return offset

    @property
    def unused(self) -> int:
        """Records of the journal that are not in the output: their rows changed, or are gone."""
        return self.journal.lines - len(self._offsets)

    def rows(self) -> Iterator[Records]:
        """Yield the records of each row, in the order of the input."""
        records = self.journal.records(iter(self._offsets))
        for index, samples in zip(self._indexes, self._samples, strict=True):
            yield [{**next(records), "index": index} for _ in range(samples)]


class Totals:
    """Counts over the records that pass through `count`."""

    def __init__(self) -> None:
        self.ok = self.failed = self.prompt_tokens = self.cached_tokens = self.completion_tokens = 0

    def count(self, rows: Iterator[Records]) -> Iterator[Records]:
        """Yield the rows and count their records."""
        for records in rows:
            for record in records:
                self.ok += record["ok"]
                self.failed += not record["ok"]
                prompt, cached, new = tokens_of(record)
                self.prompt_tokens += prompt
                self.cached_tokens += cached
                self.completion_tokens += new
            yield records


def write_output(target: Target, rows: Iterator[Records], form: Form | Shape) -> None:
    """Write the rows to OUT under a temporary name, sync and rename. form: a Shape writes Parquet.

    With an errors file, failed rows go there. Raises FileAccessError; OUT is then as before.
    """
    try:
        if isinstance(form, Shape):
            with replacing(target.out, partial=target.temporary, sync=True) as file:
                write_parquet(file, rows, form)
            return
        packed = target.out.name.lower().endswith(".gz")
        if target.errors is None:
            with replacing(target.out, partial=target.temporary, packed=packed, sync=True) as file:
                file.write(form.head.encode())
                for records in rows:
                    file.write(form.lines(records).encode())
                file.write(form.tail.encode())
            return
        _write_two(target, target.errors, rows, form, packed=packed)
    except OSError as error:
        raise FileAccessError(f"{target.temporary}: {error.strerror or error}") from None


def _write_two(target: Target, errors: Path, rows: Iterator[Records], form: Form, *, packed: bool) -> None:
    """Write answered rows to OUT, failed ones to the errors file, which exists only if there are some."""
    with replacing(target.out, partial=target.temporary, packed=packed, sync=True) as file:
        failed = False
        with replacing(errors, partial=partial_name(errors), packed=packed, sync=True) as bad:
            for records in rows:
                is_bad = not all(record["ok"] for record in records)
                failed |= is_bad
                (bad if is_bad else file).write(form.lines(records).encode())
        if not failed:
            errors.unlink()


def run_record(
    header: Mapping[str, Any], source: object, totals: Totals, facts: Mapping[str, Any], **speed: float | None
) -> dict[str, Any]:
    """What OUT.run.json says: the header of the journal, and the facts of the run.

    facts: of the accuracy. speed: resumed records, seconds, tokens per second.
    """
    return {**header, "schema": RUN_SCHEMA, "input": str(source), **vars(totals), **facts, **speed}


def write_run_record(target: Target, record: Mapping[str, Any]) -> None:
    """Write OUT.run.json. Raises FileAccessError."""
    try:
        with replacing(target.run_record, sync=True) as file:
            file.write(line_of(record).encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise FileAccessError(f"{target.run_record}: {error.strerror or error}") from None
