"""A batch as one call: input, output and model are checked, rows are computed, results are written.

`run_to_file` computes into a journal, from which a stopped run continues, and makes the output from it at the
end. `run_to_stream` gives the text of each record to a function.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropechat.batch.dedupe import Deduplicated
from ropechat.batch.findings import Findings
from ropechat.batch.forms import SHARD, STREAMED, Form, Shape, form_of, require_parquet, text_form
from ropechat.batch.header import engine_header, model_header, settings_header
from ropechat.batch.journal import OF_RESULTS, Journal, differences, has_header, read_header
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
from ropechat.batch.reader import TABLES, AllAlikeError, BatchReader, table_columns
from ropechat.batch.records import samples_of
from ropechat.batch.report import BatchReport
from ropechat.batch.runner import compute_rows
from ropechat.batch.score import Accuracy
from ropechat.batch.spec import BatchSpec, BatchWatcher
from ropechat.engine.native import load_core
from ropechat.engine.validation import choose_seed
from ropechat.errors import BatchInputError, RequestError
from ropechat.util.paths import expand_home
from ropechat.util.text import count_of

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine

_Compute = Callable[[Sink, int], BatchReport]
"""Computes the rows into a sink. Called with the seed of the run."""


@dataclass(frozen=True)
class BatchResult:
    """What a run did. report: of this run. totals, findings: of all records, earlier runs included.

    After a cancelled run both are of no records.
    """

    report: BatchReport
    totals: Totals
    findings: Findings

    @property
    def accuracy(self) -> Accuracy:
        """Of scored choices."""
        return self.findings.accuracy


@dataclass(frozen=True)
class _Input:
    """The checked input. total: number of rows, None if unknown. columns: kept fields of a table."""

    reader: BatchReader
    total: int | None
    columns: list[str]


def run_to_stream(
    spec: BatchSpec,
    put: Callable[[str], None],
    form: str = "jsonl",
    name: str = "stdout",
    watcher: BatchWatcher | None = None,
) -> BatchResult:
    """Answer the rows; the text of each record goes to `put` as soon as those before it are written.

    name: of the destination, for messages. Raises RequestError, BatchInputError, and as `ModelSpec.load`.
    """
    watcher = watcher or BatchWatcher()
    if form not in STREAMED:
        raise RequestError(f"--format {form}: not possible on {name}; give a file (-o)")
    given = _read_input(spec, form, watcher)
    engine = None if given.total == 0 else watcher.load(watcher.find(spec.model), spec.sampling)
    findings, report = Findings(greedy=spec.sampling.temperature == 0), BatchReport(0)
    form_with_model = _text_form(
        _header(spec, given, 0), form, given.columns, "" if engine is None else engine.name
    )
    printed = Printed(put, form_with_model, findings.add)
    try:
        if engine is not None:
            report = _with_engine(spec, given, engine, watcher)(printed, choose_seed(spec.sampling))
        if not report.cancelled:
            printed.finish()
    except BrokenPipeError:  # the reader closed the pipe, like `head -1`
        raise
    except BaseException:
        watcher.clear()
        watcher.stopped(f"{name} contains the first {count_of(printed.lines, 'result')}", resumable=False)
        raise
    finally:
        watcher.clear()
    if not report.cancelled:
        _tell_unkept(given.reader, watcher)
    totals = Totals()
    for count in vars(totals):
        setattr(totals, count, getattr(report, count))
    return BatchResult(report, totals, findings)


def run_to_file(
    spec: BatchSpec,
    out: Path,
    form: str | None = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
    retry_failed: bool = False,
    watcher: BatchWatcher | None = None,
) -> BatchResult:
    """Answer the rows into a journal beside `out`, and write `out` from it when all are done.

    form: of `out`, by default the one of its suffix. overwrite: replace `out`, and discard the journal of a
    stopped run. resume: continue from that journal; without one, start. retry_failed: compute failed rows
    again. After a cancel or an error the journal stays. Raises BatchInputError, FileAccessError,
    RequestError, and as `ModelSpec.load`.
    """
    watcher = watcher or BatchWatcher()
    shard = spec.rows.shard
    if shard is not None:
        out, form = shard.file_of(out), SHARD
    form = form or form_of(out)
    if form == "parquet":
        require_parquet()
    target = Target(out, errors=form == "openai")
    given = _read_input(
        spec,
        form,
        watcher,
        lambda reader: target.refuse(reader.source.is_file, overwrite=overwrite, resume=resume),
    )
    before = read_header(target.journal) if resume and has_header(target.journal) else None
    if before is not None and spec.sampling.seed is None:
        run_seed = before.get("run_seed", -1)
        if type(run_seed) is not int or not 0 <= run_seed < 1 << 64:
            raise BatchInputError(
                f"{target.journal}: line 1: run_seed: must be a number of 64 bits (got {run_seed!r:.40}); "
                "replace --resume by --overwrite to start again"
            )
    elif shard is not None and spec.sampling.seed is None:  # of scores, which draw nothing
        run_seed = 0
    else:
        run_seed = choose_seed(spec.sampling)
    header = _header(spec, given, run_seed)

    def require_same() -> None:
        same = {**header, "fail_below": (before or header).get("fail_below")} if retry_failed else header
        if before is not None and (found := differences(before, same)):
            raise BatchInputError(
                f"{target.journal}: made with other settings: {'; '.join(found)}; use the same ones, or "
                "replace --resume by --overwrite to start again"
            )

    require_same()
    with ExitStack() as opened:
        journal = None
        if before is not None:
            journal = opened.enter_context(Journal.resume(target.journal, retry_failed=retry_failed))
        compute: _Compute | None = None
        if given.total != 0 and (journal is None or not _is_complete(spec, given, journal)):
            if spec.ray is not None:
                compute = _open_cluster(spec, given, header, opened, watcher)
            else:
                compute = _open(spec, given, header, require_same, watcher)
            require_same()
        if journal is None:
            journal = opened.enter_context(Journal.create(target.journal, header))
        sink = Journaled(journal)
        try:
            if compute is not None:
                report = compute(Deduplicated(sink) if spec.rows.dedupe else sink, run_seed)
            else:
                report = _find_all(spec, given, sink)
            watcher.clear()
            if report.cancelled:
                watcher.stopped(_results_of(journal), resumable=True)
                return BatchResult(report, Totals(), Findings())
            said = {**(before or header), **{name: header[name] for name in ("fail_below", *OF_RESULTS)}}
            result = _write(spec, target, form, given.columns, said, sink, report)
        except AllAlikeError:
            watcher.clear()
            journal.remove()
            raise
        except BaseException:
            watcher.clear()
            journal.settle()
            watcher.stopped(_results_of(journal), resumable=True)
            raise
        if sink.unused > 0:
            limited = spec.rows.limit is not None
            watcher.tell(describe_stale(sink.unused, journal.path.name, out.name, limited=limited))
        if resume and given.reader.above_limit:
            more = count_of(given.reader.above_limit, "row")
            watcher.tell(f"note: {more} above --limit; the same command without it computes the rest")
        _tell_unkept(given.reader, watcher)
        if not resume and not result.totals.failed:
            journal.remove()
        return result


def describe_stale(count: int, journal: str, out: str, *, limited: bool = False) -> str:
    """A note about records that a resumed run did not use. limited: by --limit."""
    why = "changed, removed or above --limit" if limited else "changed or removed"
    if count == 1:
        return f"note: 1 result of {journal} is not in {out}: its row is {why}"
    return f"note: {count:,} results of {journal} are not in {out}: their rows are {why}"


# ---- before the rows


def _read_input(
    spec: BatchSpec, form: str, watcher: BatchWatcher, check: Callable[[BatchReader], None] | None = None
) -> _Input:
    """Check all that can be checked without a model. check: of the output."""
    if form in TABLES and spec.prompts.logprobs is not None:
        raise RequestError(f"--logprobs: not possible as {form}; use jsonl, json or openai")
    reader = spec.reader()
    total = reader.check()
    columns = table_columns(reader, form)
    if check is not None:
        check(reader)
    reader.check_first_rows()
    for text in (*reader.source.notes, *([] if reader.warning is None else [reader.warning])):
        watcher.tell(text)
    return _Input(reader, total, columns)


def _header(spec: BatchSpec, given: _Input, run_seed: int) -> dict[str, Any]:
    """What is known before the model is loaded."""
    return {**settings_header(run_seed, spec), "excel": given.reader.source.delimiter if spec.excel else ""}


def _is_complete(spec: BatchSpec, given: _Input, journal: Journal) -> bool:
    """Whether a journal has all records already."""
    if given.total is None or journal.lines < given.total:
        return False
    sink = Journaled(journal)
    return not any(sink.begin(row, samples_of(row.request, spec.prompts.samples)) for row in given.reader)


def _open(
    spec: BatchSpec,
    given: _Input,
    header: dict[str, Any],
    require_same: Callable[[], None],
    watcher: BatchWatcher,
) -> _Compute:
    """Load the model and add its fields to the header. require_same: called before the weights are read."""
    model = watcher.find(spec.model)
    header |= {"model": model_header(Path(model.name))}
    require_same()
    engine = watcher.load(model, spec.sampling)
    header["model"]["name"], header["model"]["revision"] = engine.name, engine.revision
    header |= engine_header(engine, model.template_vars)
    return _with_engine(spec, given, engine, watcher)


def _open_cluster(
    spec: BatchSpec, given: _Input, header: dict[str, Any], opened: ExitStack, watcher: BatchWatcher
) -> _Compute:
    """Load the model on all nodes of a Ray cluster, and add its fields to the header."""
    from ropechat.batch.cluster import Cluster, without_stdout

    model, draft = spec.model, spec.model.draft
    model = replace(model, name=_anywhere(model.name), draft=None if draft is None else _anywhere(draft))
    cluster = Cluster(spec.ray or None, model, any_isa=spec.any_isa, on_note=watcher.tell)
    opened.callback(cluster.close)
    opened.enter_context(without_stdout())
    watcher.tell(f"note: {cluster.describe()}")
    header |= cluster.header

    def compute(sink: Sink, run_seed: int) -> BatchReport:
        with watcher.during(None):
            total = spec.records_of(given.total)
            return cluster.run(iter(given.reader), sink, spec, run_seed, total, watcher)

    return compute


def _anywhere(name: str) -> str:
    """A model's name that means the same in every folder."""
    path = expand_home(name)
    return str(path.absolute()) if path.exists() else name


