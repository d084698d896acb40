"""What is sent when the context is full: ask, slide, stop; and how far a prompt is to be cut."""

from __future__ import annotations

from bisect import bisect_left
from enum import StrEnum
from typing import TYPE_CHECKING

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


def fitting(engine: ChatEngine, request: ev.Reply) -> int | None:
    """The first of the cuts that leaves room for an answer; the last when none does; None without any."""
    first, *later = request.cuts or (0,)
    if not later:
        return None

    def fits(cut: int) -> bool:
        tokens = len(engine.prompt_ids(without(request.messages, first, cut)))
        return tokens <= FULLEST * engine.context

    return later[min(bisect_left(later, True, key=fits), len(later) - 1)]
