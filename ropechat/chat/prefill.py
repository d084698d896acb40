"""Answers that begin with a prefix of known tokens, and the storing of answers."""

from __future__ import annotations

from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING

from ropechat.chat.errors import explain
from ropechat.conversation import NodeState, unscored_step
from ropechat.errors import RopechatError

if TYPE_CHECKING:
    from ropechat.chat import events as ev
    from ropechat.chat.protocols import ChatEngine
    from ropechat.trace import FinishReason, Step

SAVE_TIMEOUT_S = 10.0  # seconds that an answer waits for its question to be on disk


def prefix_steps(engine: ChatEngine, request: ev.Reply | ev.Preview, prompt_tokens: int) -> list[Step]:
    """The steps of the tokens that an answer begins with, with their bytes and texts filled in."""
    prefix = request.prefix
    if prefix is None:
        return []
    known = prefix.steps
    if prefix.written is None:  # all but the last were drawn as they are
        ids = [step.id for step in known]
        found = list(known[:-1])
    else:
        ids = engine.reply_ids(request.messages, prefix.written)
        found = []
    agrees, new = True, ids[len(found) :]
    spelled = engine.spell(request.messages, new, ids[: len(found)])
    for index, (id, (data, text)) in enumerate(zip(new, spelled, strict=True), len(found)):
        agrees = agrees and index < len(known) and known[index].id == id
        step = known[index] if agrees else unscored_step(id, prompt_tokens + index)
        if (step.bytes, step.text, step.finish_reason) != (data, text, None):
            step = step._replace(bytes=data, text=text, finish_reason=None)
        found.append(step)
    return found


def is_complete(engine: ChatEngine, request: ev.Reply, steps: list[Step]) -> bool:
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
        )
