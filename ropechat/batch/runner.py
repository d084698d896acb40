"""A batch run: rows to prompts, completions to records."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ropechat.batch.estimate import RowsEstimate
from ropechat.batch.line import COMPLETIONS, TRUNCATE, Content, LineRequest
from ropechat.batch.output import Sink
from ropechat.batch.reader import BatchRow
from ropechat.batch.records import BytesOf, error_record, ok_record, samples_of, unsure_record
from ropechat.batch.report import BatchReport, Failures
from ropechat.batch.score import score_rows
from ropechat.batch.seeds import row_seed, turn_seed
from ropechat.batch.spec import BatchSpec, BatchWatcher
from ropechat.conversation import Message, Role
from ropechat.engine.certainty import has_certainty
from ropechat.engine.fitting import fitted
from ropechat.engine.scheduler import Completion, Job, Prompt, ScoredId
from ropechat.errors import InternalError, RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ropechat.engine.engine import Engine
    from ropechat.inspector.unsure import Unsure

_MAX_NAMES = 5
_MAX_NOTED = 20


def make_job(request: LineRequest, spec: BatchSpec, seed: int | None = None) -> Job:
    """The engine's job for a row: the row's settings override those of the run.

    seed: of the row; the run's seed is not that of a row.
    """
    own = dataclasses.replace(spec.sampling, **{**request.sampling, "seed": seed})
    prompt, prefix = spec.prompts.prompt(request.content, raw=request.endpoint == COMPLETIONS), ""
    if isinstance(prompt, list) and len(prompt) > 1 and request.continues:
        last = prompt[-1]
        if isinstance(last, Message) and last.role is Role.ASSISTANT:
            prompt, prefix = prompt[:-1], last.content
    top_k = spec.prompts.logprobs if request.logprobs is None else request.logprobs
    certainty = has_certainty(own.grammar)
    stop = spec.prompts.stop if request.stop is None else request.stop
    return Job(prompt, own, stop, request.template_vars, prefix, top_k or 0, certainty=certainty)


def scoring_job(job: Job, candidates: int) -> Job:
    """The job that scores the prompt of another one. candidates: of each token."""
    sampling = None if job.sampling is None else dataclasses.replace(job.sampling, grammar=None)
    return dataclasses.replace(
        job, sampling=sampling, top_k=candidates, scores_prompt=True, certainty=False, then=None
    )


def fit_job(job: Job, request: LineRequest, spec: BatchSpec, engine: "Engine") -> tuple[Job, int]:
    """The job, with a prompt that was cut if the row or the run asks for it, and by how many characters.

    The answer keeps its room in the context, up to half of it. Of a prompt of ids the row's own limit cuts
    the first ones. Raises RequestError for a limit that is below what the chat template needs.
    """
    side, most = spec.prompts.truncate, request.truncate
    if side is None and most is None:
        return job, 0
    limit = (job.sampling or spec.sampling).max_tokens
    room = engine.context - min(limit, engine.context // 2)
    if most is None or most < 0:
        return fitted(job, room, side or "start", engine.job_ids, engine.tokenizer)
    room = min(room, most)
    ids = request.content
    if isinstance(ids, list) and isinstance(ids[0], int):
        return dataclasses.replace(job, prompt=ids[-room:]), max(0, len(ids) - room)
    made, cut = fitted(job, room, side or "start", engine.job_ids, engine.tokenizer)
    if (size := len(engine.job_ids(made))) > room:
        raise RequestError(f"{TRUNCATE}: must be more than {room}: the prompt has {size} tokens")
    return made, cut


def unsure_of(completion: Completion, below: float | None, engine: "Engine") -> "list[Unsure]":
    """The parts of an answer with a smaller probability."""
    if below is None:
        return []
    from ropechat.inspector.unsure import unsure_parts

    return unsure_parts(completion.answer, completion.certainty, below, engine.token_bytes, engine.stop_ids)


def describe_unused(row: BatchRow, unused: Sequence[str]) -> str:
    """A note about the ignored fields of a row, with the first few names."""
    names = ", ".join(f"{name:.40}" for name in unused[:_MAX_NAMES])
    more = len(unused) - _MAX_NAMES
    place = row.place.removesuffix(": ")
    return f"note: {place} has ignored fields: {names}{f' and {more} more' if more > 0 else ''}"


@dataclass
class _Pending:
    """A row's sample in progress, and the completions of its earlier turns."""

    row: BatchRow
    sample: int
    truncated: int = 0
    """Characters of its prompts that were cut."""
    before: list[Completion] = field(default_factory=list)
    scores: tuple[ScoredId, ...] = ()
    """Of its prompt, if that is echoed with logprobs."""


