"""Continuous batching of many prompts, with completions in the order of the prompts or as they finish."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ropechat.conversation import Message
from ropechat.engine.certainty import Answer, mass_of
from ropechat.errors import CancelledError, ContextFullError, InternalError, RopechatError, RowTimeoutError

if TYPE_CHECKING:
    from ropechat.engine import _core
    from ropechat.engine.certainty import Certainty
    from ropechat.engine.reasoning import ReplyText
    from ropechat.engine.scoring import Window
    from ropechat.sampling import Sampling
    from ropechat.trace import FinishReason, Step

Prompt = str | Sequence[int] | Sequence[Message] | RopechatError
"""Text, ids, messages, or an error to return as the completion's error."""

LOOKAHEAD = 4
"""How many windows of prompts may be read before the oldest one is finished."""
BLOCK = 32
"""Tokens of a block of the KV cache, which prompts with a common prefix share."""


class JobWatcher(Protocol):
    """Who is told of one prompt's progress, in the thread that computes."""

    @property
    def is_gone(self) -> bool:
        """Whether nobody wants the completion any more: its sequence is freed before the next pass."""

    def begin(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Called when the prompt is started."""

    def take(self, step: Step) -> None:
        """Called with each new token."""


@dataclass(frozen=True)
class Job:
    """A prompt with its own settings; None takes those of the call.

    A seed in `sampling` is used with stream 0, so the completion equals that of the prompt alone. Without
    one, the call's seed is used with the prompt's index as the stream.
    """

    prompt: Prompt
    sampling: Sampling | None = None
    stop: Sequence[str] | None = None
    template_vars: Mapping[str, Any] | None = None
    """Variables for the chat template, if the prompt is messages."""
    prefix: str = ""
    """Text with which the reply to messages starts; it is part of the prompt."""
    top_k: int | None = None
    """Candidates to record per token."""
    then: Callable[[Completion], Job | None] | None = None
    """Returns the job that follows a completion without error, in the same place of the order; None ends."""
    certainty: bool = False
    """Whether the completion says how sure the answer is: see `ropechat.engine.certainty`."""
    ids: Sequence[int] | None = None
    """The ids of the prompt, if it was encoded before."""
    watcher: JobWatcher | None = None
    scores_prompt: bool = False
    """Score the tokens of the prompt, and make none: `Completion.scores`."""

    def draws(self, seed: int, index: int) -> tuple[int, int]:
        """Return (seed, stream) of prompt number `index` in a call with `seed`."""
        if self.sampling is None or self.sampling.seed is None:
            return seed, index
        return self.sampling.seed, 0


class ScoredId(NamedTuple):
    """A token of a prompt, scored under the tokens before it; the first one has none, and no score."""

    id: int
    logprob: float | None
    rank: int | None
    top: tuple[tuple[int, float], ...]
    """(id, raw logprob) of the recorded candidates, most probable first."""


@dataclass(frozen=True)
class Completion:
    """The completion of one prompt. With an `error`, text is "" and finish_reason None."""

    text: str = ""
    ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    logprobs: tuple[float, ...] = ()
    """Raw logprob of each id."""
    seed: int = 0
    error: RopechatError | None = None
    cached_tokens: int = field(default=0, compare=False)
    """Prompt tokens whose keys and values came from an earlier sequence. Depends on the other prompts."""
    reasoning: str = ""
    """What the model thought before its answer."""
    reasoning_tokens: int = 0
    """How many of the ids, the first ones, belong to the thought and to what surrounds it."""
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    """For each id the (id, raw logprob) of the recorded candidates, most probable first."""
    certainty: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What `ropechat.engine.certainty` says of the answer."""
    masses: tuple[float, ...] = ()
    """For each id `certainty.mass_of`, where a certainty needs it."""
    scores: tuple[ScoredId, ...] = ()
    """The tokens of the prompt, if the job scores them."""

    @property
    def answer(self) -> Answer:
        """The answer, without the thought."""
        begin = self.reasoning_tokens
        return Answer(self.text, self.ids[begin:], self.logprobs[begin:], self.masses[begin:])


class RowState(NamedTuple):
    """How far a prompt in progress is, in tokens.

    read: those of the prompt that are in the cache; unread: the others. made: new ones. limit: max_tokens of
    its job, None if that has none.
    """

    read: int
    unread: int
    made: int
    limit: int | None


class RunState(NamedTuple):
    """How far a call is before a forward pass.

    read, made: tokens of prompts that passes read, and new tokens. started: prompts. ended: new tokens of
    each prompt that the last pass ended.
    """

    read: int
    made: int
    started: int
    ended: tuple[int, ...]
    rows: tuple[RowState, ...]


class Backend(Protocol):
    """The operations of an engine that the scheduler uses."""

    seed: int

    def encode(self, job: Job) -> list[int]:
        """The ids of a prompt."""

    def add(self, job: Job, ids: list[int], seed: int, stream: int) -> tuple[int, ReplyText]:
        """Start a prompt; return its sequence number and the filter of its text."""

    def step(self, sequences: Sequence[int]) -> Sequence[_core.Event]:
        """Run one forward pass over these sequences."""

    def record(self, event: _core.Event, reply: ReplyText) -> Step:
        """Convert a token event to a Step."""

    def certainty(self, job: Job, ids: list[int], completion: Completion) -> Certainty | None:
        """How sure an answer to a prompt is; None if nothing can be said."""

    def look(self, window: Window) -> int:
        """Start to read a window; return its sequence number."""

    def reused(self, sequence: int) -> int:
        """The number of prompt tokens that came from the cache."""

    def free(self, sequence: int) -> None:
        """Release a sequence."""


@dataclass
class _Waiting:
    """A prompt that was read and not started yet. ids: None if it could not be encoded."""

    index: int
    job: Job
    ids: list[int] | None
    error: RopechatError | None = None


def group(prompts: Sequence[_Waiting]) -> list[_Waiting]:
    """Move prompts that begin with the same blocks next to each other; others keep their order."""
    blocks: dict[Any, Any] = {}

    def place(prompt: _Waiting) -> list[int]:
        """Where it comes, block by block: after all that other prompts brought in before it."""
        at, found = blocks, []
        ids = prompt.ids or []
        for start in range(0, len(ids) - BLOCK, BLOCK):
            number, at = at.setdefault(tuple(ids[start : start + BLOCK]), (len(at), {}))
            found.append(number)
        at[prompt.index] = (len(at), {})
        return [*found, len(at) - 1]

    return sorted(prompts, key=place)


@dataclass
class _Active:
    """A sequence in progress."""

    index: int
    seed: int
    prompt: list[int]
    reply: ReplyText
    job: Job
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    top: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    masses: list[float] = field(default_factory=list)
    scores: list[ScoredId] = field(default_factory=list)
    begun: float = 0.0
    read: int = 0


@dataclass
class _Judged:
    """An answer whose certainty is being read. left: windows that are not read yet."""

    active: _Active
    result: Completion
    certainty: Certainty
    left: int = 0


class Scheduler:
    """Continuous batching: when a sequence ends, the next prompt takes its place.

    timeout: seconds from the start of a prompt, with all jobs that follow it, after which it fails.
    on_pass: called before each forward pass.
    """

    def __init__(
        self,
        backend: Backend,
        window: int,
        on_tokens: Callable[[int], None] | None,
        *,
        grouped: bool = False,
        timeout: float | None = None,
        on_pass: Callable[[RunState], None] | None = None,
    ) -> None:
        self._timeout = timeout
        self._on_pass = on_pass
        self._read_tokens = self._made_tokens = self._started = 0
        self._ended: list[int] = []
        self._backend = backend
        self._window = window
        self._read_at_once = LOOKAHEAD * window if grouped else 1
        self._on_tokens = on_tokens
        self._active: dict[int, _Active] = {}
        self._looks: dict[int, tuple[_Judged, Window]] = {}
        """Windows that are being read, by their sequence."""
        self._to_look: deque[tuple[_Judged, Window]] = deque()
        self._done: dict[int, Completion] = {}

    def run(
        self, prompts: Iterator[Prompt | Job | None], *, ordered: bool = True
    ) -> Iterator[tuple[int, Completion]]:
        """Yield (index, completion); reads prompts only when there is room for one.

        None in place of a prompt: there is none now, ask again after the next pass; allowed only while others
        are in progress. ordered: in the order of the prompts, else as they finish.
        """
        read = yielded = 0
        more = True
        waiting: deque[_Waiting] = deque()

        def ready() -> int | None:
            """The index of the completion to yield next, if it is there."""
            if ordered:
                return yielded if yielded in self._done else None
            return next(iter(self._done), None)

        try:
            while more or waiting or self._active or self._looks or self._to_look:
                # Yield finished completions first: the caller may produce the next prompt from them.
                while ready() is None and self._has_room():
                    if self._to_look:
                        self._look()
                        continue
                    if not waiting and more:
                        room = LOOKAHEAD * self._window - (read - yielded if ordered else 0)
                        wanted = min(room, self._read_at_once)
                        found, more = self._read(prompts, read, wanted)
                        read += len(found)
                        waiting.extend(group(found))
                    if not waiting:
                        break
                    self._admit(waiting.popleft())
                try:
                    if ready() is None:
                        self._advance()
                        self._end_late()
                except CancelledError:
                    more = False
                    waiting.clear()
                    self._cancel()
                while (index := ready()) is not None:
                    yield index, self._done.pop(index)
                    yielded += 1
        finally:
            for sequence in (*self._active, *self._looks):
                self._backend.free(sequence)

    def _has_room(self) -> bool:
        """Whether a forward pass takes another sequence."""
        return len(self._active) + len(self._looks) < self._window

    def _cancel(self) -> None:
        """End what is in progress."""
        for sequence in list(self._active):
            self._finish(sequence, "cancelled")
        for judged, _ in (*self._looks.values(), *self._to_look):
            self._done[judged.active.index] = replace(judged.result, finish_reason="cancelled")
        for sequence in self._looks:
            self._backend.free(sequence)
        self._looks.clear()
        self._to_look.clear()

    def _read(
        self, prompts: Iterator[Prompt | Job | None], first: int, most: int
    ) -> tuple[list[_Waiting], bool]:
        """Read and encode up to `most` prompts, the first with this index; say whether there may be more."""
        found: list[_Waiting] = []
        for prompt in islice(prompts, most):
            if prompt is None:
                return found, True
            found.append(self._encode(first + len(found), prompt))
        return found, len(found) == most

    def _encode(self, index: int, prompt: Prompt | Job) -> _Waiting:
        job = prompt if isinstance(prompt, Job) else Job(prompt)
        try:
            if isinstance(job.prompt, RopechatError):
                raise job.prompt
            return _Waiting(index, job, self._backend.encode(job))
        except RopechatError as error:
            return _Waiting(index, job, None, error)

    def _admit(self, prompt: _Waiting, begun: float | None = None) -> None:
        """Start a prompt. begun: when the job before it in the same place began."""
        index, job, ids, error = prompt.index, prompt.job, prompt.ids, prompt.error
        seed, stream = job.draws(self._backend.seed, index)
        self._started += begun is None
        if ids is not None:
            try:
                if job.watcher is not None and job.watcher.is_gone:
                    raise CancelledError("generation: cancelled")
                sequence, reply = self._backend.add(job, ids, seed, stream)
            except RopechatError as refused:
                error = refused
            else:
                active = _Active(index, seed, ids, reply, job)
                active.begun = time.monotonic() if begun is None else begun
                active.read = self._backend.reused(sequence)
                self._active[sequence] = active
                if job.watcher is not None:
                    job.watcher.begin(len(ids), active.read)
                return
        self._done[index] = Completion(seed=seed, error=error)

    def _free_gone(self) -> None:
        """End the sequences whose completion nobody wants any more."""
        for sequence, active in list(self._active.items()):
            if active.job.watcher is not None and active.job.watcher.is_gone:
                self._finish(sequence, "cancelled")
        for judged in [judged for judged, _ in (*self._looks.values(), *self._to_look)]:
            watcher = judged.active.job.watcher
            if watcher is not None and watcher.is_gone:
                self._forget(judged)
                self._done[judged.active.index] = replace(judged.result, finish_reason="cancelled")

    def _advance(self) -> None:
        """Run one forward pass over all active sequences."""
        self._free_gone()
        before = len(self._active) + len(self._looks)
        if not before:
            return
        if self._on_pass is not None:
            self._on_pass(self._state())
        try:
            events = self._backend.step([*self._active, *self._looks])
        except CancelledError:
            raise
        except RopechatError:
            events = self._advance_each()
        if not events and len(self._active) + len(self._looks) == before:
            raise InternalError("engine: a pass over unfinished sequences made no progress")
        made = 0
        for event in events:
            # A sequence that ended with a stop string may have drafted tokens behind it.
            active = self._active.get(event.sequence)
            if active is None:
                if event.kind == "score" and event.sequence in self._looks:
                    self._take_row(event)
                continue
            read = event.done if event.kind == "prefill" else len(active.prompt)
            self._read_tokens += max(0, read - active.read)
            active.read = max(read, active.read)
            if event.kind == "token":
                self._take(event)
                made += 1
            elif event.kind == "score":
                self._take_score(event)
        self._made_tokens += made
        if made and self._on_tokens is not None:
            self._on_tokens(made)

    def _state(self) -> RunState:
        rows = tuple(
            RowState(
                active.read,
                len(active.prompt) - active.read,
                len(active.ids),
                None if active.job.sampling is None else active.job.sampling.max_tokens,
            )
            for active in self._active.values()
        )
        ended, self._ended = tuple(self._ended), []
        return RunState(self._read_tokens, self._made_tokens, self._started, ended, rows)

    def _end_late(self) -> None:
        """Fail the sequences that have taken too long."""
        if self._timeout is None:
            return
        latest = time.monotonic() - self._timeout
        late = RowTimeoutError(f"not finished within {self._timeout:g} s")
        for sequence, active in list(self._active.items()):
            if active.begun < latest:
                self._finish(sequence, None, late)
        for judged in [judged for judged, _ in (*self._looks.values(), *self._to_look)]:
            if judged.active.begun < latest:
                self._give_up(judged, late)

    def _advance_each(self) -> list[_core.Event]:
        """After a failed pass, which changed nothing, run each sequence alone to find the faulty one."""
        events: list[_core.Event] = []
        for sequence in [*self._active, *self._looks]:
            if sequence not in self._active and sequence not in self._looks:
                continue  # of an answer that another of its rows has failed
            try:
                events += self._backend.step([sequence])
            except CancelledError:
                raise
            except RopechatError as error:
                if sequence in self._active:
                    self._finish(sequence, None, error)
                else:
                    self._give_up(self._looks[sequence][0], error)
        return events

    def _take_score(self, event: _core.Event) -> None:
        active = self._active[event.sequence]
        top = () if event.row is None else tuple(zip(event.row.top_ids, event.row.top_logprobs, strict=True))
        assert event.id is not None
        active.scores.append(ScoredId(event.id, event.logprob, event.rank, top))
        if len(active.scores) == len(active.prompt):
            self._finish(event.sequence, "stop")

    def _take(self, event: _core.Event) -> None:
        active = self._active[event.sequence]
        step = self._backend.record(event, active.reply)
        active.ids.append(step.id)
        active.logprobs.append(step.logprob)
        active.texts.append(step.text)
        if step.channel != "answer":
            active.thoughts.append(step.reasoning)
        if step.top:
            active.top.append(step.top)
        if active.job.certainty:
            active.masses.append(mass_of(step))
        if active.job.watcher is not None:
            active.job.watcher.take(step)
        if step.finish_reason is not None:
            self._finish(event.sequence, step.finish_reason)

    def _finish(self, sequence: int, reason: FinishReason | None, error: RopechatError | None = None) -> None:
        active = self._active.pop(sequence)
        cached = self._backend.reused(sequence)
        self._backend.free(sequence)
        self._ended.append(len(active.ids))
        if error is not None:
            failed = Completion(prompt_tokens=len(active.prompt), seed=active.seed, error=error)
            self._done[active.index] = failed
            return
        ids, logprobs = tuple(active.ids), tuple(active.logprobs)
        result = Completion(
            "".join(active.texts),
            ids,
            reason,
            len(active.prompt),
            len(ids),
            logprobs,
            active.seed,
            cached_tokens=cached,
            reasoning="".join(active.thoughts),
            reasoning_tokens=len(active.thoughts),
            top=tuple(active.top),
            masses=tuple(active.masses),
            scores=tuple(active.scores),
        )
        certainty = None
        if active.job.certainty and reason != "cancelled":
            certainty = self._backend.certainty(active.job, active.prompt, result)
        if certainty is None:
            self._settle(active, result)
            return
        judged = _Judged(active, result, certainty)
        for weighing in certainty.weighings:
            self._to_look.extend((judged, window) for window in weighing.windows)
            judged.left += len(weighing.windows)
        self._judge(judged)

    def _look(self) -> None:
        """Start to read the next window."""
        judged, window = self._to_look.popleft()
        try:
            self._looks[self._backend.look(window)] = judged, window
        except ContextFullError:  # an alternative is longer than what is left: the answer counts without
            self._forget(judged)
            self._settle(judged.active, judged.result)
        except RopechatError as error:
            self._give_up(judged, error)

    def _take_row(self, event: _core.Event) -> None:
        judged, window = self._looks[event.sequence]
        window.owner.take(window, event)
        if event.position == len(window.ids) - 1:
            del self._looks[event.sequence]
            self._backend.free(event.sequence)
            judged.left -= 1
            self._judge(judged)

    def _judge(self, judged: _Judged) -> None:
        """Settle an answer if all its windows are read."""
        if not judged.left:
            self._settle(judged.active, replace(judged.result, certainty=judged.certainty.record()))

    def _forget(self, judged: _Judged) -> None:
        """Read no more for this answer."""
        for sequence in [number for number, (other, _) in self._looks.items() if other is judged]:
            del self._looks[sequence]
            self._backend.free(sequence)
        self._to_look = deque(one for one in self._to_look if one[0] is not judged)

    def _give_up(self, judged: _Judged, error: RopechatError) -> None:
        """Let a row fail whose alternatives could not be read."""
        self._forget(judged)
        failed = Completion(prompt_tokens=len(judged.active.prompt), seed=judged.active.seed, error=error)
        self._done[judged.active.index] = failed

    def _settle(self, active: _Active, result: Completion) -> None:
        """Announce a result, or begin the job that follows it."""
        following = None
        if active.job.then is not None and result.finish_reason != "cancelled":
            following = active.job.then(result)
        if following is None:
            self._done[active.index] = result
        else:
            self._admit(self._encode(active.index, following), active.begun)
