"""What happens when a question does not fit in the context, and where its prompt is cut."""

from __future__ import annotations

from bisect import bisect_left
from enum import StrEnum
from typing import TYPE_CHECKING

from ropechat.conversation import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropechat.chat import events as ev
    from ropechat.conversation import Message
    from ropechat.engine.engine import Engine

MAX_FILL = 0.75  # of the context, after cutting: leaves room for an answer and some turns


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
