"""A batch run: rows to prompts, completions to records, in the order of the input."""

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ropechat.batch.line import Content, LineRequest
from ropechat.batch.output import Sink
from ropechat.batch.reader import BatchReader, BatchRow
from ropechat.conversation import Message, Role
from ropechat.engine.scheduler import Completion, Job, Prompt
from ropechat.errors import InternalError, RopechatError
from ropechat.sampling import Sampling

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine

_MAX_NAMES = 5


@dataclass
class BatchReport:
    """The progress of a run."""

    total: int | None
    """None while the number of rows of a pipe is unknown."""
    ok: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    made_tokens: int = 0
    """New tokens, including those of unfinished rows."""
    elapsed: float = 0.0
    cancelled: bool = False

    @property
    def done(self) -> int:
        return self.ok + self.failed


@dataclass(frozen=True)
class PromptOptions:
    """How rows become prompts. raw: no chat template. system: a system message for rows without one."""

    raw: bool = False
    system: str | None = None

    def prompt(self, content: Content) -> Prompt:
        """The prompt of a row for the engine."""
        if isinstance(content, str):
            if self.raw:
                return (self.system or "") + content
            content = [Message(Role.USER, content)]
        if self.system is not None and content[0].role is not Role.SYSTEM:
            content = [Message(Role.SYSTEM, self.system), *content]
        if self.raw:
            return "".join(message.content for message in content)
        return content


def make_job(request: LineRequest, settings: PromptOptions, sampling: Sampling) -> Job:
    """The engine's job for a row: the row's settings override those of the command.

    The command's seed is not put in the Job: only with its own seed is a row sampled as if it were alone.
    """
    own = None
    if request.sampling:
        own = dataclasses.replace(sampling, **{"seed": None, **request.sampling})
    return Job(settings.prompt(request.content), own, request.stop, request.template_vars)


def describe_unused(row: BatchRow, unused: Sequence[str]) -> str:
    """A note about the ignored fields of a row, with the first few names."""
    names = ", ".join(f"{name:.40}" for name in unused[:_MAX_NAMES])
    more = len(unused) - _MAX_NAMES
    return f"note: line {row.line} has ignored fields: {names}{f' and {more} more' if more > 0 else ''}"


def ok_record(row: BatchRow, result: Completion) -> dict[str, Any]:
    """The record of an answered row."""
    return {
        "id": row.id,
        "index": row.index,
        "ok": True,
        "text": result.text,
        "finish_reason": result.finish_reason,
        "usage": {
            "prompt_tokens": result.prompt_tokens,
            "completion_tokens": result.completion_tokens,
        },
        "seed": result.seed,
    }


def error_record(row: BatchRow, error: RopechatError) -> dict[str, Any]:
    """The record of a failed row."""
    message = str(error)
    prefix = f"line {row.line}: "
    return {
        "id": row.id,
        "index": row.index,
        "ok": False,
        "error": {
            "class": type(error).__name__,
            "message": message if prefix in message else f"{prefix}{message}",
        },
    }


def _jobs(
    reader: BatchReader,
    waiting: deque[BatchRow],
    settings: PromptOptions,
    sampling: Sampling,
    on_note: Callable[[str], None] | None,
) -> Iterator[Prompt | Job]:
    """Yield a prompt per row, adding the row to `waiting`; note the first row with ignored fields."""
    for row in reader:
        waiting.append(row)
        if row.request is None:
            yield row.error or InternalError(f"line {row.line}: no request and no error")
            continue
        if row.request.unused and on_note is not None:
            on_note(describe_unused(row, row.request.unused))
            on_note = None
        yield make_job(row.request, settings, sampling)


def run_batch(
    engine: "Engine",
    reader: BatchReader,
    output: Sink,
    sampling: Sampling,
    settings: PromptOptions,
    *,
    total: int | None,
    window: int = 16,
    on_progress: Callable[[BatchReport], None] | None = None,
    on_failure: Callable[[str], None] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> BatchReport:
    """Answer every row of `reader` and write a record for each to `output`, in input order.

    window: maximum sequences per forward pass. on_progress: called after each pass and each record.
    on_failure: called with the message of each failed row. on_note: called once, for ignored fields. The
    completion of row i depends on the model, the row, the settings, the seed and i (not on the last two if
    the row has a seed), and not on other rows.
    """
    report, waiting, begun = BatchReport(total), deque[BatchRow](), time.monotonic()

    def tell() -> None:
        report.elapsed = time.monotonic() - begun
        if on_progress is not None:
            on_progress(report)

    def on_tokens(count: int) -> None:
        report.made_tokens += count
        tell()

    jobs = _jobs(reader, waiting, settings, sampling, on_note)
    for index, result in engine.generate_many(jobs, sampling, window=window, on_tokens=on_tokens):
        row = waiting.popleft()
        if row.index != index:
            raise InternalError(f"batch: result {index} for row {row.index}")
        if result.finish_reason == "cancelled":
            report.cancelled = True
            continue
        if result.error is not None:
            report.failed += 1
            failed = error_record(row, result.error)
            output.write(failed)
            if on_failure is not None:
                on_failure(failed["error"]["message"])
        else:
            report.ok += 1
            report.prompt_tokens += result.prompt_tokens
            report.completion_tokens += result.completion_tokens
            output.write(ok_record(row, result))
        tell()
    tell()
    return report
