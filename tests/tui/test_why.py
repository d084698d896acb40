"""Why this token: the sheet over the chat, what it costs and keeps, and that its numbers are the model's."""

from __future__ import annotations

import gc
import math
import re
import weakref
from typing import Any

import pytest
from branches import answers, at_token, last
from fakes import FakeEngine

from ropechat.engine.engine import Engine
from ropechat.trace import Pair
from ropechat.tui.screens.why import WhyScreen
from ropechat.util.width import cell_width

SCRIPT = "One two three four five."
QUESTION = "Count to five for me.\n\nBegin with one, please. Do not stop."


async def opened(c: Any, index: int) -> WhyScreen:
    """The sheet of a token of the newest answer, once all is computed."""
    at_token(c, index)
    await c.pilot.press("a")
    await done(c)
    return c.app.screen  # type: ignore[no-any-return]


async def done(c: Any) -> None:
    await c.until(lambda: isinstance(c.app.screen, WhyScreen) and c.app.screen._examination.is_done)
    await c.until(lambda: "with the context" in c.screen() and " stops" not in c.screen())


def rows(c: Any) -> dict[str, float]:
    """The listed parts, by their texts."""
    found = re.findall(r"([+-]\d+\.\d\d) .{8} [▸ ] (.*?) +\d+ tok", c.screen())
    return {text: float(bits) for bits, text in found}


@pytest.mark.parametrize("size", [(80, 24), (160, 45), (50, 14)])
async def test_parts_and_those_within_them(chat: Any, size: tuple[int, int]) -> None:
    async with chat(FakeEngine(SCRIPT), size=size) as c:
        await c.ask(QUESTION)
        await c.idle()
        await opened(c, 3)
        assert max(map(cell_width, c.screen().splitlines())) <= size[0]
        found = rows(c)
        assert [text.partition(":")[0] for text in found] == ["you", "answer so far"]  # the strongest first
        assert list(found.values()) == [1.6, 0.3]  # 0.1 bits for each toy token
        await c.pilot.press("enter")
        assert next(iter(rows(c))).startswith("Begin with")
        assert len(rows(c)) == 2  # paragraphs
        await c.pilot.press("right", "right")  # sentences, then words
        assert rows(c)["please."] == 0.2
        await c.pilot.press("left")
        assert len(rows(c)) == 2
        await c.pilot.press("escape", "escape")
        assert list(rows(c).values()) == [1.6, 0.3]
        await c.pilot.press("escape")
        await c.until(lambda: not isinstance(c.app.screen, WhyScreen))
        await c.pilot.press("a")  # the keys are those of the token again
        await c.until(lambda: isinstance(c.app.screen, WhyScreen))


async def test_the_chosen_part_stays_in_sight(chat: Any) -> None:
    async with chat(FakeEngine("One two. Three four. Five six. Seven eight. Nine ten."), size=(80, 20)) as c:
        await c.ask("\n".join(f"Line {number}." for number in range(12)))
        await c.idle()
        sheet = await opened(c, 12)
        await c.pilot.press("end")  # the weakest part, the beginning of the answer
        view, before = sheet.text_view, sheet.text_view.size.height
        await c.pilot.press("enter")  # the list becomes longer, the context smaller
        await c.until(lambda: view.size.height < before)
        await c.pilot.press("end")
        assert sheet._chosen is not None
        assert sheet._chosen.span[0] >= sheet._examination.why.context.reply[0]  # type: ignore[union-attr]
        top = view.scroll_offset.y
        assert top <= view.row_of(sheet._chosen.span[0]) < top + view.size.height
        await c.pilot.press("left", "right")
        await c.until(lambda: view.size.height < before)
        top = view.scroll_offset.y
        assert top <= view.row_of(sheet._chosen.span[0]) < top + view.size.height


async def test_going_back_costs_nothing(chat: Any) -> None:
    engine = FakeEngine(SCRIPT)
    async with chat(engine) as c:
        await c.ask(QUESTION)
        await c.idle()
        await opened(c, 3)
        computed = engine.rows
        assert computed
        await c.pilot.press("o")
        await done(c)
        assert "alone saves" in c.screen()
        assert engine.rows > computed
        computed = engine.rows
        await c.pilot.press("o")
        await done(c)
        assert "left out" in c.screen()
        await c.pilot.press("escape")
        await opened(c, 3)
        assert engine.rows == computed
        await c.pilot.press("r", *"abc", "enter")
        await done(c)
        assert "replaced by 'abc'" in c.screen()
        assert list(rows(c).values()) == [1.5, 0.0]  # one toy token, and in an answer one for each letter
        await c.pilot.press("r")
        await done(c)
        assert "left out" in c.screen()


