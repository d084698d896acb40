"""What `ropechat batch` does around a run: notes, progress, signals, the summary; and --dry-run."""

import dataclasses
import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropechat.batch.reader import ALL
from ropechat.batch.records import samples_of
from ropechat.batch.run import run_to_file, run_to_stream
from ropechat.batch.runner import make_job
from ropechat.batch.spec import BatchWatcher
from ropechat.cli.batch_progress import BatchStatus, closing_line
from ropechat.cli.common import StdoutWriter, output
from ropechat.cli.exit_codes import CHECK_FAILED, INTERRUPTED, OK, SOME_FAILED, say
from ropechat.cli.group import ARGUMENTS
from ropechat.cli.interrupt import cancel_on_signal
from ropechat.cli.keep_prefix import kept_prefix
from ropechat.cli.loading import GivenModel, load
from ropechat.conversation import Message
from ropechat.engine.preview import SharedTokens
from ropechat.errors import ModelNotFoundError, RopechatError
from ropechat.util.text import count_of, format_duration

if TYPE_CHECKING:
    from ropechat.batch.reader import BatchRow
    from ropechat.batch.spec import BatchSpec
    from ropechat.engine.engine import Engine
    from ropechat.engine.preview import ModelPreview
    from ropechat.engine.spec import ModelSpec
    from ropechat.sampling import Sampling


class CommandWatcher(BatchStatus, BatchWatcher):
    """Loads the model as the options say, and tells on stderr what happens."""

    def __init__(self, model: GivenModel, keep_prefix: str | None, mode: str, *, quiet: bool) -> None:
        super().__init__(mode, quiet=quiet)
        self._model, self._keep_prefix = model, keep_prefix
        self.from_pipe = False

    def find(self, model: "ModelSpec") -> "ModelSpec":
        return self._model.find()

    def load(self, model: "ModelSpec", sampling: "Sampling") -> "Engine":
        engine = load(model, quiet=self.quiet, grammar=sampling.grammar, line=self)
        for note in engine.facts["notes"]:
            self.tell(note)
        engine.prompts.on_note = lambda text: self.tell(f"note: {text}")
        return engine

    @contextmanager
    def during(self, engine: "Engine | None") -> Iterator[None]:
        with ExitStack() as contexts:
            if engine is not None:
                contexts.enter_context(cancel_on_signal(engine))
            contexts.enter_context(self.showing(engine))
            if engine is not None:
                contexts.enter_context(kept_prefix(engine, self._keep_prefix, self.tell))
            yield

    def stopped(self, where: str, *, resumable: bool) -> None:
        again = ", with the same input" if self.from_pipe else ""
        say(f"stopped: {where}" + (f"; continue{again}: {_command()}" if resumable else ""))


def answer_rows(
    spec: "BatchSpec", out: Path | str, form: str | None, watcher: CommandWatcher, **files: bool
) -> int:
    """Run a batch and say how it went; return the exit code.

    out: a file, a device or `-`. files: options of `run_to_file`.
    """
    watcher.from_pipe = not isinstance(spec.source, Path)
    if isinstance(out, Path) and not out.is_char_device():
        result = run_to_file(spec, out, form, watcher=watcher, **files)
    else:
        name = str(out) if isinstance(out, Path) else "stdout"
        with output(out) as write:
            result = run_to_stream(spec, _aside(watcher, write), form or "jsonl", name, watcher)
    if result.report.cancelled:
        return INTERRUPTED
    watcher.finish(result.report)
    if not watcher.quiet:
        say(closing_line(result.report, result.totals, out))
        for line in result.findings.lines():
            say(line)
    return SOME_FAILED if result.totals.failed else OK


class _GridWatcher(CommandWatcher):
    """Keeps a model that several variants have."""

    _loaded: "tuple[ModelSpec, Engine] | None" = None

    def find(self, model: "ModelSpec") -> "ModelSpec":
        return self._model._replace(spec=model).find()

    def load(self, model: "ModelSpec", sampling: "Sampling") -> "Engine":
        if self._loaded is None or self._loaded[0] != model:
            if self._loaded is not None:
                self._loaded[1].close()
            self._loaded = model, super().load(model, sampling)
        return self._loaded[1]


def run_variants(
    spec: "BatchSpec",
    file: Path,
    out: Path | str,
    form: str,
    keep: str,
    model: GivenModel,
    options: "tuple[str | None, str, bool]",
    **files: bool,
) -> int:
    """Run the variants of a grid and say how they compare; return the exit code.

    keep: the fields that the table has. options: of `CommandWatcher`. files: of `run_grid`.
    """
    from ropechat.batch.grid import FORMS, read_grid, run_grid

    if form not in FORMS or not isinstance(out, Path):
        raise click.UsageError(f"--grid: results must be {', '.join(FORMS)} (got {form})")
    if not isinstance(spec.source, Path) or not spec.source.is_file():
        raise click.UsageError("--grid: IN must be a file, which each variant reads")
    if keep == ALL:
        raise click.UsageError("--keep: must name the fields of the table with --grid")
    grid = read_grid(file, spec)
    watcher = _GridWatcher(model, *options[:2], quiet=options[2])
    names = [name for name in keep.split(",") if name]
    result = run_grid(grid, out, form, keep=names, watcher=watcher, **files)
    if result.cancelled:
        return INTERRUPTED
    if not watcher.quiet:
        for line in result.lines():
            say(line)
    if not result.passes:
        return CHECK_FAILED
    return SOME_FAILED if any(sums.failed for sums in result.sums.values()) else OK


