"""Thoughts in the chat: written, folded, unfolded, forked, ended early; /think; answers that were cut."""

from __future__ import annotations

import base64
import math
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from branches import last, told, transcript
from fakes import END, STORY, FakeEngine, fake_step, pieces
from reading import row_of_cursor

from ropechat.conversation import MARK, Node, NodeState, Role
from ropechat.store.store import Store
from ropechat.trace import Channel, Step
from ropechat.tui.format import status
from ropechat.tui.render.blocks import AnswerBlock
from ropechat.tui.render.thought import TAIL

THOUGHT = "Okay, they want a story. " * 12 + "\nSo I tell one about a girl. "
TOKENS = len(pieces(THOUGHT))
PLAN = "A plan. "
OF_PLAN = len(pieces(PLAN))


def rows(c: Any) -> list[str]:
    return [row.rstrip() for row in c.screen().split("\n")]


def line(c: Any) -> str:
    """The line above the last thought in sight."""
    return next(row for row in reversed(rows(c)) if row.startswith(("  ▸ th", "  ▾ th")))


def rail(c: Any) -> list[str]:
    """The rows of thoughts in sight."""
    return [row for row in rows(c) if row.startswith("│")]


def thinker(script: str | Sequence[str] = STORY, thought: str = THOUGHT, **given: Any) -> FakeEngine:
    return FakeEngine(script, thought=thought, **{"context": 4000, **given})


async def thinking(c: Any, count: int = 40) -> None:
    """Ask, and wait for the first tokens of the thought; the engine then waits."""
    await c.ask("Tell")
    await c.until(lambda: len(last(c).answer.node.steps) > count)
    c.engine.gate.clear()
    await c.pilot.pause(0.3)


# --- folding ---


