"""The flow of `ropechat batch`: checks that need no model first, then the model, the rows, and the output."""

import contextlib
import dataclasses
import io
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropechat.batch.dedupe import Deduplicated
from ropechat.batch.forms import SHARD, STREAMED, Form, form_of, require_parquet, text_form
from ropechat.batch.header import engine_header, model_header, settings_header
from ropechat.batch.journal import Journal, differences, has_header, read_header
from ropechat.batch.output import (
    Journaled,
    Printed,
    Sink,
    Target,
    Totals,
    run_record,
    write_output,
    write_run_record,
)
from ropechat.batch.reader import ALL, AllAlikeError, BatchReader, BatchRow, RowOptions
from ropechat.batch.records import samples_of
from ropechat.batch.report import BatchReport
from ropechat.batch.runner import PromptOptions, make_job, run_batch
from ropechat.batch.score import Accuracy, Counted, score_batch
from ropechat.cli.batch_progress import BatchStatus, closing_line
from ropechat.cli.common import (
    StdoutWriter,
    draft_path,
    load_chat_engine,
    model_or_builtin,
    model_path,
    stdin_stream,
)
from ropechat.cli.exit_codes import INTERRUPTED, OK, SOME_FAILED, say
from ropechat.cli.group import ARGUMENTS
from ropechat.cli.interrupt import cancel_on_signal
from ropechat.cli.keep_prefix import kept_prefix
from ropechat.cli.output_file import OutputFile
from ropechat.conversation import Message
from ropechat.engine.validation import choose_seed
from ropechat.errors import BatchInputError
from ropechat.sampling import Sampling
from ropechat.util.paths import expand_home
from ropechat.util.text import count_of

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine

_TABLES = ("csv", "tsv", "parquet")
Compute = Callable[[BatchReader, Sink, int | None], BatchReport]
"""Computes the rows of a reader into a sink; called with their number."""


def table_columns(reader: BatchReader, form: str) -> list[str]:
    """The kept fields as columns of a table; [] for other forms. Use it after `check`."""
    keep, columns = reader.options.keep, reader.source.columns
    if columns and keep != ALL and (missing := [name for name in keep if name not in columns]):
        raise click.UsageError(f"--keep: {missing[0]}: no such column (got {', '.join(columns):.200})")
    if form not in _TABLES or keep != ALL:
        return list(keep) if keep != ALL else []
    if reader.source.form not in _TABLES:
        raise click.UsageError(
            f"--keep all: {form} needs the names of its columns; list the fields: --keep a,b"
        )
    return [name for name in columns if name not in ("id", "custom_id")]


