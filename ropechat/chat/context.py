"""What happens when a question does not fit in the context, and where its prompt is cut."""

from __future__ import annotations

from bisect import bisect_left
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from ropechat.conversation import Role
from ropechat.engine.native import free_memory
from ropechat.util.text import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropechat.chat import events as ev
    from ropechat.conversation import Message
    from ropechat.engine.engine import Engine

MAX_FILL = 0.75  # of the context, after cutting: leaves room for an answer and some turns
MAX_SHARE = 0.8  # of the free memory that a larger context takes at most


class OverflowPolicy(StrEnum):
    """What the chat does with a question that does not fit."""

    ASK = "ask"
    SLIDE = "slide"
    STOP = "stop"


DESCRIPTIONS = {
    OverflowPolicy.ASK: "a question that does not fit asks what to do",
    OverflowPolicy.SLIDE: "the oldest turns are left out until the question fits, and a line says so",
    OverflowPolicy.STOP: "a question that does not fit is not sent",
}


def drop_messages(messages: Sequence[Message], start: int, end: int) -> tuple[Message, ...]:
    """The messages without those from `start` to `end`."""
    return (*messages[:start], *messages[end:])


def keep_last(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The system prompt, if there is one, and the last message."""
    return drop_messages(messages, int(messages[0].role is Role.SYSTEM), len(messages) - 1)


def choose_cut(engine: Engine, request: ev.Reply, given: int) -> int:
    """The first of the cuts, of two or more, that leaves room for an answer beyond its `given` first tokens.

    The last when none does.
    """
    first, *later = request.cuts

    def fits(cut: int) -> bool:
        messages = drop_messages(request.messages, first, cut)
        tokens = len(engine.prompt_ids(messages, thinking=request.thinking))
        return tokens + given <= MAX_FILL * engine.context

    return later[min(bisect_left(later, True, key=fits), len(later) - 1)]


class LargerContext(NamedTuple):
    """A larger context of the loaded model. bytes: of KV cache that it takes more when it is full."""

    context: int
    bytes: int

    @property
    def words(self) -> str:
        """A sentence that says how to load the model with this context."""
        return f"/context {self.context} makes room for {self.context:,} (+ {format_bytes(self.bytes)})."


def longest_context(info: ev.ModelInfo) -> int:
    """The context that the model was trained for, in tokens; at least the context that it was loaded with."""
    return max(info.context, int(info.facts.get("usable_length") or 0))


def bytes_more(info: ev.ModelInfo, context: int) -> int:
    """What a full KV cache of `context` tokens takes more than one of the present context, at most."""
    return max(0, context - info.context) * int(info.facts.get("kv_token_bytes") or 0)


def larger_context(info: ev.ModelInfo, least: int) -> LargerContext | None:
    """The present context doubled, until `least` tokens leave room for an answer in it.

    None if the model was not made for so many, or if memory does not permit it.
    """
    longest, context = longest_context(info), min(2 * info.context, longest_context(info))
    while least > MAX_FILL * context and context < longest:
        context = min(2 * context, longest)
    more, free = bytes_more(info, context), free_memory()
    if context == info.context or least >= context or (free is not None and more > MAX_SHARE * free):
        return None
    return LargerContext(context, more)
