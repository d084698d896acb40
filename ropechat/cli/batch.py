"""`ropechat batch`: many prompts from a JSONL file, a result line each."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropechat.cli.common import (
    STREAM,
    FileName,
    StdoutWriter,
    load_chat_engine,
    model_options,
    sampling_of,
    sampling_options,
    stdin_stream,
    template_options,
)
from ropechat.cli.exit_codes import INTERRUPTED, OK, SOME_FAILED, say
from ropechat.cli.status import StatusLine, progress_text
from ropechat.util.text import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropechat.batch.output import Sink
    from ropechat.batch.runner import BatchReport

_FAILURES_SHOWN = 5


def progress_line(report: "BatchReport") -> str:
    """The progress of a run; without bar and time for a pipe, whose number of rows is unknown."""
    total = report.total
    done = f"{report.done} rows" if total is None else f"{report.done}/{total}"
    share = None if total is None else report.done / total if total else 1.0
    counts = {"tokens": report.made_tokens, "failed": report.failed}
    return progress_text(done, share, elapsed=report.elapsed, **counts)


class BatchStatus(StatusLine):
    """The status line of a batch run, and the first failures."""

    def __init__(self) -> None:
        super().__init__()
        self._failures = 0

    def __call__(self, report: "BatchReport") -> None:
        if self.is_due:
            self.show(progress_line(report))

    def failure(self, text: str) -> None:
        """Report a failed row; only the first few."""
        self._failures += 1
        if self._failures <= _FAILURES_SHOWN + 1:
            self.note(
                f"error: {text}" if self._failures <= _FAILURES_SHOWN else "more errors: see the output"
            )


def closing_line(report: "BatchReport", out: Path | str) -> str:
    """A summary of the run for stderr. out: a file, or `-`."""
    rate = report.made_tokens / report.elapsed if report.elapsed > 0 else 0.0
    return (
        f"{'stdout' if out == STREAM else out}: {report.done} rows, {report.ok} ok, {report.failed} failed; "
        f"{report.prompt_tokens} + {report.completion_tokens} tokens, "
        f"{format_duration(report.elapsed)}, {rate:.0f} tok/s"
    )


def _to_file(path: Path, run: "Callable[[Sink], BatchReport]", progress: BatchStatus) -> "BatchReport":
    """Run with output to a file, which gets its final name when the run is complete."""
    from ropechat.batch.output import Output

    with Output(path) as output:
        try:
            report = run(output)
        except BaseException:
            progress.clear()
            output.settle()
            say(f"stopped: {output.partial} contains the first {output.lines} results")
            raise
        progress.clear()
        if not report.cancelled:
            output.complete()
    return report


def _to_stdout(run: "Callable[[Sink], BatchReport]", progress: BatchStatus) -> "BatchReport":
    """Run with output to stdout, a flushed line per record."""
    from ropechat.batch.output import Printed

    out = StdoutWriter()

    def put(line: str) -> None:
        progress.clear()
        out.write(line)

    printed = Printed(put)
    try:
        return run(printed)
    except BrokenPipeError:  # the reader closed the pipe, like `head -1`
        raise
    except BaseException:
        progress.clear()
        say(f"stopped: stdout contains the first {printed.lines} results")
        raise
    finally:
        progress.clear()


@click.command()
@click.argument("source", metavar="IN.jsonl", type=FileName())
@click.option("-o", "--out", required=True, metavar="OUT.jsonl", type=FileName(), help="- is stdout.")
@model_options
@sampling_options
@template_options
@click.option("--system", help="A system message for rows without one.")
@click.option("--raw", is_flag=True, help="Use no chat template: continue the prompts as they are.")
@click.option(
    "--prompt-field", help="The field with the prompt [default: prompt or messages; else text or prefix]."
)
@click.option(
    "--window",
    type=click.IntRange(1, 256),
    default=16,
    show_default=True,
    help="Rows in progress at the same time.",
)
@click.option("--overwrite", is_flag=True, help="Replace OUT.jsonl if it exists.")
def batch(
    source: Path | str,
    out: Path | str,
    system: str | None,
    raw: bool,
    prompt_field: str | None,
    window: int,
    overwrite: bool,
    **given: Any,
) -> int:
    """Answer each line of IN.jsonl ({"id", "prompt"} or {"id", "messages"}) and write OUT.jsonl in its order.

    IN.jsonl may be - (stdin) or a pipe. Lines are read when there is room for them: with --window 1 each is
    answered before the next one is read.

    In a line, max_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed, stop and
    chat_template_kwargs override the options. Other fields are ignored. OpenAI's batch format ({"custom_id",
    "url", "body"}) is supported too. An invalid line gives an error record and exit code 3; the others are
    answered.
    """
    from ropechat.batch.output import refuse_output
    from ropechat.batch.reader import BatchReader
    from ropechat.batch.runner import BatchReport, PromptOptions, run_batch

    sampling, settings = sampling_of(given), PromptOptions(raw, system)
    reader = BatchReader(source if isinstance(source, Path) else stdin_stream(), prompt_field)
    total = reader.check()
    if isinstance(out, Path):
        refuse_output(out, reader.reads, overwrite=overwrite)
    progress = BatchStatus()
    engine = None if total == 0 else load_chat_engine(given, raw=raw)
    if engine is not None:
        for note in engine.facts["notes"]:
            say(note)
        engine.chat.on_note = lambda text: progress.note(f"note: {text}")

    def run(output: "Sink") -> BatchReport:
        if engine is None:
            return BatchReport(0)
        return run_batch(
            engine,
            reader,
            output,
            sampling,
            settings,
            total=total,
            window=window,
            on_progress=progress,
            on_failure=progress.failure,
            on_note=progress.note,
        )

    report = _to_file(out, run, progress) if isinstance(out, Path) else _to_stdout(run, progress)
    if report.cancelled:
        return INTERRUPTED
    say(closing_line(report, out))
    return SOME_FAILED if report.failed else OK
