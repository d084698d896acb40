"""Thoughts without a screen: what is known of them, what is sent, edited answers, previews, the page."""

from __future__ import annotations

import json
import math
import random
import re
from typing import Any

import pytest
from fakes import END, FakeEngine, pieces

from ropechat.chat import events as ev
from ropechat.chat import presets
from ropechat.chat.answer import Answer, Thought
from ropechat.chat.answering import prefix_steps
from ropechat.chat.export import format_chat
from ropechat.chat.inference import Inference, describe
from ropechat.chat.session import Session
from ropechat.conversation import (
    ConversationTree,
    Message,
    Node,
    NodeState,
    Origin,
    Role,
    Step,
    thought_length,
)
from ropechat.sampling import AUTO, Sampling, Thinking
from ropechat.store.queries import Chat
from ropechat.tui.format.lists import snippet

ASKED = (Message(Role.USER, "Count"),)
PLAN = "A plan. "


def steps(thought: str = PLAN, answer: str = "One two.") -> list[Step]:
    """As the toy engine draws them."""
    engine = FakeEngine(answer, thought=thought)
    return list(engine.reply(ASKED, Sampling()))


# --- what is known of a thought ---


def test_a_thought_is_counted_as_it_comes() -> None:
    rng, drawn = random.Random(3), steps("A plan of some words. " * 9)
    own = [step for step in drawn if step.channel == "thought"]
    for _ in range(20):
        answer = Answer(Node("n", None, Role.ASSISTANT), asked=0.0)
        while len(answer.node.steps) < len(drawn):
            answer.node.steps += drawn[len(answer.node.steps) :][: rng.randint(1, 9)]
            found = answer.thought
            assert found is not None
            here = answer.node.steps
            assert found.tokens == sum(step.channel == "thought" for step in here)
            assert found.ended == any(step.channel == "answer" for step in here)
        bits = math.fsum(-step.logprob for step in own) / math.log(2)
        assert found.bits == pytest.approx(bits)
        assert (found.tokens, found.read) == (len(own), thought_length(drawn))


def test_an_answer_without_a_thought_has_none() -> None:
    plain = list(FakeEngine("One two.").reply(ASKED, Sampling()))
    assert Answer(Node("n", None, Role.ASSISTANT, steps=plain)).thought is None
    told = Node("n", None, Role.ASSISTANT, final_text="ok", final_reasoning="hm")  # of another program
    assert Answer(told).thought == Thought()


def test_the_time_of_a_thought_ends_with_it() -> None:
    answer = Answer(Node("n", None, Role.ASSISTANT), asked=1.0)
    for at, thinks in ((3.0, True), (5.5, True), (6.0, False), (9.0, False)):
        answer.record_token(at, thinks=thinks)
    answer.node.steps += steps()
    assert answer.thought is not None
    assert answer.thought.seconds == 2.5


# --- what the model is told ---


def loaded(**info: Any) -> Session:
    session = Session("m", Sampling(think="high", thinking_budget=9))
    session.apply(ev.ModelLoaded(ev.ModelInfo("m", "f32", 512, True, **info)))
    return session


@pytest.mark.parametrize(
    ("info", "think"),
    [({"thinks": True, "has_effort": True}, "high"), ({"thinks": True}, "on"), ({}, "auto")],
)
def test_a_model_is_told_only_what_it_knows(info: dict[str, bool], think: str) -> None:
    session = loaded(**info)
    assert session.thinking == (AUTO if think == "auto" else Thinking(think, 9))
    turn = session.ask("Count")
    assert turn.request is not None
    assert turn.request.sampling.think == think
    assert session.count("x").thinking.think == think
    assert session.sampling.think == "high"  # for the next model


def test_what_goes_on_from_given_tokens_has_their_prompt() -> None:
    """With another switch, a thought would follow another prompt, and be read as an answer."""
    session = loaded(thinks=True)
    session.sampling = Sampling(think="on")
    first = session.ask("Count")
    first.answer.node.steps += steps()[:3]
    session.tree.end(first.node or "", NodeState.STOPPED)
    session.sampling = Sampling(think="off", thinking_budget=40)
    given, origin = (
        ev.AssistantPrefix(tuple(first.answer.node.steps)),
        Origin(first.node or "", 3, "continue"),
    )
    assert session.preview(first.node or "", given).thinking.think == "on"
    turn = session.answer(first.asked, given, origin)
    assert turn.request is not None
    assert turn.request.sampling.thinking == ("on", 40)
    session.tree.end(turn.node or "", NodeState.DONE)
    again = session.answer(first.asked)
    assert again.request is not None
    assert again.request.sampling.thinking == ("off", 40)


def test_what_the_screen_shows_of_a_model() -> None:
    assert not describe(FakeEngine("ok")).thinks  # type: ignore[arg-type]
    info = describe(FakeEngine("ok", thought=PLAN))  # type: ignore[arg-type]
    assert (info.thinks, info.has_effort, info.repeats_thoughts) == (True, False, False)

    class Repeating(FakeEngine):
        def prompt_ids(self, messages: Any, *args: Any, **options: Any) -> list[int]:
            return [7] * sum(len(message.reasoning) for message in messages)

    assert describe(Repeating("ok", thought=PLAN)).repeats_thoughts  # type: ignore[arg-type]


def test_tokens_of_thoughts_that_are_not_sent_again_are_counted() -> None:
    for repeats, wanted in ((False, 2 * len(pieces(PLAN))), (True, 0)):
        session = loaded(thinks=True, repeats_thoughts=repeats)
        for text in ("Count", "Go on"):
            turn = session.ask(text)
            turn.answer.node.steps += steps()
            session.tree.end(turn.node or "", NodeState.DONE, "stop")
        assert session.thoughts_left_out == wanted


