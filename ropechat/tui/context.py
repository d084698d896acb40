"""What is sent when the context is full: ask, slide, stop; and how far a prompt is to be cut."""

from __future__ import annotations

from bisect import bisect_left
from enum import StrEnum
from typing import TYPE_CHECKING

from ropechat.conversation import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropechat.conversation import Message
    from ropechat.tui import events as ev
    from ropechat.tui.ports import ChatEngine

FULLEST = 0.75  # of the context, after the oldest turns went: room for an answer, and not at once again


class WhenFull(StrEnum):
    """What happens to a question that does not fit."""

    ASK = "ask"
    SLIDE = "slide"
    STOP = "stop"


MEANING = {
    WhenFull.ASK: "a question that does not fit asks what to do",
    WhenFull.SLIDE: "the oldest turns are left out until the question fits, and a line says so",
    WhenFull.STOP: "a question that does not fit is not sent",
}


def without(messages: Sequence[Message], start: int, end: int) -> tuple[Message, ...]:
    """The messages without those from `start` to `end`."""
    return (*messages[:start], *messages[end:])


def alone(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The last message under the system text, without all that was said between."""
    return without(messages, int(messages[0].role is Role.SYSTEM), len(messages) - 1)


def fitting(engine: ChatEngine, request: ev.Reply, given: int) -> int:
    """The first of the cuts, of two or more, that leaves room for an answer beyond its `given` first tokens.

    The last when none does.
    """
    first, *later = request.cuts

    def fits(cut: int) -> bool:
        tokens = len(engine.prompt_ids(without(request.messages, first, cut)))
        return tokens + given <= FULLEST * engine.context

    return later[min(bisect_left(later, True, key=fits), len(later) - 1)]
