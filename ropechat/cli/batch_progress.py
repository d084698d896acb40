"""The progress of a batch run on stderr: a line, lines of JSON, or nothing."""

import contextlib
import json
from typing import TYPE_CHECKING, Any

from ropechat.cli.common import STREAM
from ropechat.cli.exit_codes import say
from ropechat.cli.status import ProgressLine
from ropechat.util.progress import Progress, Wait, format_amount, format_rate
from ropechat.util.text import count_of, format_duration

if TYPE_CHECKING:
    from pathlib import Path

    from ropechat.batch.output import Totals
    from ropechat.batch.report import BatchReport
    from ropechat.engine.engine import Engine

_FAILURES_SHOWN = 5


def batch_wait(report: "BatchReport", reading: Progress | None = None) -> Wait:
    """The progress of a run. reading: that of the current prefill."""
    notes = [f"{report.failed} failed"] if report.failed else []
    if report.made_tokens:
        notes.append(format_rate(report.tokens_per_second))
    if reading is not None:
        notes.append(f"{reading.stage} {format_amount(reading)}")
    left = report.seconds_left if report.total is not None and report.done < report.total else None
    progress = Progress("batch", report.done, report.total, "rows")
    return Wait(progress, left=left, elapsed=report.elapsed, notes=tuple(notes))


def progress_record(report: "BatchReport") -> dict[str, Any]:
    """The object of --progress json."""
    left = report.seconds_left
    return {
        "stage": "batch",
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


class BatchStatus(ProgressLine):
    """The progress of a batch run, and the first failures. quiet: no notes and failures."""

    def __init__(self, mode: str = "line", *, quiet: bool = False) -> None:
        super().__init__("none" if quiet else mode)
        self.quiet = quiet
        self._failures = 0
        self._report: BatchReport | None = None

    def progress(self, report: "BatchReport") -> None:
        """Record the progress of the run."""
        self._report = report

    def showing(self, engine: "Engine | None") -> contextlib.AbstractContextManager[None]:
        """Show the progress of the run while the body runs. engine: does the prefill; None: others do."""

        def look() -> Wait | None:
            reading = None if engine is None else engine.progress.read()
            return None if self._report is None else batch_wait(self._report, reading)

        return self.follow(look)

    def _record(self, wait: Wait) -> dict[str, Any]:
        if self._report is None or wait.progress.stage != "batch":
            return super()._record(wait)
        return progress_record(self._report)

    def finish(self, report: "BatchReport") -> None:
        """Show the end of a run."""
        self._report = report
        self.clear()
        if self.mode == "json":
            say(json.dumps(progress_record(report)))

    def tell(self, text: str) -> None:
        """Write a note, unless quiet."""
        if not self.quiet:
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
    rows = count_of(totals.ok + totals.failed, "row")
    cached = f" ({totals.cached_tokens} cached)" if totals.cached_tokens else ""
    tokens = f"{totals.prompt_tokens}{cached} + {count_of(totals.completion_tokens, 'token')}"
    if not totals.prompt_tokens:  # --score: records have no number of tokens of their contexts
        tokens = count_of(totals.completion_tokens, "token")
        tokens += f", {totals.cached_tokens} of contexts cached" if totals.cached_tokens else ""
    resumed = f"{report.found} of an earlier run; " if report.found else ""
    resumed += f"{report.copied} copied; " if report.copied else ""
    name = "stdout" if out == STREAM else out
    speed = f", {report.tokens_per_second:.0f} tok/s" if report.made_tokens else ""
    return (
        f"{name}: {rows}, {totals.ok} ok, {totals.failed} failed; {resumed}"
        f"{tokens}, "
        f"{format_duration(report.elapsed)}{speed}"
    )
