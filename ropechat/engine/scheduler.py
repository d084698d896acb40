"""Continuous batching of many prompts, with completions in the order of the prompts or as they finish."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ropechat.conversation import Message
from ropechat.engine.convert import EventLike
from ropechat.engine.stop_strings import StopStringFilter
from ropechat.errors import CancelledError, InternalError, RopechatError
from ropechat.sampling import Sampling
from ropechat.trace import FinishReason, Step

Prompt = str | Sequence[int] | Sequence[Message] | RopechatError
"""Text, ids, messages, or an error to return as the completion's error."""

LOOKAHEAD = 4
"""How many windows of prompts may be started before the oldest one is finished."""


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
    then: "Callable[[Completion], Job | None] | None" = None
    """Returns the job that follows a completion without error, in the same place of the order; None ends."""

    def draws(self, seed: int, index: int) -> tuple[int, int]:
        """Return (seed, stream) of prompt number `index` in a call with `seed`."""
        if self.sampling is None or self.sampling.seed is None:
            return seed, index
        return self.sampling.seed, 0


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
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    """For each id the (id, raw logprob) of the recorded candidates, most probable first."""


class Backend(Protocol):
    """The operations of an engine that the scheduler uses."""

    seed: int

    def add(self, job: Job, seed: int, stream: int) -> tuple[int, int, StopStringFilter]:
        """Start a prompt; return its sequence number, its number of tokens and the filter of its text."""

    def step(self, sequences: Sequence[int]) -> Sequence[EventLike]:
        """Run one forward pass over these sequences."""

    def record(self, event: EventLike, text_filter: StopStringFilter) -> Step:
        """Convert a token event to a Step."""

    def reused(self, sequence: int) -> int:
        """The number of prompt tokens that came from the cache."""

    def free(self, sequence: int) -> None:
        """Release a sequence."""


@dataclass
class _Active:
    """A sequence in progress."""

    index: int
    seed: int
    prompt_tokens: int
    text_filter: StopStringFilter
    job: Job
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    top: list[tuple[tuple[int, float], ...]] = field(default_factory=list)


class Scheduler:
    """Continuous batching: when a sequence ends, the next prompt takes its place."""

    def __init__(self, backend: Backend, window: int, on_tokens: Callable[[int], None] | None) -> None:
        self._backend = backend
        self._window = window
        self._on_tokens = on_tokens
        self._active: dict[int, _Active] = {}
        self._done: dict[int, Completion] = {}

    def run(
        self, prompts: Iterator[Prompt | Job | None], *, ordered: bool = True
    ) -> Iterator[tuple[int, Completion]]:
        """Yield (index, completion); reads a prompt only when there is room for it.

        None in place of a prompt: there is none now, ask again after the next pass; allowed only while others
        are in progress. ordered: in the order of the prompts, else as they finish.
        """
        admitted = yielded = 0
        more = True

        def ready() -> int | None:
            """The index of the completion to yield next, if it is there."""
            if ordered:
                return yielded if yielded in self._done else None
            return next(iter(self._done), None)

        try:
            while more or self._active:
                # Yield finished completions first: the caller may produce the next prompt from them.
                while more and ready() is None and self._has_room(admitted - yielded if ordered else 0):
                    try:
                        prompt = next(prompts)
                    except StopIteration:
                        more = False
                        break
                    if prompt is None:
                        break
                    self._admit(admitted, prompt)
                    admitted += 1
                try:
                    if ready() is None:
                        self._advance()
                except CancelledError:
                    more = False
                    for sequence in list(self._active):
                        self._finish(sequence, "cancelled")
                while (index := ready()) is not None:
                    yield index, self._done.pop(index)
                    yielded += 1
        finally:
            for sequence in self._active:
                self._backend.free(sequence)

    def _has_room(self, ahead: int) -> bool:
        return len(self._active) < self._window and ahead < LOOKAHEAD * self._window

    def _admit(self, index: int, prompt: Prompt | Job) -> None:
        job = prompt if isinstance(prompt, Job) else Job(prompt)
        seed, stream = job.draws(self._backend.seed, index)
        try:
            if isinstance(job.prompt, RopechatError):
                raise job.prompt
            sequence, length, text_filter = self._backend.add(job, seed, stream)
        except RopechatError as error:
            self._done[index] = Completion(seed=seed, error=error)
        else:
            self._active[sequence] = _Active(index, seed, length, text_filter, job)

    def _advance(self) -> None:
        """Run one forward pass over all active sequences."""
        if not self._active:
            return
        before = len(self._active)
        try:
            events = self._backend.step(list(self._active))
        except CancelledError:
            raise
        except RopechatError:
            events = self._advance_each()
        if not events and len(self._active) == before:
            raise InternalError("engine: a pass over unfinished sequences made no progress")
        made = [event for event in events if event.kind == "token"]
        for event in made:
            self._take(event)
        if made and self._on_tokens is not None:
            self._on_tokens(len(made))

    def _advance_each(self) -> list[EventLike]:
        """After a failed pass, which changed nothing, run each sequence alone to find the faulty one."""
        events: list[EventLike] = []
        for sequence in list(self._active):
            try:
                events += self._backend.step([sequence])
            except CancelledError:
                raise
            except RopechatError as error:
                self._finish(sequence, None, error)
        return events

    def _take(self, event: EventLike) -> None:
        active = self._active[event.sequence]
        step = self._backend.record(event, active.text_filter)
        active.ids.append(step.id)
        active.logprobs.append(step.logprob)
        active.texts.append(step.text)
        if step.top:
            active.top.append(step.top)
        if step.finish_reason is not None:
            self._finish(event.sequence, step.finish_reason)

    def _finish(self, sequence: int, reason: FinishReason | None, error: RopechatError | None = None) -> None:
        active = self._active.pop(sequence)
        cached = self._backend.reused(sequence)
        self._backend.free(sequence)
        following = None
        if error is None:
            ids, logprobs = tuple(active.ids), tuple(active.logprobs)
            result = Completion(
                "".join(active.texts),
                ids,
                reason,
                active.prompt_tokens,
                len(ids),
                logprobs,
                active.seed,
                cached_tokens=cached,
                top=tuple(active.top),
            )
            if active.job.then is not None and reason != "cancelled":
                following = active.job.then(result)
        else:
            result = Completion(prompt_tokens=active.prompt_tokens, seed=active.seed, error=error)
        if following is None:
            self._done[active.index] = result
        else:
            self._admit(active.index, following)
