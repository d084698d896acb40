"""`ropechat batch`: many prompts from a JSONL file, a result line each."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropechat.cli.common import (
    load_chat_engine,
    model_options,
    sampling_of,
    sampling_options,
    template_options,
)
from ropechat.cli.door import INTERRUPTED, OK, SOME_FAILED, say
from ropechat.cli.status import StatusLine, bar
from ropechat.text import clock

if TYPE_CHECKING:
    from ropechat.batch.runner import BatchReport

_FAILURES_SHOWN = 5


def progress_line(report: "BatchReport") -> str:
    """Bar, rows, failures, tokens per second, time left (by rows)."""
    share = report.done / report.total if report.total else 1.0
    parts = [f"{bar(share)} {report.done}/{report.total}"]
    if report.failed:
        parts.append(f"{report.failed} failed")
    if report.elapsed > 0:
        parts.append(f"{report.made_tokens / report.elapsed:.0f} tok/s")
    if report.done and report.done < report.total:
        parts.append(f"ETA {clock(report.elapsed / report.done * (report.total - report.done))}")
    return " · ".join(parts)


class Progress(StatusLine):
    """How far the batch is, and the first few failures."""

    def __init__(self) -> None:
        super().__init__()
        self._failures = 0

    def __call__(self, report: "BatchReport") -> None:
        if self.is_due:
            self.show(progress_line(report))

    def failure(self, text: str) -> None:
        """Say what is wrong with a row; the first few only."""
        self._failures += 1
        if self._failures <= _FAILURES_SHOWN + 1:
            self.note(
                f"error: {text}" if self._failures <= _FAILURES_SHOWN else "more errors: see the output"
            )


def closing_line(report: "BatchReport", path: Path) -> str:
    """What was done, for stderr."""
    rate = report.made_tokens / report.elapsed if report.elapsed > 0 else 0.0
    return (
        f"{path}: {report.done} rows, {report.ok} ok, {report.failed} failed; "
        f"{report.prompt_tokens} + {report.completion_tokens} tokens, "
        f"{clock(report.elapsed)}, {rate:.0f} tok/s"
    )


@click.command()
@click.argument("source", metavar="IN.jsonl", type=click.Path(path_type=Path))
@click.option("-o", "--out", required=True, metavar="OUT.jsonl", type=click.Path(path_type=Path))
@model_options
@sampling_options
@template_options
@click.option("--system", help="A system message for rows that have none.")
@click.option("--raw", is_flag=True, help="No chat template: continue the prompts as they are.")
@click.option(
    "--prompt-field", help="The field with the prompt [default: prompt or messages; else text or prefix]."
)
@click.option("--window", type=click.IntRange(1, 256), default=16, show_default=True, help="Rows at a time.")
@click.option("--overwrite", is_flag=True, help="Replace OUT.jsonl if it exists.")
def batch(
    source: Path,
    out: Path,
    system: str | None,
    raw: bool,
    prompt_field: str | None,
    window: int,
    overwrite: bool,
    **given: Any,
) -> int:
    """Answer each line of IN.jsonl ({"id", "prompt"} or {"id", "messages"}) and write OUT.jsonl in its order.

    On a line max_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed, stop and
    chat_template_kwargs go before the options. Other fields are ignored. Lines of OpenAI's batch format
    ({"custom_id", "url", "body"}) are read too. A bad line gives an error record and exit code 3; the others
    are answered.
    """
    from ropechat.batch.output import Output, refuse_output
    from ropechat.batch.rows import BatchReader
    from ropechat.batch.runner import Settings, run_batch

    sampling = sampling_of(given)
    reader = BatchReader(source, prompt_field)
    total = reader.check()
    refuse_output(out, source, overwrite=overwrite)
    engine = load_chat_engine(given, raw=raw)
    for note in engine.facts["notes"]:
        say(note)
    progress = Progress()
    engine.chat.on_note = lambda text: progress.note(f"note: {text}")
    with Output(out) as output:
        try:
            report = run_batch(
                engine,
                reader,
                output,
                sampling,
                Settings(raw, system),
                total=total,
                window=window,
                on_progress=progress,
                on_failure=progress.failure,
                on_note=progress.note,
            )
        except BaseException:
            progress.clear()
            output.settle()
            say(f"stopped: {output.partial} holds the first {output.lines} results")
            raise
        progress.clear()
        if report.cancelled:
            return INTERRUPTED
        output.complete()
    say(closing_line(report, out))
    return SOME_FAILED if report.failed else OK