def _aside(watcher: CommandWatcher, write: Callable[[str], object]) -> Callable[[str], None]:
    """Write while the progress line is not drawn."""

    def put(text: str) -> None:
        with watcher.aside():
            write(text)

    return put


def check_rows(spec: "BatchSpec", *, quiet: bool) -> int:
    """Check all rows without the weights; print the first request and a summary. Returns the exit code."""
    reader, out, status = spec.reader(), StdoutWriter(), BatchStatus(quiet=quiet)
    reader.check()
    model, missing = _preview(spec)
    if model is not None:
        spec = spec.for_engine(model)
    counts, answers, longest_answers = SharedTokens(), 0, 0
    ok = failed = 0
    for row in reader:
        if row.request is None:
            failed += 1
            status.failure(str(row.error))
            continue
        if not ok:
            out.write(json.dumps(_request_record(row, spec), ensure_ascii=False) + "\n")
        ok += 1
        job = make_job(row.request, spec)
        samples = 1 if spec.rows.score else samples_of(row.request, spec.prompts.samples)
        answers += samples
        longest_answers += samples * (job.sampling or spec.sampling).max_tokens
        if model is not None:
            try:
                counts.add(model.ids(job))
            except RopechatError as error:
                ok, failed = ok - 1, failed + 1
                status.failure(f"{row.place}{error}")
    if not quiet:
        for name in reader.unkept:
            say(f"note: --keep: {name!r}: no row has this field")
        for text in (*reader.source.notes, *([] if reader.warning is None else [reader.warning])):
            say(text)
        if missing:
            say(f"note: no tokens and no settings of the model: {missing}")
        elif model is not None:
            say(_cost(counts, model, 0 if spec.rows.score else longest_answers, answers))
        rows = count_of(ok + failed, "row")
        say(f"{reader.source.where}: {rows}, {ok} ok, {failed} failed; nothing was computed")
    return SOME_FAILED if failed else OK


def _preview(spec: "BatchSpec") -> "tuple[ModelPreview | None, str]":
    """What is known of the model; None with the reason if it is not on this machine."""
    from ropechat.engine.preview import ModelPreview

    try:
        return ModelPreview(spec.model), ""
    except ModelNotFoundError as error:
        return None, str(error)


def _cost(counts: "SharedTokens", model: "ModelPreview", longest: int, answers: int) -> str:
    """The tokens of a run, and how long they take if that was measured."""
    shared = counts.tokens - counts.read
    tokens = count_of(counts.tokens, "token")
    text = f"prompts: {tokens}, {shared:,} shared; the longest has {counts.longest:,}"
    speed = model.speed
    if counts.read and speed.prefill:
        text += f"; about {format_duration(counts.read / speed.prefill)} to read"
    if longest:
        text += f"; up to {longest:,} tokens of {count_of(answers, 'answer')}"
        if speed.decode:
            one = format_duration(longest / speed.decode)
            text += f", which take at most {one} one by one, and less in company"
    return text


def _request_record(row: "BatchRow", spec: "BatchSpec") -> dict[str, Any]:
    """The request to the model for a row, or with --score what would be scored."""
    request = row.request
    assert request is not None
    if not spec.rows.score:
        job = make_job(request, spec)
        sampling = dataclasses.asdict(job.sampling or spec.sampling)
        samples = samples_of(request, spec.prompts.samples)
        return {"id": row.id, "prompt": _plain(job.prompt), "prefix": job.prefix, "n": samples, **sampling}
    record: dict[str, Any] = {"id": row.id, "prompt": _plain(request.content)}
    if request.is_pair:
        return {**record, "completion": request.choices[0]}
    return {**record, "choices": list(request.choices), "answer": request.answer}


def _plain(prompt: Any) -> Any:
    """A prompt as JSON: messages as objects."""
    if not isinstance(prompt, list):
        return prompt
    return [
        {"role": part.role, "content": part.content} if isinstance(part, Message) else part for part in prompt
    ]


def _command() -> str:
    """The command line that continues this run."""
    words = click.get_current_context().meta.get(ARGUMENTS, ())
    kept = [word for word in words if word not in ("--overwrite", "--retry-failed")]
    if "--resume" not in kept:
        kept.append("--resume")
    return shlex.join(["ropechat", *kept])