class _Jobs:
    """The jobs of rows, one per sample that the sink misses."""

    def __init__(
        self,
        sink: Sink,
        spec: BatchSpec,
        run_seed: int,
        watcher: BatchWatcher,
        engine: "Engine",
        has_row: Callable[[], bool],
    ) -> None:
        template = engine.prompts.template
        self._knows_tool = template is None or template.mentions("tool")
        self._sink, self._spec, self._run_seed = sink, spec, run_seed
        self._watcher, self._engine, self._has_row = watcher, engine, has_row
        self._noted: set[str] = set()  # names of ignored fields
        self._waiting: dict[int, _Pending] = {}
        self._count = 0

    def of(self, rows: "Iterable[BatchRow | None]") -> Iterator[Prompt | Job | None]:
        """Yield the jobs; `take` returns what each is of."""
        for row in rows:
            if row is None:
                yield None
                continue
            while self._sink.is_full:
                yield None
            for sample in self._sink.begin(row, samples_of(row.request, self._spec.prompts.samples)):
                pending = _Pending(row, sample)
                self._waiting[self._count] = pending
                self._count += 1
                if row.request is None:
                    yield row.error or InternalError(f"line {row.line}: no request and no error")
                    continue
                self._note_unused(row, row.request)
                yield self._job(pending, row.request)
            while self._waiting and not self._has_row():
                yield None

    def _note_unused(self, row: BatchRow, request: LineRequest) -> None:
        """Note ignored fields whose names are new, up to a number of names."""
        new = [name for name in request.unused if name not in self._noted]
        if new and len(self._noted) < _MAX_NOTED:
            self._noted.update(new)
            self._watcher.tell(describe_unused(row, new))

    def take(self, number: int) -> _Pending:
        """The row and sample of a job by its number."""
        return self._waiting.pop(number)

    def _seed(self, pending: _Pending, request: LineRequest) -> int:
        """A line's own seed is that of its first sample; the others are derived from it."""
        own: int | None = request.sampling.get("seed")
        if own is not None and pending.sample == 0:
            seed = own
        else:
            name = pending.row.dedupe_key or pending.row.id
            seed = row_seed(self._run_seed if own is None else own, name, pending.sample)
        return turn_seed(seed, len(pending.before))

    def _job(self, pending: _Pending, request: LineRequest) -> Prompt | Job:
        job = make_job(request, self._spec, self._seed(pending, request))
        if not self._knows_tool and isinstance(request.content, list):
            for part in request.content:
                if isinstance(part, Message) and part.role is Role.TOOL:
                    return RequestError("messages: the role tool is not in this model's chat template")
        try:
            job, cut = fit_job(job, request, self._spec, self._engine)
        except RequestError as error:
            return error
        pending.truncated += cut
        logprobs = _logprobs(request, self._spec)
        if request.echo and (logprobs is not None or not request.answers):
            return self._echoed(pending, job, logprobs, answers=request.answers)
        if not request.turns:
            return job
        return dataclasses.replace(job, then=lambda completion: self._next_turn(pending, request, completion))

    @staticmethod
    def _echoed(pending: _Pending, job: Job, logprobs: int | None, *, answers: bool) -> Job:
        """The job that scores the prompt, which the given one follows."""

        def then(completion: Completion) -> Job | None:
            pending.scores = () if logprobs is None else completion.scores
            return job if answers else None

        return dataclasses.replace(scoring_job(job, logprobs or 0), then=then)

    def _next_turn(self, pending: _Pending, request: LineRequest, completion: Completion) -> Job | None:
        turn = len(pending.before) + 1
        if turn > len(request.turns):
            return None
        pending.before.append(completion)
        content = _as_messages(request.content)
        for answer, question in zip(pending.before, request.turns, strict=False):
            said = Message(Role.ASSISTANT, answer.text, answer.reasoning.strip())
            content += [said, Message(Role.USER, question)]
        following = dataclasses.replace(request, content=content)
        made = self._job(pending, following)
        return made if isinstance(made, Job) else None


