"""The one loop that answers: the prompt is cut if it must be, tokens are yielded and stored as they come."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from ropechat.chat import events as ev
from ropechat.chat.context import choose_cut, drop_messages, keep_last
from ropechat.chat.errors import explain
from ropechat.conversation import NodeState, thought_length, unscored_step
from ropechat.errors import CancelledError, ContextFullError, RopechatError, Terminated

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from ropechat.engine.engine import Engine
    from ropechat.trace import FinishReason, Step

SAVE_TIMEOUT_S = 10.0  # seconds that an answer waits for its question to be on disk


def answer(
    engine: Engine,
    request: ev.Reply,
    tell: Callable[[ev.EngineEvent], object],
    *,
    clock: Callable[[], float] = time.monotonic,
    before: Callable[[Sequence[int]], object] = lambda ids: None,
) -> Generator[Step, None, FinishReason | None]:
    """Yield the steps that the model draws, and return why they ended; None: there is no room for any.

    tell: called with ContextTruncated or TooLong, Started, PrefixAccepted, Prefilled, and each TokenGenerated
    before its step is yielded. clock: seconds, monotonic. before: called with the ids of the prompt before
    the model reads it. The answer is stored as it comes, also when the caller stops reading, or at an error,
    which is raised again.
    """
    writing = AnswerWriter(request)
    try:
        writing.wait()
        reason = yield from _steps(engine, request, writing, tell, clock, before)
    except BaseException as error:
        stopped = isinstance(error, GeneratorExit | KeyboardInterrupt | Terminated | CancelledError)
        writing.end("cancelled" if stopped else None, None if stopped else error)
        raise
    if reason is not None:
        writing.end(reason)
    return reason


def _steps(
    engine: Engine,
    request: ev.Reply,
    writing: AnswerWriter,
    tell: Callable[[ev.EngineEvent], object],
    clock: Callable[[], float],
    before: Callable[[Sequence[int]], object],
) -> Generator[Step, None, FinishReason | None]:
    """As `answer`."""
    serial, stopped = request.serial, request.cancelled.is_set
    if stopped():
        return "cancelled"
    thinking = request.sampling.thinking
    ids = engine.prompt_ids(request.messages, thinking=thinking)
    given = _given(engine, request, len(ids))
    if len(ids) + len(given) >= engine.context:
        least = len(engine.prompt_ids(keep_last(request.messages), thinking=thinking)) + len(given)
        slides = least < engine.context
        if not slides or len(request.cuts) < 2:
            tokens = len(ids) + len(given) if slides else least
            tell(ev.TooLong(serial, tokens, engine.context, slides))
            return None
        cut = choose_cut(engine, request, len(given))
        tell(ev.ContextTruncated(serial, cut))
        request = replace(request, messages=drop_messages(request.messages, request.cuts[0], cut))
        ids = engine.prompt_ids(request.messages, thinking=thinking)
        given = _given(engine, request, len(ids))
    tell(ev.Started(serial, len(ids), tuple(ids)))
    writing.begin(engine.name, len(ids), given)
    if given:
        tell(ev.PrefixAccepted(serial, tuple(given)))
    if is_complete(engine, request, given):
        return "stop"
    before(ids)

    def on_prefill(done: int, total: int) -> None:
        tell(ev.Prefilled(serial, done, total, clock()))
        if stopped():  # repeat a cancel that came before the engine ran
            engine.cancel()

    steps = engine.reply(
        request.messages,
        request.sampling,
        prefix=[step.id for step in given],
        top_k=request.top_k,
        on_prefill=on_prefill,
    )
    reason: FinishReason | None = None
    try:
        for step in steps:
            at = clock()
            writing.add(step, at)
            tell(ev.TokenGenerated(serial, step, at))
            yield step
            reason = step.finish_reason
            if reason is not None or stopped():
                break
    except ContextFullError:
        reason = "context"
    finally:
        steps.close()
    return reason or "cancelled"


def _given(engine: Engine, request: ev.Reply, prompt_tokens: int) -> list[Step]:
    """As `prefix_steps`; a last token that ends a text has no text, as where the model draws it."""
    found = prefix_steps(engine, request, prompt_tokens)
    if found and found[-1].id in engine.stop_ids:
        found[-1] = found[-1]._replace(text="", reasoning="", finish_reason="stop")
    return found


def prefix_steps(engine: Engine, request: ev.Reply | ev.Preview, prompt_tokens: int) -> list[Step]:
    """The steps of the tokens that an answer begins with, with their bytes and texts filled in."""
    prefix = request.prefix
    if prefix is None:
        return []
    known, thinking = prefix.steps, request.thinking
    if prefix.written is None:
        ids = [step.id for step in known] + (engine.closing_ids if prefix.closes else [])
        found = list(prefix.drawn)
    else:
        found = list(known[: thought_length(known)])  # the answer is written anew, its thought stays
        ids = [step.id for step in found]
        written = engine.reply_ids(request.messages, prefix.written, thinking)
        told = engine.spell(request.messages, written[:1], ids, thinking)
        if told and told[0].channel == "thought":
            ids = _closed(found, engine.closing_ids)
        ids += written
    while found and found[-1].channel == "marker":  # what follows may make it a part of the thought
        found.pop()
    agrees, new = True, ids[len(found) :]
    spelled = engine.spell(request.messages, new, ids[: len(found)], thinking)
    for index, (id, said) in enumerate(zip(new, spelled, strict=True), len(found)):
        agrees = agrees and index < len(known) and known[index].id == id
        step = known[index] if agrees else unscored_step(id, prompt_tokens + index)
        fields = {**said._asdict(), "finish_reason": None}
        if any(getattr(step, name) != value for name, value in fields.items()):
            step = step._replace(**fields)
        found.append(step)
    return found


def _closed(thought: list[Step], closing: list[int]) -> list[int]:
    """The ids of a thought and of what closes it; the thought may end with a beginning of the latter."""
    ids = [step.id for step in thought]
    begun = len(list(takewhile(lambda step: step.channel == "marker", reversed(thought))))
    while begun and ids[len(ids) - begun :] != closing[:begun]:
        begun -= 1
    return ids + closing[begun:]


def is_complete(engine: Engine, request: ev.Reply, steps: list[Step]) -> bool:
    """Whether the prefix is the whole answer: the user wrote it, or it ends with a stop token."""
    prefix = request.prefix
    return prefix is not None and (
        prefix.written is not None or bool(steps and steps[-1].id in engine.stop_ids)
    )


class AnswerWriter:
    """Stores one answer while it streams; does nothing without a store."""

    def __init__(self, request: ev.Reply) -> None:
        self._request = request
        self._model = ""
        self._given = self._prompt_tokens = 0
        self._first: float | None = None
        self._last: float | None = None
        self._thought: float | None = None

    def wait(self) -> None:
        """Wait until the question is on disk. If the disk refuses it, it stays in memory."""
        if self._request.saved is not None:
            with suppress(RopechatError, TimeoutError):
                self._request.saved.result(SAVE_TIMEOUT_S)

    def begin(self, model: str, prompt_tokens: int, given: list[Step]) -> None:
        """Store the tokens that the answer begins with; model and prompt size are stored at its end."""
        self._model, self._prompt_tokens, self._given = model, prompt_tokens, len(given)
        if self._request.recorder is not None:
            known = self._request.prefix.steps if self._request.prefix is not None else ()
            same = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], zip(given, known, strict=False)))
            self._request.recorder.begin(given, same)

    def add(self, step: Step, at: float) -> None:
        """Store one token that the model drew."""
        self._first = at if self._first is None else self._first
        self._last = at
        if step.channel != "answer":
            self._thought = at - self._first
        if self._request.recorder is not None:
            self._request.recorder.add(step)

    def end(self, reason: FinishReason | None, error: BaseException | None = None) -> None:
        """Store how the answer ended."""
        if self._request.recorder is None:
            return
        stopped = NodeState.STOPPED if reason == "cancelled" else NodeState.DONE
        asked = self._request.asked
        self._request.recorder.end(
            stopped if error is None else NodeState.FAILED,
            reason,
            "" if error is None else explain(error),
            model=self._model,
            prefix_length=self._given,
            prompt_tokens=self._prompt_tokens,
            first_after=None if self._first is None else self._first - asked,
            ended_after=None if self._last is None else self._last - asked,
            thought_seconds=self._thought,
            sampling=self._request.sampling,
        )