async def test_an_answer_that_streams_is_not_disturbed_and_esc_stops(chat: Any) -> None:
    engine = FakeEngine([SCRIPT, SCRIPT])
    async with chat(engine) as c:
        await c.ask(QUESTION)
        await c.idle()
        engine.gate.clear()
        await c.ask("Again")
        await c.until(lambda: c.app.session.generating and c.app.session.last.answer.started)
        at_token(c, 3)
        await c.pilot.press("a")
        await c.until(lambda: "waits for the model" in c.screen())
        assert not engine.rows
        engine.gate.set()
        await done(c)
        assert answers(c)[-1] == SCRIPT
        await c.pilot.press("escape")
        at_token(c, 4)
        engine.hold_at = engine.rows + 3
        await c.pilot.press("a")
        await c.until(lambda: engine.rows == engine.hold_at and "esc stops" in c.screen())
        await c.pilot.press("escape")
        await c.until(lambda: "stopped after 2 scorings" in c.screen())
        assert isinstance(c.app.screen, WhyScreen)
        engine.gate.set()
        await c.pilot.press("m")
        await done(c)


async def test_the_whole_answer_and_words_of_it(chat: Any) -> None:
    async with chat(FakeEngine(SCRIPT)) as c:
        await c.ask("/why")
        assert "put the cursor on a token" in c.line("footer")
        await c.ask(QUESTION)
        await c.idle()
        await c.ask("/why")
        await done(c)
        assert "why · tokens 1 to 6 of 7" in c.screen()
        await c.pilot.press("escape")
        await c.ask("/why three")
        await done(c)
        assert "' three'" in c.screen()
        await c.pilot.press("escape")
        await c.ask("/why zebra")
        assert "'zebra' is not in this answer" in c.line("footer")


async def test_the_numbers_go_with_their_chat(chat: Any) -> None:
    """They hold the answer with its alternatives."""
    async with chat(FakeEngine(SCRIPT)) as c:
        await c.ask(QUESTION)
        await c.idle()
        kept = weakref.ref((await opened(c, 3))._whys)
        await c.pilot.press("escape")
        await c.until(lambda: not isinstance(c.app.screen, WhyScreen))
        gc.collect()
        assert kept() is not None
        await c.pilot.press("ctrl+n", "ctrl+n")  # asks first: nothing is stored
        await c.idle()
        gc.collect()
        assert kept() is None


async def test_errors_are_said(chat: Any) -> None:
    engine = FakeEngine(SCRIPT)
    async with chat(engine) as c:
        await c.ask(QUESTION)
        await c.idle()
        engine.context = 10
        at_token(c, 3)
        await c.pilot.press("a")
        await c.until(lambda: "context: must have at most 10 tokens" in c.screen())
        await c.pilot.press("enter", "left", "escape")
        await c.until(lambda: not isinstance(c.app.screen, WhyScreen))


@pytest.mark.slow
async def test_the_numbers_of_a_real_model_are_those_of_the_chat_and_of_scoring_alone(chat: Any) -> None:
    engine = Engine.load("builtin", threads=1)
    async with chat(engine, temperature=0.0, max_tokens=12) as c:
        await c.ask("How do I begin a new chat? Say it in one sentence.")
        await c.idle()
        node = c.app.session.tree[last(c).node]
        sheet = await opened(c, 5)
        why = sheet._examination.why
        assert why is not None
        assert why.bits == -node.steps[5].logprob / math.log(2)  # the chat's own number, to the bit
        messages, thinking = c.app.session.asked(node.id)
        ids = [step.id for step in node.steps]
        part = next(one for one in why.walk() if one.bits is not None and one.span[0] == 0)
        changed = why.context.text[part.part.cut[1] : why.context.texts[0].span[1]]
        asked = [*messages[:-1], type(messages[-1])(messages[-1].role, changed)]
        pair = Pair([*engine.prompt_ids(asked, thinking=thinking), *ids[:5]], ids[5:6])
        ((_, score),) = engine.score_many([pair])
        assert part.bits == pytest.approx(-score.logprob / math.log(2) - why.bits, abs=1e-12)
        assert {one.part.level for one in why.walk()} >= {"text", "word"}
