"""Rows with equal requests: the first is computed, the others get copies of its record (`--dedupe`)."""

from collections.abc import Mapping
from typing import Any

from ropechat.batch.hash_index import HashIndex, hash64
from ropechat.batch.output import Journaled, Sink
from ropechat.batch.reader import BatchRow
from ropechat.batch.records import copy_record

MAX_WAITING = 4096
"""Rows that wait for a record in progress; beyond that no more rows are read."""


class Deduplicated(Sink):
    """A sink in front of a journal, which computes each request once per sample.

    Equal rows have equal seeds (drawn from `BatchRow.dedupe_key`), so a copy equals the record of the row
    alone.
    """

    def __init__(self, sink: Journaled) -> None:
        self._sink = sink
        self._done = HashIndex(wide=True)  # request and sample -> offset in the journal
        self._progress: dict[int, list[BatchRow]] = {}  # the same -> rows that wait for it
        self._waiting = 0

    def begin(self, row: BatchRow, samples: int) -> list[int]:
        """Announce a row; existing records are copied at once."""
        missing = self._sink.begin(row, samples)
        self.found = self._sink.found
        if not row.dedupe_key:
            return missing
        wanted = []
        for sample in range(samples):
            key = _key(row, sample)
            offset = self._done.get(key)
            if sample not in missing:
                if offset is None:
                    self._done.put(key, self._sink.offset(row, sample))
            elif offset is not None:
                self._copy(row, self._sink.journal.record(offset))
            elif key in self._progress:
                self._progress[key].append(row)
                self._wait(1)
            else:
                self._progress[key] = []
                wanted.append(sample)
        return wanted

    def write(self, row: BatchRow, record: Mapping[str, Any]) -> int:
        """Write the record of this row, and copies for those that wait for it."""
        offset = self._sink.write(row, record)
        if row.dedupe_key:
            key = _key(row, record["sample"])
            self._done.put(key, offset)
            for other in self._progress.pop(key):
                self._wait(-1)
                self._copy(other, record)
        return offset

    def _wait(self, more: int) -> None:
        self._waiting += more
        self.is_full = self._waiting >= MAX_WAITING

    def _copy(self, row: BatchRow, record: Mapping[str, Any]) -> None:
        made = copy_record(record, row)
        self._sink.write(row, made)
        self.copied += 1
        if not made["ok"] and self.on_failed_copy is not None:
            self.on_failed_copy(row, made)


def _key(row: BatchRow, sample: int) -> int:
    return hash64(row.dedupe_key, str(sample))