@pytest.mark.parametrize("size", [(60, 20), (80, 24)])
@pytest.mark.slow
async def test_the_end_of_a_thought_is_shown_while_it_is_written(chat: Any, size: tuple[int, int]) -> None:
    async with chat(thinker(rate=40), size=size) as c:
        await thinking(c, TOKENS // 2)
        assert line(c).startswith(f"  ▾ thinking  {len(last(c).answer.node.steps) - 1} tok · ")
        assert line(c).endswith(" s · ^t: answer now")
        assert len(rail(c)) == TAIL
        place = rows(c).index(line(c))
        assert rows(c)[place + 1 : place + 1 + TAIL] == rail(c)
        assert "▍" in rail(c)[-1]
        c.engine.gate.set()
        await c.until(lambda: "Once upon" in c.screen())
        assert not rail(c)
        assert line(c).startswith(f"  ▸ thought  {TOKENS} tok · ")
        await c.idle()
        assert line(c).endswith(" bits/token")
        assert rows(c)[rows(c).index(line(c)) + 1].startswith("  Once upon a time")


@pytest.mark.slow
async def test_an_answer_without_a_thought_has_no_line(chat: Any) -> None:
    async with chat(FakeEngine(STORY)) as c:
        await c.ask("Tell")
        await c.idle()
        assert "thought" not in c.screen()
        assert await told(c, "/now") == "the model is not thinking"
        await transcript(c, "t")
        assert c.line("footer") == "this answer has no thought"


@pytest.mark.slow
async def test_t_and_a_click_unfold_and_fold_one_thought_and_z_all(chat: Any) -> None:
    async with chat(thinker(["One two three.", "Four five six."], PLAN), size=(80, 30)) as c:
        for text in ("Count", "Go on"):
            await c.ask(text)
            await c.idle()
        assert [row for row in rows(c) if row.startswith(f"  ▸ thought  {OF_PLAN} tok")]
        assert not rail(c)
        await transcript(c, "t")
        assert rail(c) == [f"│ {MARK}A plan. {MARK}"]
        await transcript(c, "t")
        assert not rail(c)
        await c.pilot.click(offset=(4, rows(c).index(line(c))))
        assert len(rail(c)) == 1
        await transcript(c, "z")
        assert len(rail(c)) == 2
        await transcript(c, "z")
        assert not rail(c)
        await c.pilot.click(offset=(4, next(at for at, row in enumerate(rows(c)) if "▸ thought" in row)))
        assert rows(c).index(rail(c)[0]) < rows(c).index("▌ Go on")


@pytest.mark.slow
async def test_the_line_stays_in_its_row_when_a_thought_is_unfolded(chat: Any) -> None:
    async with chat(thinker(STORY * 3, THOUGHT * 5)) as c:
        await c.ask("Tell")
        await c.idle()
        await transcript(c, "g")
        before = rows(c).index(line(c))
        await transcript(c, "t")
        assert rows(c).index(line(c)) == before
        assert len(rail(c)) > 10
        await transcript(c, "t")
        assert rows(c).index(line(c)) == before
        assert "Once upon a time" in rows(c)[before + 1]


@pytest.mark.slow
async def test_keys_pass_over_a_folded_thought(chat: Any) -> None:
    async with chat(thinker("One two.", PLAN)) as c:
        await c.ask("Count")
        await c.idle()
        await transcript(c, *["left"] * 20)
        cursor = c.app.transcript.cursor
        assert (cursor.index, cursor.block.first) == (OF_PLAN + 2, OF_PLAN + 2)
        await transcript(c, "t", *["left"] * 20)
        assert c.app.transcript.cursor.index == 0
        await transcript(c, "t")
        assert c.app.transcript.cursor is None  # it would be in what is folded


@pytest.mark.slow
async def test_the_cursor_goes_into_a_thought_that_is_all_there_is(chat: Any) -> None:
    async with chat(thinker(rate=60)) as c:
        await thinking(c, 5)
        await c.pilot.press("escape")
        await c.idle()
        assert not rail(c)
        await transcript(c)
        assert c.app.transcript.cursor.index == len(last(c).answer.node.steps) - 1
        assert rail(c)
        await transcript(c, "t")
        assert not rail(c)


@pytest.mark.slow
async def test_a_search_finds_what_is_shown(chat: Any) -> None:
    async with chat(thinker("One plan.", PLAN)) as c:
        await c.ask("Count")
        await c.idle()
        await c.ask("/find plan")
        await c.pilot.pause(0.1)
        assert " 1/1 " in c.screen()
        await c.pilot.press("escape")
        await transcript(c, "t")
        await c.ask("/find plan")
        await c.pilot.pause(0.1)
        assert "/2 " in c.screen()


# --- tokens of a thought ---


@pytest.mark.slow
async def test_a_token_of_a_thought_is_inspected_and_forked(chat: Any) -> None:
    async with chat(thinker("One two.", "A plan it is. "), size=(100, 40)) as c:
        await c.ask("Count")
        await c.idle()
        count = len(last(c).answer.node.steps)
        await transcript(c, "t", *["left"] * 20, "right", "right", "f4")
        await c.pilot.pause(0.1)
        assert f"token 3 of {count} · plan  thought" in c.screen().replace("·plan", "· plan")
        assert row_of_cursor(c) + 2 == rows(c).index(rail(c)[0])
        await c.pilot.press("2")
        await c.idle()
        assert [len(prefix) for prefix in c.engine.prefixes] == [0, 3]
        node = last(c).answer.node
        assert (node.origin.kind, node.origin.index) == ("fork", 2)
        assert c.app.transcript.cursor.index == 2
        assert c.app.transcript.cursor.block.unfolded


@pytest.mark.slow
async def test_markers_are_marks_and_can_be_replaced(chat: Any) -> None:
    async with chat(thinker("One two.", PLAN), size=(100, 40)) as c:
        await c.ask("Count")
        await c.idle()
        await transcript(c, "t", *["left"] * 20, "f4")
        await c.pilot.pause(0.1)
        assert "token 1 of" in c.screen()
        assert "<think>  marker" in c.screen()
        await c.pilot.press(*["right"] * (OF_PLAN + 1))
        await c.pilot.pause(0.1)
        assert "</think>  marker" in c.screen()
        assert "forced" not in c.screen()
        await c.pilot.press("2")
        await c.idle()
        assert len(c.engine.prefixes[-1]) == OF_PLAN + 2


# --- answer now ---


@pytest.mark.parametrize("way", ["ctrl+t", "/now", "click", "t"])
@pytest.mark.slow
async def test_answer_now_forks_behind_the_thought_so_far(chat: Any, way: str) -> None:
    async with chat(thinker(rate=60), size=(100, 30)) as c:
        await thinking(c)
        first = last(c).node
        if way == "/now":
            await c.ask(way)
        elif way == "click":
            row = line(c)
            await c.pilot.click(offset=(row.index("answer now") + 2, rows(c).index(row)))
        else:
            if way == "t":
                c.app.transcript.focus()
                await c.pilot.press("left")
                assert ": answer now" in line(c)
                assert "^t" not in line(c)
            await c.pilot.press(way)
        c.engine.gate.set()
        await c.until(lambda: last(c).node != first)
        await c.idle()
        node, before = last(c).answer.node, c.app.session.tree[first]
        assert c.engine.prefixes[-1] == [*(step.id for step in before.steps), END]
        assert (node.text, node.state) == (STORY, NodeState.DONE)
        assert (before.text, before.state) == ("", NodeState.STOPPED)
        assert node.origin is not None
        assert (node.origin.kind, node.origin.index) == ("fork", len(before.steps))
        assert node.reasoning == before.reasoning
        assert "‹ 2/2 ›" in c.screen()


@pytest.mark.slow
async def test_a_queued_question_waits_for_the_answer_that_was_asked_for_now(chat: Any) -> None:
    async with chat(thinker(rate=60), size=(100, 30)) as c:
        await thinking(c)
        await c.ask("And then?")
        assert "queued" in c.line("footer")
        await c.pilot.press("ctrl+t")
        c.engine.gate.set()
        await c.until(lambda: last(c).question == "And then?")
        await c.idle()
        assert [message.content for message in c.engine.asked[-1]] == ["Tell", STORY, "And then?"]


@pytest.mark.slow
async def test_the_marker_that_ended_a_thought_early_is_called_forced(chat: Any) -> None:
    async with chat(thinker(rate=60), size=(100, 40)) as c:
        await thinking(c, 5)
        await c.pilot.press("ctrl+t")
        c.engine.gate.set()
        await c.until(lambda: last(c).answer.node.text == STORY)
        await c.idle()
        node = last(c).answer.node
        at = next(index for index, step in enumerate(node.steps) if step.id == END)
        await transcript(c, "t")
        view = c.app.transcript
        view.move_to(type(view.cursor)(view.cursor.block, at))
        await c.pilot.press("f4")
        await c.pilot.pause(0.1)
        assert "</think>  marker, forced" in c.screen()


# --- answers that were cut ---


@pytest.mark.slow
async def test_an_answer_at_the_token_limit_says_so_below_it(chat: Any) -> None:
    async with chat(FakeEngine(STORY), max_tokens=12) as c:
        await c.ask("Tell")
        await c.idle()
        place = next(at for at, row in enumerate(rows(c)) if row.startswith("  Once upon"))
        assert rows(c)[place + 1] == "  cut at the token limit · /continue continues"
        await transcript(c)
        assert rows(c)[place + 1] == "  cut at the token limit · c continues"
        count = len(c.app.session.tree)
        await c.pilot.click(offset=(6, place + 1))
        await c.idle()
        assert len(c.app.session.tree) == count + 1
        assert len(c.engine.prefixes[-1]) == 12


@pytest.mark.slow
async def test_a_stopped_answer_says_so_below_it_and_where_it_was_cut(chat: Any) -> None:
    async with chat(thinker(rate=60), size=(100, 30)) as c:
        await thinking(c)
        await c.pilot.press("escape")
        await c.idle()
        assert "  cut while thinking · /continue continues" in rows(c)
        c.engine.gate.set()
        await c.ask("/continue")
        await c.until(lambda: last(c).answer.node.text[:4] == "Once")
        c.engine.gate.clear()
        await c.pilot.press("escape")
        await c.idle()
        assert "  stopped · /continue continues" in rows(c)
        assert "cut while thinking" not in c.screen()
        c.engine.gate.set()
        await c.ask("More")
        await c.idle()
        assert "  stopped" in rows(c)  # no longer the newest


def test_why_an_answer_is_not_complete() -> None:
    def cut(channel: Channel, reason: Any, state: NodeState = NodeState.DONE) -> str:
        text = "a" if channel == "answer" else ""
        step = fake_step(0, b"a", text)._replace(channel=channel)
        node = Node("n", None, Role.ASSISTANT, steps=[step], finish_reason=reason, state=state)
        return status.cut_line(node, "c")

    assert cut("answer", "stop") == ""
    assert cut("answer", "length") == "cut at the token limit · c continues"
    assert cut("thought", "context") == "cut while thinking · c continues"
    assert cut("thought", "stop") == "ended while thinking · c continues"
    assert cut("answer", None, NodeState.FAILED) == ""


# --- whether to think ---


@pytest.mark.slow
async def test_think_is_set_and_shown(chat: Any) -> None:
    async with chat(thinker("ok", PLAN), size=(100, 30)) as c:
        assert "think" not in c.line("title")
        assert "thinks first, from the next answer on" in await told(c, "/think on")
        assert "think on" in c.line("title")
        assert "at most 1,200 tokens" in await told(c, "/think 1200")
        assert "think ≤1,200" in c.line("title")
        assert (c.app.session.sampling.think, c.app.session.sampling.thinking_budget) == ("on", 1200)
        await told(c, "/think off")
        assert c.app.session.sampling.thinking == ("off", -1)
        assert "think off" in c.line("title")
        await c.ask("Count")
        await c.idle()
        assert c.engine.settings[-1].think == "off"
        assert "no efforts" in await told(c, "/think high")
        await c.ask("Count")
        await c.idle()
        assert c.engine.settings[-1].think == "on"
        assert "/think on|off|low|medium|high|N|auto" in await told(c, "/think hard")
        await told(c, "/think auto")
        assert "think" not in c.line("title")


@pytest.mark.slow
async def test_a_model_without_thoughts_says_so(chat: Any) -> None:
    async with chat(FakeEngine("ok"), size=(100, 40), think="on", thinking_budget=5) as c:
        for typed in ("/think 20", "/set think off"):
            words = "fake-1m does not think: its chat template has no thoughts"
            assert words in await told(c, typed)
        assert "think" not in c.line("title")
        await c.ask("Count")
        await c.idle()
        assert c.engine.settings[-1].think == "auto"  # else it would refuse
        await c.pilot.press("f7")
        assert "temperature" in c.screen()
        assert "thinking_budget" not in c.screen()


@pytest.mark.slow
async def test_the_sampling_panel_has_rows_for_thoughts(chat: Any) -> None:
    async with chat(thinker("ok", PLAN), size=(100, 40)) as c:
        await c.pilot.press("f7", *["down"] * 7)
        assert "▸ think " in c.screen()
        await c.pilot.press("right", "right")
        assert c.app.session.sampling.think == "off"
        await c.pilot.press("left", "down")
        assert "▸ thinking_budget" in c.screen()
        assert "none" in next(row for row in rows(c) if "thinking_budget" in row)
        await c.pilot.press("left", "left")
        assert c.app.session.sampling.thinking == ("on", 8192)
        await c.pilot.press("enter", *["backspace"] * 4, *"300", "enter")
        assert c.app.session.sampling.thinking == ("on", 300)


# --- elsewhere ---


@pytest.mark.slow
async def test_the_answer_is_copied_and_the_thought(chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from textual.drivers.headless_driver import HeadlessDriver

    written: list[str] = []
    monkeypatch.setattr(HeadlessDriver, "write", lambda self, data: written.append(data))
    async with chat(thinker("One two.", PLAN)) as c:
        await c.ask("Count")
        await c.idle()
        for words, wanted in (("", "One two."), (" thought", "A plan.")):
            await told(c, f"/copy{words}")
            copied = [data for data in written if "]52;c;" in data][-1]
            assert base64.b64decode(copied.split("]52;c;")[1].split("\a")[0]).decode() == wanted
        c.engine.thought = ""
        await c.ask("Count")
        await c.idle()
        assert "no thought before this answer" in await told(c, "/copy thought")


@pytest.mark.slow
async def test_branches_and_comparisons_show_answer_and_thought(chat: Any) -> None:
    async with chat(thinker(["One two.", "Three four."], PLAN), size=(120, 40)) as c:
        await c.ask("Count")
        await c.idle()
        await c.ask("/regen")
        await c.idle()
        await c.pilot.press("f5")
        assert any("One two." in row and "plan" not in row for row in rows(c))
        await c.pilot.press("escape")
        await c.ask("/compare 1 2")
        await c.until(lambda: "shared" in c.screen())
        bits = sum(-step.logprob for step in last(c).answer.node.steps[: OF_PLAN + 2]) / math.log(2)
        assert f"thought {OF_PLAN + 2} tok {bits:.1f} bits" in c.screen()


@pytest.mark.slow
async def test_the_gauge_says_what_is_not_sent_again(chat: Any) -> None:
    async with chat(thinker("ok", PLAN), size=(120, 30)) as c:
        await c.ask("Count")
        await c.idle()
        await c.until(lambda: f"{OF_PLAN} tokens of thoughts not sent again" in c.line("gauge"))


# --- the rows of a thought ---


def steps_of(rng: random.Random) -> list[Step]:
    """A random reply: a marker or none, a thought, markers, an answer or none."""
    words = ["plan ", "a", "\n", "\n\n", "wörter ", "你好", "", " and so on, and on", "`x`", "**b** "]
    found: list[tuple[Channel, str]] = [("marker", "<think>")] * rng.randint(0, 1)
    found += [("thought", rng.choice(words)) for _ in range(rng.randint(1, 60))]
    if rng.random() < 0.8:
        found += [("marker", "</think>")] * rng.randint(1, 3)
        found += [("answer", rng.choice(words)) for _ in range(rng.randint(0, 40))]
    made = []
    for index, (channel, text) in enumerate(found):
        step = fake_step(index, text.encode(), text if channel == "answer" else "")
        made.append(step._replace(channel=channel, reasoning=text if channel == "thought" else ""))
    return made


def drawn(block: AnswerBlock) -> list[list[Any]]:
    pieces_of = block.rows.pieces
    return [list(pieces_of(row)) for row in range(block.body)]


@pytest.mark.parametrize("view", ["tokens", "prose"])
@pytest.mark.parametrize("unfolded", [False, True])
def test_rows_that_grew_are_those_of_the_whole(view: Any, unfolded: bool) -> None:
    """Also when the view, the width or the fold changes meanwhile; what is said to have changed has."""
    rng = random.Random(7)
    for _ in range(150):
        steps, width = steps_of(rng), rng.choice([12, 30, 60])
        node = Node("n", None, Role.ASSISTANT)
        block = AnswerBlock("answer", live=True, answer=node)
        block.shape(view, width)
        before: list[Any] = []
        while len(node.steps) < len(steps):
            node.steps += steps[len(node.steps) :][: rng.randint(1, 8)]
            changed = block.grow()
            now = drawn(block)
            assert now[: min(changed, len(before))] == before[: min(changed, len(before))]
            if rng.random() < 0.2:
                block.set_fold(not block.unfolded)
                now = drawn(block)
            before = now
        block.set_fold(unfolded)
        before = drawn(block)
        changed = block.end()
        whole = AnswerBlock("answer", answer=node)
        whole.unfolded = unfolded
        whole.shape(view, width)
        whole.grow()
        assert drawn(block) == drawn(whole)
        kept = min(changed, len(before), block.body)  # empty rows at the end go
        assert drawn(block)[:kept] == before[:kept]
        assert block.ends == whole.ends
        assert block.text == whole.text


def test_every_token_is_where_it_is_drawn() -> None:
    rng = random.Random(8)
    for _ in range(150):
        node = Node("n", None, Role.ASSISTANT, steps=steps_of(rng))
        block = AnswerBlock("answer", answer=node)
        block.unfolded = True
        block.shape("tokens", 30)
        block.grow()
        thoughts = [index for index, step in enumerate(node.steps) if step.channel != "answer"]
        assert block.ends == sorted(block.ends)
        assert block.ends[-1] == block.length == len(block.text)
        assert block.thought == (block.ends[thoughts[-1]] if thoughts else 0)
        for index in range(len(node.steps)):
            start, end = block.token_span(index)
            if start < end:
                row = block.rows.row_at(start)
                assert block.on_rail(row) == (start < block.thought) or not block.text[start:].strip()
                first, last_one = block.span(row)
                assert first <= start < max(last_one, start + 1)
        block.set_fold(False)
        if block.thought:
            assert not any(block.on_rail(row) for row in range(block.body))
            assert {block.rows.row_at(at) for at in range(block.thought)} <= {0}
            assert block.first == sum(end <= block.thought for end in block.ends)


async def test_the_seconds_of_a_thought_come_back_with_its_chat(chat: Any, tmp_path: Any) -> None:
    store = Store(tmp_path / "data")
    async with chat(thinker(rate=50), store=store) as c:
        await c.ask("Why?")
        await c.idle()
        told = line(c)
        assert re.search(r"tok · [\d.]+ s · ", told)
    assert store.close()
    other = Store(tmp_path / "data")
    async with chat(thinker(), store=other, resume="") as c:
        await c.until(lambda: last(c) is not None)
        assert line(c) == told
    other.close()