def _as_messages(content: Content) -> list[Message]:
    if isinstance(content, str):
        return [Message(Role.USER, content)]
    return [part for part in content if isinstance(part, Message)]


def compute_rows(
    engine: "Engine",
    rows: "Iterable[BatchRow | None]",
    sink: Sink,
    spec: BatchSpec,
    run_seed: int,
    *,
    total: int | None = None,
    watcher: BatchWatcher | None = None,
    early_stop: bool = True,
    has_row: Callable[[], bool] = lambda: True,
) -> BatchReport:
    """Answer rows, or with `spec.rows.score` score them; write a record for each sample to `sink`.

    rows: None in place of a row says that there is none now, see `Engine.generate_many`. run_seed: see
    `row_seed`. total: the number of records, if it is known. watcher: told of progress after each pass and
    each record. early_stop: stop if the first rows all fail with the same error. has_row: whether the next
    row of a pipe is there; rows in progress do not wait for it. A record depends on the model, the row, the
    spec and the seed, and not on other rows. Raises BatchInputError for that early stop, or above
    `spec.max_errors`.
    """
    watcher = watcher or BatchWatcher()
    compute = score_rows if spec.rows.score else _answer_rows
    return compute(engine, rows, sink, spec.for_engine(engine), run_seed, total, watcher, early_stop, has_row)


def _answer_rows(
    engine: "Engine",
    rows: "Iterable[BatchRow | None]",
    sink: Sink,
    spec: BatchSpec,
    run_seed: int,
    total: int | None,
    watcher: BatchWatcher,
    early_stop: bool,
    has_row: Callable[[], bool],
) -> BatchReport:
    """As `compute_rows`."""
    estimate = RowsEstimate(spec.sampling.max_tokens, spec.window, engine.progress.read, engine.speed)
    report, begun = BatchReport(total, estimate=estimate), time.monotonic()
    failures = Failures(report, sink, spec.max_errors, watcher.failure, early_stop=early_stop)
    jobs = _Jobs(sink, spec, run_seed, watcher, engine, has_row)

    def tell() -> None:
        report.elapsed = time.monotonic() - begun
        report.found, report.copied = sink.found, sink.copied
        watcher.progress(report)

    def on_tokens(count: int) -> None:
        report.made_tokens += count
        tell()

    results = engine.generate_many(
        jobs.of(rows),
        spec.sampling,
        window=spec.window,
        ordered=sink.ordered,
        grouped=total is not None,  # a pipe is read no further than needed
        timeout=spec.timeout,
        on_tokens=on_tokens,
        on_pass=estimate.take,
    )
    for number, result in results:
        pending = jobs.take(number)
        if result.finish_reason == "cancelled":
            report.cancelled = True
            continue
        if result.error is not None:
            failures.take(pending.row, error_record(pending.row, pending.sample, result.error))
        else:
            completions = [*pending.before, result]
            record = _record(pending, completions, spec, engine.token_bytes)
            below = _fail_below(pending, spec)
            unsure = [part for one in completions for part in unsure_of(one, below, engine)]
            if unsure:
                failures.take(pending.row, unsure_record(record, pending.row, unsure, below or 0))
            else:
                sink.write(pending.row, record)
                report.ok += 1
            for completion in completions:
                report.prompt_tokens += completion.prompt_tokens
                report.cached_tokens += completion.cached_tokens
                report.completion_tokens += completion.completion_tokens
        tell()
    tell()
    return report


def _fail_below(pending: _Pending, spec: BatchSpec) -> float | None:
    own = None if pending.row.request is None else pending.row.request.fail_below
    return spec.fail_below if own is None else own


def _logprobs(request: LineRequest | None, spec: BatchSpec) -> int | None:
    own = None if request is None else request.logprobs
    return spec.prompts.logprobs if own is None else own


def _record(
    pending: _Pending, completions: Sequence[Completion], spec: BatchSpec, bytes_of: BytesOf
) -> dict[str, Any]:
    """The record of an answered row."""
    request = pending.row.request
    logprobs = _logprobs(request, spec)
    grammar = ({} if request is None else request.sampling).get("grammar", spec.sampling.grammar)
    if request is not None and not request.answers:
        completions = [dataclasses.replace(completions[-1], finish_reason="length")]
    record = ok_record(pending.row, pending.sample, completions, logprobs, bytes_of, grammar, pending.scores)
    return {**record, "truncated": pending.truncated} if pending.truncated else record
