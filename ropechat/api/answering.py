"""Requests in progress: their jobs in the window of the engine, and what these tell the event loop."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ropechat.api.errors import refuse
from ropechat.api.metrics import Metrics
from ropechat.api.requests import Ask
from ropechat.api.spec import ApiSpec
from ropechat.batch.line import LineRequest
from ropechat.batch.runner import fit_job, make_job, scoring_job, unsure_of
from ropechat.batch.seeds import row_seed
from ropechat.conversation import Message, Role
from ropechat.engine.collector import Collector
from ropechat.engine.scheduler import Completion, Job, ScoredId
from ropechat.engine.validation import choose_seed
from ropechat.errors import CancelledError

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine
    from ropechat.trace import Step

T = TypeVar("T")
_STOPPING = "generation: cancelled; the server stops"
_READERS = 2
"""Threads that parse bodies, render templates and encode prompts beside the engine."""


class ClientGoneError(Exception):
    """The client has closed its connection."""


class Told(NamedTuple):
    """What is told of choice `number`: a step when it is made, the completion at the end, else its start."""

    number: int
    step: "Step | None" = None
    completion: Completion | None = None
    at: float = 0.0
    """When it was told, by a monotonic clock."""


@dataclass(eq=False)
class Call:
    """A request in progress. is_gone: whether nobody waits for it any more."""

    ask: Ask
    told: asyncio.Queue[Told | BaseException] = field(default_factory=asyncio.Queue)
    is_gone: bool = False
    begun: float = field(default_factory=time.monotonic)
    first: float | None = None
    """When the first token was made."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    made_tokens: int = 0
    truncated: list[int] = field(default_factory=list)
    """Of each prompt, how many characters were cut."""

    def leave(self) -> None:
        """Have the sequences freed before the next pass, and end whoever reads `told`."""
        self.is_gone = True
        self.told.put_nowait(ClientGoneError())