@dataclass
class BatchRun:
    """A batch with the options of the command line."""

    source: Path | str
    form_in: str | None
    rows: RowOptions
    settings: PromptOptions
    sampling: Sampling
    status: BatchStatus
    quiet: bool
    window: int
    max_errors: int | None
    timeout: float | None = None
    """Seconds after which a row fails."""
    ray: str | None = None
    """The address of a Ray cluster, "" for that of this machine; None computes here."""
    any_isa: bool = False
    keep_prefix: str | None = None
    """The name under which the common prefix of the rows is kept."""

    def _reader(self) -> BatchReader:
        source = self.source if isinstance(self.source, Path) else stdin_stream()
        return BatchReader(source, form=self.form_in, options=self.rows)

    # ---- without a model

    def check(self) -> int:
        """Check all rows; print the first request and a summary."""
        reader, out = self._reader(), StdoutWriter()
        reader.check()
        ok = failed = 0
        for row in reader:
            if row.request is None:
                failed += 1
                self.status.failure(str(row.error))
                continue
            if not ok:
                out.write(json.dumps(self._request_record(row), ensure_ascii=False) + "\n")
            ok += 1
        if not self.quiet:
            self._note_unkept(reader)
            self._warn(reader)
            rows = count_of(ok + failed, "row")
            say(f"{reader.source.where}: {rows}, {ok} ok, {failed} failed; nothing was computed")
        return SOME_FAILED if failed else OK

    def _request_record(self, row: BatchRow) -> dict[str, Any]:
        """The request to the model for a row."""
        assert row.request is not None
        if self.rows.score:
            return _score_request(row)
        job = make_job(row.request, self.settings, self.sampling)
        prompt: Any = job.prompt
        if isinstance(prompt, list):
            prompt = [
                {"role": part.role, "content": part.content} if isinstance(part, Message) else part
                for part in prompt
            ]
        sampling = dataclasses.asdict(job.sampling or self.sampling)
        samples = samples_of(row.request, self.settings.samples)
        return {"id": row.id, "prompt": prompt, "prefix": job.prefix, "n": samples, **sampling}

    # ---- with a model

    def _load(self, given: dict[str, Any]) -> "Engine":
        engine = load_chat_engine(
            given, raw=self.settings.raw, quiet=self.quiet, grammar=self.sampling.grammar, line=self.status
        )
        if not self.quiet:
            for note in engine.facts["notes"]:
                say(note)
        engine.chat.on_note = lambda text: self.status.tell(f"note: {text}")
        return engine

    def _run(
        self, engine: "Engine", reader: BatchReader, sink: Sink, total: int | None, run_seed: int
    ) -> BatchReport:
        kept = kept_prefix(engine, self.keep_prefix, self.status.tell)
        with cancel_on_signal(engine), self.status.during(engine), kept:
            return self._compute(engine, reader, sink, total, run_seed)

    def _compute(
        self, engine: "Engine", reader: BatchReader, sink: Sink, total: int | None, run_seed: int
    ) -> BatchReport:
        if self.rows.score:
            return score_batch(
                engine,
                reader,
                sink,
                total=total,
                window=self.window,
                max_errors=self.max_errors,
                on_progress=self.status,
                on_failure=self.status.failure,
                has_row=reader.source.has_row,
            )
        return run_batch(
            engine,
            reader,
            sink,
            self.sampling,
            self.settings,
            run_seed=run_seed,
            total=self._records_of(total),
            window=self.window,
            max_errors=self.max_errors,
            timeout=self.timeout,
            on_progress=self.status,
            on_failure=self.status.failure,
            on_note=self.status.tell,
            has_row=reader.source.has_row,
        )

    def _form(self, form: str, columns: list[str], model: str) -> Form:
        facts = {"name": model, "fingerprint": f"ropechat-{_version()}"}
        return text_form(form, columns, sampled=self.settings.samples > 1, model=facts)

    def _check_form(self, form: str) -> None:
        """Raise UsageError for results that a table cannot hold."""
        if form in _TABLES and self.settings.logprobs is not None:
            raise click.UsageError(f"--logprobs: not possible as {form}; use jsonl, json or openai")

    def to_stream(self, out: Path | str, form: str, given: dict[str, Any]) -> int:
        """Answer the rows; each record is written to stdout or a device as soon as those before it are."""
        name = str(out) if isinstance(out, Path) else "stdout"
        if form not in STREAMED:
            raise click.UsageError(f"--out {form}: not possible on {name}; give a file (-o)")
        self._check_form(form)
        reader = self._reader()
        total = reader.check()
        columns = table_columns(reader, form)
        reader.check_first_rows()
        self._warn(reader)
        engine = None if total == 0 else self._load(given)
        stream = OutputFile(out) if isinstance(out, Path) else StdoutWriter()

        def put(text: str) -> None:
            with self.status.aside():
                stream.write(text)

        printed = Printed(put, self._form(form, columns, "" if engine is None else engine.name))
        report, accuracy = BatchReport(0), Accuracy()
        try:
            if engine is not None:
                sink = Counted(printed, accuracy)
                report = self._run(engine, reader, sink, total, choose_seed(self.sampling))
            if not report.cancelled:
                printed.finish()
        except BrokenPipeError:  # the reader closed the pipe, like `head -1`
            raise
        except BaseException:
            self.status.clear()
            say(f"stopped: {name} contains the first {count_of(printed.lines, 'result')}")
            raise
        finally:
            self.status.clear()
            if isinstance(stream, OutputFile):
                stream.close(complete=True)
        if report.cancelled:
            return INTERRUPTED
        totals = Totals()
        totals.ok, totals.failed = report.ok, report.failed
        totals.prompt_tokens, totals.cached_tokens = report.prompt_tokens, report.cached_tokens
        totals.completion_tokens = report.completion_tokens
        return self._close(report, totals, out, accuracy, reader)

    def _close(
        self, report: BatchReport, totals: Totals, out: Path | str, accuracy: Accuracy, reader: BatchReader
    ) -> int:
        self.status.finish(report)
        if not self.quiet:
            self._note_unkept(reader)
            say(closing_line(report, totals, out))
            if accuracy.rows:
                say(accuracy.line())
        return SOME_FAILED if totals.failed else OK

    def _note_unkept(self, reader: BatchReader) -> None:
        for name in reader.unkept:
            say(f"note: --keep: {name!r}: no row has this field")

    def _warn(self, reader: BatchReader) -> None:
        if (text := reader.warning) is not None:
            self.status.tell(text)

    def to_file(
        self,
        out: Path,
        form: str | None,
        given: dict[str, Any],
        *,
        overwrite: bool,
        resume: bool,
        retry_failed: bool,
    ) -> int:
        """Answer the rows into a journal, and write the output from it when all are done."""
        shard = self.rows.shard
        if shard is not None:
            out, form = shard.file_of(out), SHARD
        form = form or form_of(out)
        if form == "parquet":
            require_parquet()
        self._check_form(form)
        reader = self._reader()
        total = reader.check()
        columns = table_columns(reader, form)
        target = Target(out, errors=form == "openai")
        target.refuse(reader.source.is_file, overwrite=overwrite, resume=resume)
        reader.check_first_rows()
        self._warn(reader)

        before = read_header(target.journal) if resume and has_header(target.journal) else None
        if before is not None and self.sampling.seed is None:
            run_seed = int(before["run_seed"])
        elif shard is not None and self.sampling.seed is None:  # with --score, which draws nothing
            run_seed = 0
        else:
            run_seed = choose_seed(self.sampling)
        header = settings_header(run_seed, self.sampling, self.settings, self.rows)
        _require_same(target, before, header)
        journal = None if before is None else Journal.resume(target.journal, retry_failed=retry_failed)
        with contextlib.ExitStack() as opened:
            if journal is not None:
                opened.enter_context(journal)
            compute: Compute | None = None
            if total != 0 and (journal is None or not self._is_complete(reader, total, journal)):
                if self.ray is None:
                    compute = self._open(
                        given, header, run_seed, lambda: _require_same(target, before, header)
                    )
                else:
                    compute = self._open_cluster(given, header, run_seed, opened)
                _require_same(target, before, header)
            if journal is None:
                journal = opened.enter_context(Journal.create(target.journal, header))
            work = _FileRun(self, target, form, columns, journal, before or header, keep_journal=resume)
            return work.run(compute, reader, total)

    def _open(
        self, given: dict[str, Any], header: dict[str, Any], run_seed: int, check: Callable[[], None]
    ) -> Compute:
        """Load the model and add its fields to the header; check: called before the weights are read."""
        draft = draft_path(given)
        path = model_path(given)
        given |= {"model": str(path), "draft": draft and str(draft), "download": False}
        header |= {"model": model_header(path)}
        check()
        variables = given["template_vars"]
        engine = self._load(given)
        header["model"]["name"], header["model"]["revision"] = engine.name, engine.revision
        header |= engine_header(engine, variables)
        return lambda reader, sink, total: self._run(engine, reader, sink, total, run_seed)

    def _open_cluster(
        self, given: dict[str, Any], header: dict[str, Any], run_seed: int, opened: contextlib.ExitStack
    ) -> Compute:
        """Load the model on all nodes of a Ray cluster, and add its fields to the header."""
        from ropechat.batch.cluster import Cluster
        from ropechat.batch.worker import Model, Work

        name = _anywhere(model_or_builtin(given["model"]))
        options = {name: given[name] for name in ("dtype", "kv_dtype", "threads", "context", "cache")}
        options["speculative"] = "auto" if given["speculative"] else "off"
        options["draft"] = given["draft"] and _anywhere(given["draft"])
        model = Model(name, options, self.settings.raw, given["template"], given["template_vars"])
        cluster = Cluster(self.ray or None, model, any_isa=self.any_isa, on_note=self.status.tell)
        opened.callback(cluster.close)
        # Ray prints its own account of lost nodes to stdout; the notes of `cluster` say it in a line each.
        opened.enter_context(contextlib.redirect_stdout(io.StringIO()))
        self.status.tell(f"note: {cluster.describe()}")
        header |= cluster.header
        work = Work(self.sampling, self.settings, run_seed, self.window, self.rows.score, self.timeout)

        def run(reader: BatchReader, sink: Sink, total: int | None) -> BatchReport:
            with self.status.during():
                return cluster.run(
                    iter(reader),
                    sink,
                    work,
                    total=self._records_of(total),
                    max_errors=self.max_errors,
                    on_progress=self.status,
                    on_failure=self.status.failure,
                )

        return run

    def _records_of(self, total: int | None) -> int | None:
        return None if total is None or self.rows.score else total * self.settings.samples

    def _is_complete(self, reader: BatchReader, total: int | None, journal: Journal) -> bool:
        """Whether a journal has all records already."""
        if total is None or journal.lines < total:
            return False
        sink = Journaled(journal)
        return not any(sink.begin(row, samples_of(row.request, self.settings.samples)) for row in reader)