@pytest.mark.parametrize(
    ("words", "thinking", "said"),
    [
        ("on", ("on", -1), "thinks first"),
        ("off", ("off", -1), "no thoughts"),
        ("low", ("low", -1), "thinks first, with low effort"),
        ("1,200", ("on", 1200), "thinks first, at most 1,200 tokens"),
        ("1", ("on", 1), "thinks first, at most 1 token"),
        ("auto", AUTO, "thinks as its chat template says"),
    ],
)
def test_words_for_thinking(words: str, thinking: Any, said: str) -> None:
    found = presets.with_thinking(Sampling(think="high", thinking_budget=7), words)
    assert found.thinking == thinking
    assert presets.describe_thinking(found) == said


@pytest.mark.parametrize("words", ["", "hard", "-5", "on 5", "99999999999"])
def test_words_that_are_none(words: str) -> None:
    with pytest.raises(ValueError, match=r"/think on\|off|thinking_budget: must be"):
        presets.with_thinking(Sampling(), words)


def test_think_is_a_setting_like_others() -> None:
    assert presets.names_for(thinks=True) == presets.NAMES
    assert set(presets.NAMES) - set(presets.names_for(thinks=False)) == {"think", "thinking_budget"}
    assert presets.full_name("think") == "think"
    sampling, seen = Sampling(), []
    for _ in range(6):
        seen.append(presets.format_value(sampling, "think"))
        sampling = presets.step_value(sampling, "think", 1)
    assert seen == ["auto", "on", "off", "low", "medium", "high"]
    assert sampling == Sampling()
    with pytest.raises(ValueError, match="think: must be one of auto, on"):
        presets.with_value(sampling, "think", "maybe")
    assert presets.with_value(Sampling(thinking_budget=4), "thinking_budget", "none") == Sampling()


# --- beginnings of answers ---


def prefix(known: list[Step], **given: Any) -> list[Step]:
    engine = FakeEngine("One two.", thought=PLAN)
    engine.asked.append(ASKED)
    request = ev.Preview(ASKED, ev.AssistantPrefix(tuple(known), **given), 1)
    return prefix_steps(engine, request, 5)  # type: ignore[arg-type]


def test_an_edited_answer_keeps_its_thought() -> None:
    drawn = steps()
    count = thought_length(drawn)
    found = prefix(drawn, written="Six.")
    assert found[:count] == drawn[:count]
    assert bytes(step.id - 5000 for step in found[count:]) == b"Six."


def test_an_answer_that_is_written_behind_a_cut_thought_ends_it() -> None:
    found = prefix(steps()[:3], written="Six.")
    assert [step.id for step in found[:4]] == [0, 1, 2, END]
    assert [step.channel for step in found[:4]] == ["marker", "thought", "thought", "marker"]


def test_ending_a_thought_adds_its_marker() -> None:
    found = prefix(steps()[:3], closes=True)
    assert [step.id for step in found] == [0, 1, 2, END]
    assert math.isnan(found[-1].logprob)


def test_a_preview_inside_a_long_thought_ends() -> None:
    thread = Inference()
    thread.start()
    try:
        engine = FakeEngine("One two.", thought=PLAN * 100, context=5000)
        engine.asked.append(ASKED)
        thread.submit(ev.Load(lambda: engine))  # type: ignore[arg-type, return-value]
        given = ev.AssistantPrefix(tuple(steps(PLAN * 100)[:3]))
        thread.submit(ev.Preview(ASKED, given, 1, count=10, thinking=Thinking("on", 900)))
        found: list[Any] = []
        while not any(isinstance(event, ev.PreviewReady) for event in found):
            found += thread.drain()
        assert len(found[-1].steps) == 11
        assert engine.settings[-1].thinking == ("on", 900)
    finally:
        thread.shutdown(2.0)


# --- where answers are shown ---


def test_snippets_are_of_the_answer() -> None:
    node = Node("n", None, Role.ASSISTANT, steps=steps())
    assert snippet(node) == "One two."
    node.steps = node.steps[:3]
    assert snippet(node).startswith("thought: A pl")
    assert snippet(Node("n", None, Role.ASSISTANT, final_reasoning="hm")) == "thought: hm"
    assert snippet(Node("n", None, Role.ASSISTANT, final_text="ok", final_reasoning="hm")) == "ok"


def test_the_page_folds_the_thought_with_its_tokens() -> None:
    tree = ConversationTree()
    tree.write(Role.USER, "Count")
    node = tree.answer(tree.current or "", "m", Sampling(seed=1))
    node.steps += steps("1 < 2 & so on. ")
    tree.end(node.id, NodeState.DONE, "stop")
    page = format_chat(Chat("c", "Count", tree), "html")
    folded = re.search(r'<details class="thought">(.*?)</details>(.*?)</article>', page, re.DOTALL)
    assert folded is not None
    count = thought_length(node.steps)
    assert f"<summary>thought · {count} tokens · " in folded[1]
    assert folded[1].count("<span") == count
    assert "&lt;" in folded[1]
    assert "< 2" not in folded[1]
    assert folded[2].count("<span") == len(node.steps) - count
    assert "One" in folded[2]
    rows = json.loads(page.split('id="rows">')[1].split("</script>")[0])
    assert [row[0] for row in rows] == [step.id for step in node.steps]
    assert folded[1].count('class="special label"') == 2  # the markers, which do not count
    node.steps, node.final_reasoning = [], "<b> of another program"
    page = format_chat(Chat("c", "Count", tree), "html")
    assert "<summary>thought</summary>" in page
    assert "&lt;b&gt; of another program" in page
