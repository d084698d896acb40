"""The progress of a batch run on stderr: a status line, lines of JSON, or nothing."""

import json
import time
from typing import TYPE_CHECKING, Any

from ropechat.cli.common import STREAM
from ropechat.cli.exit_codes import say
from ropechat.cli.status import StatusLine, progress_text
from ropechat.util.text import format_duration

if TYPE_CHECKING:
    from pathlib import Path

    from ropechat.batch.output import Totals
    from ropechat.batch.report import BatchReport

MODES = ("line", "json", "none")
_FAILURES_SHOWN = 5
_JSON_SECONDS = 1.0


def progress_line(report: "BatchReport") -> str:
    """The progress of a run; without bar and time for a pipe, whose number of rows is unknown."""
    total = report.total
    done = f"{report.done} rows" if total is None else f"{report.done}/{total}"
    share = None if total is None else report.done / total if total else 1.0
    left = report.seconds_left if total is not None and report.done < total else None
    return progress_text(done, share, rate=report.tokens_per_second, left=left, failed=report.failed)


def progress_record(report: "BatchReport") -> dict[str, Any]:
    """The object of --progress json."""
    left = report.seconds_left
    return {
        "done": report.done,
        "total": report.total,
        "ok": report.ok,
        "failed": report.failed,
        "resumed": report.found,
        "copied": report.copied,
        "prompt_tokens": report.prompt_tokens,
        "cached_tokens": report.cached_tokens,
        "tokens": report.made_tokens,
        "tok_s": round(report.tokens_per_second, 1),
        "elapsed_s": round(report.elapsed, 1),
        "eta_s": None if left is None else round(left, 1),
    }


class BatchStatus(StatusLine):
    """The progress of a batch run, and the first failures. quiet: no notes and failures."""

    def __init__(self, mode: str = "line", *, quiet: bool = False) -> None:
        super().__init__()
        self._mode = "none" if quiet else mode
        self._quiet = quiet
        self._failures = 0
        self._told = time.monotonic()

    def __call__(self, report: "BatchReport") -> None:
        if self._mode == "line" and self.is_due:
            self.show(progress_line(report))
        elif self._mode == "json" and time.monotonic() - self._told >= _JSON_SECONDS:
            self._tell(report)

    def _tell(self, report: "BatchReport") -> None:
        self._told = time.monotonic()
        say(json.dumps(progress_record(report)))

    def finish(self, report: "BatchReport") -> None:
        """Show the end of a run."""
        self.clear()
        if self._mode == "json":
            self._tell(report)

    def tell(self, text: str) -> None:
        """Write a note, unless quiet."""
        if not self._quiet:
            self.note(text)

    def failure(self, text: str) -> None:
        """Report a failed row; only the first few."""
        self._failures += 1
        if self._failures <= _FAILURES_SHOWN + 1:
            self.tell(
                f"error: {text}" if self._failures <= _FAILURES_SHOWN else "more errors: see the output"
            )


def closing_line(report: "BatchReport", totals: "Totals", out: "Path | str") -> str:
    """A summary of the run for stderr. out: a file, or `-`."""
    rows = totals.ok + totals.failed
    cached = f" ({totals.cached_tokens} cached)" if totals.cached_tokens else ""
    resumed = f"{report.found} of an earlier run; " if report.found else ""
    resumed += f"{report.copied} copied; " if report.copied else ""
    name = "stdout" if out == STREAM else out
    return (
        f"{name}: {rows} rows, {totals.ok} ok, {totals.failed} failed; {resumed}"
        f"{totals.prompt_tokens}{cached} + {totals.completion_tokens} tokens, "
        f"{format_duration(report.elapsed)}, {report.tokens_per_second:.0f} tok/s"
    )