@dataclass
class _FileRun:
    """A run with an open journal."""

    batch: BatchRun
    target: Target
    form: str
    columns: list[str]
    journal: Journal
    header: Mapping[str, Any]
    keep_journal: bool

    def run(self, compute: Compute | None, reader: BatchReader, total: int | None) -> int:
        """Compute the rows that are not in the journal, and write the output. compute: None if it has all."""
        batch, sink = self.batch, Journaled(self.journal)
        try:
            if compute is not None:
                report = compute(reader, Deduplicated(sink) if batch.rows.dedupe else sink, total)
            else:
                report = BatchReport(total)
                for row in reader:
                    sink.begin(row, samples_of(row.request, batch.settings.samples))
                report.found = sink.found
            batch.status.clear()
            if report.cancelled:
                self._stopped()
                return INTERRUPTED
            accuracy = Accuracy()
            totals = self._write(sink, accuracy)
        except AllAlikeError:
            batch.status.clear()
            self.journal.remove()
            raise
        except BaseException:
            batch.status.clear()
            self.journal.settle()
            self._stopped()
            raise
        if sink.unused > 0:
            limited = batch.rows.limit is not None
            batch.status.tell(
                describe_stale(sink.unused, self.journal.path.name, self.target.out.name, limited=limited)
            )
        if self.keep_journal and reader.above_limit:
            more = count_of(reader.above_limit, "row")
            batch.status.tell(f"note: {more} above --limit; the same command without it computes the rest")
        self._write_run_record(report, totals, accuracy)
        if not self.keep_journal and not totals.failed:
            self.journal.remove()
        return batch._close(report, totals, self.target.out, accuracy, reader)

    def _write(self, sink: Journaled, accuracy: Accuracy) -> Totals:
        totals, batch = Totals(), self.batch
        self.journal.sync()
        rows = accuracy.count(totals.count(sink.rows()))
        sampled = batch.settings.samples > 1
        if self.form == "parquet":
            write_output(self.target, rows, None, columns=self.columns, sampled=sampled)
        else:
            name = self.header.get("model", {}).get("name", "")
            write_output(self.target, rows, batch._form(self.form, self.columns, name))
        return totals

    def _write_run_record(self, report: BatchReport, totals: Totals, accuracy: Accuracy) -> None:
        record = run_record(
            self.header,
            self.batch.source,
            totals,
            accuracy.facts(),
            resumed=report.found,
            **({"copied": report.copied} if self.batch.rows.dedupe else {}),
            elapsed_s=round(report.elapsed, 3),
            tok_s=round(report.tokens_per_second, 1),
        )
        write_run_record(self.target, record)

    def _stopped(self) -> None:
        again = "" if isinstance(self.batch.source, Path) else ", with the same input"
        done = f"{self.target.journal} contains {count_of(self.journal.lines, 'result')}"
        say(f"stopped: {done}; continue{again}: {_command()}")


