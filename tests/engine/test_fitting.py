"""Prompts that are cut until they fit."""

import pytest

from ropechat.conversation import Message, Role
from ropechat.engine.engine import Engine
from ropechat.engine.fitting import Side, fitted
from ropechat.engine.scheduler import Job
from ropechat.errors import RequestError


def fit(engine: Engine, job: Job, room: int, side: Side) -> tuple[Job, int]:
    return fitted(job, room, side, engine.job_ids, engine.tokenizer)


@pytest.mark.parametrize(("side", "kept"), [("end", "0123456789"), ("start", "6789abcdef")])
def test_a_text_loses_one_side(engine: Engine, side: Side, kept: str) -> None:
    found, cut = fit(engine, Job("0123456789abcdef"), 10, side)
    assert (found.prompt, cut) == (kept, 6)
    assert fit(engine, found, 10, side) == (found, 0)


@pytest.mark.parametrize("side", ["end", "start"])
def test_a_character_is_not_divided(engine: Engine, side: Side) -> None:
    found, cut = fit(engine, Job("é" * 20), 11, side)
    assert (found.prompt, cut) == ("é" * 5, 15)


def test_the_longest_question_loses(engine: Engine) -> None:
    messages = [
        Message(Role.SYSTEM, "s" * 50),
        Message(Role.USER, "short"),
        Message(Role.ASSISTANT, "a" * 40),
        Message(Role.USER, "question " * 4),
    ]
    whole = len(engine.job_ids(Job(messages)))
    found, cut = fit(engine, Job(messages), whole - 9, "end")
    assert found.prompt == [*messages[:3], Message(Role.USER, ("question " * 4)[:-9])]
    assert cut == 9


def test_what_cannot_be_cut_stays(engine: Engine) -> None:
    system = [Message(Role.SYSTEM, "s" * 50), Message(Role.USER, "x")]
    for prompt in (system, [1] * 90, [Message(Role.SYSTEM, "s" * 90)], RequestError("no"), ""):
        job = Job(prompt)  # type: ignore[arg-type]
        assert fit(engine, job, 20, "end") == (job, 0)