# ---- the rows


def _with_engine(spec: BatchSpec, given: _Input, engine: "Engine", watcher: BatchWatcher) -> _Compute:
    """Computes the rows with an engine of this process."""

    def compute(sink: Sink, run_seed: int) -> BatchReport:
        with watcher.during(engine):
            return compute_rows(
                engine,
                given.reader,
                sink,
                spec,
                run_seed,
                total=spec.records_of(given.total),
                watcher=watcher,
                has_row=given.reader.source.has_row,
            )

    return compute


def _find_all(spec: BatchSpec, given: _Input, sink: Journaled) -> BatchReport:
    """The report of a run whose journal has all records already."""
    for row in given.reader:
        sink.begin(row, samples_of(row.request, spec.prompts.samples))
    return BatchReport(given.total, found=sink.found)


# ---- after the rows


def _text_form(header: Mapping[str, Any], form: str, columns: list[str], model: str) -> Form:
    facts = {"name": model, "fingerprint": f"ropechat-{load_core().__version__}"}
    return text_form(form, Shape.of(header, columns), facts)


def _write(
    spec: BatchSpec,
    target: Target,
    form: str,
    columns: list[str],
    header: Mapping[str, Any],
    sink: Journaled,
    report: BatchReport,
) -> BatchResult:
    """Write the output and the run record."""
    totals, findings = Totals(), Findings(greedy=spec.sampling.temperature == 0)
    sink.journal.sync()
    rows = findings.count(totals.count(sink.rows()))
    if form == "parquet":
        write_output(target, rows, Shape.of(header, columns))
    else:
        write_output(target, rows, _text_form(header, form, columns, header.get("model", {}).get("name", "")))
    record = run_record(
        header,
        spec.source if isinstance(spec.source, Path) else "-",
        totals,
        findings.facts(),
        resumed=report.found,
        **({"copied": report.copied} if spec.rows.dedupe else {}),
        elapsed_s=round(report.elapsed, 3),
        tok_s=round(report.tokens_per_second, 1),
    )
    write_run_record(target, record)
    return BatchResult(report, totals, findings)


def _results_of(journal: Journal) -> str:
    return f"{journal.path} contains {count_of(journal.lines, 'result')}"


def _tell_unkept(reader: BatchReader, watcher: BatchWatcher) -> None:
    for name in reader.unkept:
        watcher.tell(f"note: --keep: {name!r}: no row has this field")