def describe_stale(count: int, journal: str, out: str, *, limited: bool = False) -> str:
    """A note about records that a resumed run did not use. limited: by --limit."""
    why = "changed, removed or above --limit" if limited else "changed or removed"
    if count == 1:
        return f"note: 1 result of {journal} is not in {out}: its row is {why}"
    return f"note: {count:,} results of {journal} are not in {out}: their rows are {why}"


def _score_request(row: BatchRow) -> dict[str, Any]:
    """What would be scored for a row."""
    request = row.request
    assert request is not None
    prompt: Any = request.content
    if not isinstance(prompt, str):
        prompt = [
            {"role": part.role, "content": part.content} for part in prompt if isinstance(part, Message)
        ]
    record: dict[str, Any] = {"id": row.id, "prompt": prompt}
    if request.is_pair:
        return {**record, "completion": request.choices[0]}
    return {**record, "choices": list(request.choices), "answer": request.answer}


def _require_same(target: Target, before: Mapping[str, Any] | None, header: Mapping[str, Any]) -> None:
    """Raise BatchInputError if a stopped run had other settings, naming the fields."""
    found = [] if before is None else differences(before, header)
    if found:
        raise BatchInputError(
            f"{target.journal}: made with other settings: {'; '.join(found)}; use the same ones, or replace "
            "--resume by --overwrite to start again"
        )


def _anywhere(name: str) -> str:
    """A model's name that means the same in every folder."""
    path = expand_home(name)
    return str(path.absolute()) if path.exists() else name


def _command() -> str:
    """The command line that continues this run."""
    words = click.get_current_context().meta.get(ARGUMENTS, ())
    kept = [word for word in words if word not in ("--overwrite", "--retry-failed")]
    if "--resume" not in kept:
        kept.append("--resume")
    return shlex.join(["ropechat", *kept])


def _version() -> str:
    from ropechat.engine.native import load_core

    return str(load_core().__version__)