class _Outbox:
    """Takes calls from the engine's thread to the event loop, those of a pass together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[Callable[[Told], None], Told]] = deque()
        self._is_called = False

    def put(self, take: Callable[[Told], None], told: Told) -> None:
        self._waiting.append((take, told))
        if not self._is_called:
            self._is_called = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_called = False
        while self._waiting:
            take, told = self._waiting.popleft()
            take(told)


class _Watcher:
    """Tells the event loop of a choice."""

    def __init__(self, call: Call, number: int, outbox: _Outbox) -> None:
        self._call, self._number, self._outbox = call, number, outbox

    @property
    def is_gone(self) -> bool:
        return self._call.is_gone

    def begin(self, prompt_tokens: int, cached_tokens: int) -> None:
        if self._number == 0:
            self._outbox.put(self._call.told.put_nowait, Told(self._number))

    def take(self, step: "Step") -> None:
        call, now = self._call, time.monotonic()
        call.first = call.first or now
        call.made_tokens += 1
        if call.ask.stream:
            self._outbox.put(call.told.put_nowait, Told(self._number, step, at=now))


class Answers:
    """Answers requests with an engine, as a batch would answer them as rows. Made in the event loop."""

    def __init__(self, engine: "Engine", spec: ApiSpec, metrics: Metrics) -> None:
        self._engine, self._rows = engine, spec.rows().for_engine(engine)
        self._outbox = _Outbox(asyncio.get_running_loop())
        self._readers = ThreadPoolExecutor(_READERS, "ropechat-requests")
        limits = spec.limits
        self._collector = Collector(engine, limits.window, timeout=limits.seconds, on_pass=metrics.take_pass)
        template = engine.prompts.template
        self._knows_tool = template is None or template.mentions("tool")

    async def work(self, function: Callable[[], T]) -> T:
        """Call a function that takes time, beside the event loop. Raises CancelledError once closed."""
        try:
            future = self._readers.submit(function)
        except RuntimeError:  # shut down
            raise CancelledError(_STOPPING) from None
        return await asyncio.wrap_future(future)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is computed."""
        return self._collector.is_idle

    def close(self) -> None:
        """Cancel all requests, and end."""
        self._collector.close()
        self._readers.shutdown()

    def more_of(self, call: Call, number: int, completion: Completion) -> dict[str, Any]:
        """What a choice has beside what its completion says: its unsure parts, what was cut of its prompt."""
        below, cut = call.ask.first.fail_below, call.truncated[number // call.ask.samples]
        more: dict[str, Any] = {"truncated": cut} if cut else {}
        if below is not None:
            more["unsure"] = [part.record for part in unsure_of(completion, below, self._engine)]
        return more

    async def scores(self, call: Call) -> list[tuple[ScoredId, ...]]:
        """The scores of the tokens of each prompt; () where they are not asked for."""
        ask = call.ask
        if ask.candidates is None:
            return [()] * len(ask.requests)
        jobs = await self.work(lambda: [self._scoring(request, ask) for request in ask.requests])
        found: dict[int, Completion] = {}
        async for told in self._run(call, jobs, 1):
            if told.completion is not None:
                found[told.number] = told.completion
        return [found[number].scores for number in range(len(jobs))]

    def _scoring(self, request: LineRequest, ask: Ask) -> Job:
        job, _ = fit_job(make_job(request, self._rows), request, self._rows, self._engine)
        return self._engine.prepared(scoring_job(job, ask.candidates or 0))

    async def answers(self, call: Call) -> AsyncGenerator[Told, None]:
        """What is told of the choices of a request, until each is complete.

        Raises the error of the first choice that fails, and ClientGoneError.
        """
        jobs = await self.work(lambda: [job for one in call.ask.requests for job in self._jobs(one, call)])
        if not call.ask.answers:
            for number, job in enumerate(jobs):
                assert job.sampling is not None
                size, seed = len(job.ids or ()), job.sampling.seed or 0
                made = Completion(finish_reason="length", prompt_tokens=size, seed=seed)
                yield Told(number, completion=made)
            return
        async for told in self._run(call, jobs, call.ask.samples):
            yield told

    def _jobs(self, request: LineRequest, call: Call) -> list[Job]:
        """The jobs of a prompt: the first sample has the seed of the request, the others seeds made of it."""
        if not self._knows_tool and isinstance(request.content, list):
            for part in request.content:
                if isinstance(part, Message) and part.role is Role.TOOL:
                    raise refuse("messages: the role tool is not in this model's chat template")
        own: int | None = request.sampling.get("seed")
        base = choose_seed(self._rows.sampling) if own is None else own
        made, cut = fit_job(make_job(request, self._rows, base), request, self._rows, self._engine)
        call.truncated.append(cut)
        job = self._engine.prepared(made)
        assert job.sampling is not None
        sampling = job.sampling
        seeds = [base, *(row_seed(base, "", sample) for sample in range(1, call.ask.samples))]
        return [replace(job, sampling=replace(sampling, seed=seed)) for seed in seeds]

    async def _run(self, call: Call, jobs: Sequence[Job], samples: int) -> AsyncGenerator[Told, None]:
        """Compute the jobs of a request; they are left if the reader does not read to the end."""
        futures: list[Future[Completion]] = []
        try:
            for number, job in enumerate(jobs):
                watched = replace(job, watcher=_Watcher(call, number, self._outbox))
                future = self._collector.submit(watched, call)
                futures.append(future)
                asyncio.wrap_future(future).add_done_callback(_telling(call, number))
            left = len(jobs)
            while left:
                told = await call.told.get()
                if isinstance(told, BaseException):
                    raise told
                if told.completion is not None:
                    left -= 1
                    if told.number % samples == 0 and not jobs[told.number].scores_prompt:
                        call.prompt_tokens += told.completion.prompt_tokens
                        call.cached_tokens += told.completion.cached_tokens
                yield told
        finally:
            if not all(future.done() for future in futures):
                call.is_gone = True
                self._collector.drop(call)


def _telling(call: Call, number: int) -> Callable[["asyncio.Future[Completion]"], Any]:
    def tell(future: "asyncio.Future[Completion]") -> None:
        if future.cancelled():
            call.told.put_nowait(ClientGoneError() if call.is_gone else CancelledError(_STOPPING))
            return
        error = future.exception()
        call.told.put_nowait(Told(number, completion=future.result()) if error is None else error)

    return tell
