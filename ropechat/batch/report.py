"""The progress of a batch run, and when failed rows end it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ropechat.batch.estimate import RowsEstimate
from ropechat.batch.output import Sink
from ropechat.batch.reader import BatchRow, EarlyStop
from ropechat.errors import BatchInputError, UnsureError
from ropechat.util.text import count_of


@dataclass
class BatchReport:
    """The progress of a run, in records: one per row and sample."""

    total: int | None
    """Number of rows; None while it is unknown, as for a pipe."""
    ok: int = 0
    failed: int = 0
    found: int = 0
    """Records that an earlier run made."""
    copied: int = 0
    """Records that are copies of others, see `dedupe`."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    made_tokens: int = 0
    """New tokens, including those of unfinished rows."""
    elapsed: float = 0.0
    cancelled: bool = False
    estimate: RowsEstimate | None = None
    """Estimates the time left, if this process computes the rows."""

    @property
    def done(self) -> int:
        return self.ok + self.failed + self.found + self.copied

    @property
    def tokens_per_second(self) -> float:
        return self.made_tokens / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """The time left; None if unknown.

        Without an estimate by tokens: the rest is expected to be as long as what is done.
        """
        if self.estimate is not None and self.total is not None:
            return self.estimate.left(self.total - self.found - self.copied)
        if self.total is None or not self.ok or not self.made_tokens:
            return None
        per_record = self.completion_tokens / (self.ok + self.failed)
        left = per_record * (self.total - self.found - self.copied) - self.made_tokens
        return max(0.0, left) / self.tokens_per_second


class Failures:
    """Writes the records of failed rows, counts them in `report`, and ends a run with too many failures.

    max_errors: how many may fail. on_failure: called with the message of each. early_stop: judge the first
    rows, see `EarlyStop`.
    """

    def __init__(
        self,
        report: BatchReport,
        sink: Sink,
        max_errors: int | None,
        on_failure: Callable[[str], None] | None,
        *,
        early_stop: bool = True,
    ) -> None:
        self._report, self._sink, self._max, self._tell = report, sink, max_errors, on_failure
        self._early = EarlyStop() if early_stop else None
        self._count = 0
        sink.on_failed_copy = self._judge

    def take(self, row: BatchRow, record: Mapping[str, Any]) -> None:
        """A row failed. Raises AllAlikeError, and BatchInputError above max_errors."""
        self._sink.write(row, record)
        self._report.failed += 1
        self._judge(row, record)

    def _judge(self, row: BatchRow, record: Mapping[str, Any]) -> None:
        error = record["error"]
        self._count += 1
        if self._tell is not None:
            self._tell(error["message"])
        if self._early is not None and not self._sink.found and error["class"] != UnsureError.__name__:
            self._early.take(row.index, error["class"], error["message"])
        if self._max is not None and self._count > self._max:
            raise BatchInputError(f"more than {count_of(self._max, 'row')} failed (--max-errors)")
