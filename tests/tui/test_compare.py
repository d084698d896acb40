"""Answers side by side: two to four of them, and series of answers that end in a comparison."""

from __future__ import annotations

from typing import Any

import pytest
from branches import answers, last, read, transcript
from chats import branched
from fakes import STORY, FakeEngine
from snapshots import compare, shown

from ropechat.chat import presets
from ropechat.conversation import Node, NodeState
from ropechat.sampling import Sampling
from ropechat.tui.options import ChatOptions
from ropechat.tui.screens.branches import BranchesScreen
from ropechat.tui.screens.compare import CompareScreen, describe_comparison

FOUR = ["One two three.", "One two four five six.", "One seven.", "One two three four five."]


async def comparing(c: Any) -> Any:
    await c.until(lambda: isinstance(c.app.screen, CompareScreen))
    await c.pilot.pause(0.1)
    return c.app.screen


def columns(c: Any) -> list[int]:
    """The numbers of the columns in sight."""
    return [n for n, side in enumerate(c.app.screen.query(".side"), 1) if side.display]


@pytest.mark.slow
async def test_compare_from_the_transcript_and_keep_one(chat: Any) -> None:
    async with chat(FakeEngine(["one two", "three four"]), size=(100, 30)) as c:
        await c.ask("Hi")
        await c.idle()
        first = last(c).node
        await c.pilot.press("escape", "left", "equals_sign")
        assert "no other answer to compare this one with; r writes one" in c.line("footer")
        await c.pilot.press("r")
        await c.idle()
        second = last(c).node
        await read(c)
        await c.pilot.press("equals_sign")
        await comparing(c)
        await c.pilot.press("left", "enter")
        await c.until(lambda: last(c).node == first)
        await c.ask("/compare 1 2")
        await comparing(c)
        await c.pilot.press("2")
        await c.until(lambda: last(c).node == second)
        await c.ask("/compare")
        await comparing(c)
        await c.pilot.press("4")
        assert "the answers here are 1 and 2" in c.screen()
        await c.pilot.press("equals_sign")
        await c.until(lambda: not isinstance(c.app.screen, CompareScreen))
        assert last(c).node == second
        for words in ("1", "1 3", "1 x", "0 1"):
            await c.ask(f"/compare {words}")
            assert "/compare 1 2: two to 4 of the 2 answers" in c.line("footer")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "first"), [(80, [3, 4]), (120, [2, 3, 4]), (160, [1, 2, 3, 4])])
async def test_a_series_is_written_and_compared(chat: Any, width: int, first: list[int]) -> None:
    engine = FakeEngine(FOUR)
    async with chat(engine, size=(width, 30), seed=7) as c:
        await c.ask("Hi")
        await c.idle()
        await c.ask("/regen 4")
        screen = await comparing(c)
        assert len(answers(c)) == 5
        assert [used.seed for used in engine.settings] == [7, 8, 9, 10, 11]
        assert [node.id for node in screen._answers] == [
            one.id for one in c.app.session.tree.children(last(c).asked)[1:]
        ]
        assert columns(c) == first
        assert ("for the others" in c.screen()) is (width < 160)
        assert "likeliest: " in " ".join(c.screen().split())
        for _ in range(3):
            await c.pilot.press("left")
        await c.pilot.pause(0.1)
        assert columns(c) == [number - first[0] + 1 for number in first]
        assert "answer 2/5 ◂" in c.screen()
        await c.pilot.press("h", "right", "l", "enter")
        await c.until(lambda: not isinstance(c.app.screen, CompareScreen))
        assert last(c).node == screen._answers[2].id
        await transcript(c, "equals_sign")  # any of a series is compared with all of it
        assert len((await comparing(c))._answers) == 4


async def test_a_key_writes_four(chat: Any) -> None:
    async with chat(FakeEngine(FOUR), size=(160, 30)) as c:
        await c.ask("Hi")
        await c.idle()
        await transcript(c, "R")
        assert len((await comparing(c))._answers) == 4


async def test_a_series_says_how_far_it_is_and_ends_when_stopped(chat: Any) -> None:
    engine = FakeEngine(STORY)
    async with chat(engine) as c:
        await c.ask("Hi")
        await c.idle()
        engine.gate.clear()
        await c.ask("/regen 3")
        await c.until(lambda: c.app.session.generating)
        assert "answer 1 of 3, then all are compared; esc stops" in c.line("footer")
        await c.pilot.press("escape")
        await c.idle()
        engine.gate.set()
        assert last(c).answer.node.state is NodeState.STOPPED
        assert "of 3" not in c.line("footer")
        assert len(answers(c)) == 2
        await c.ask("And?")
        await c.idle()
        assert len(answers(c)) == 3  # and no comparison
        assert len(c.app.screen_stack) == 1


async def test_a_series_does_not_open_over_what_is_written(chat: Any) -> None:
    engine = FakeEngine(FOUR)
    async with chat(engine) as c:
        await c.ask("Hi")
        await c.idle()
        engine.gate.clear()
        await c.ask("/regen 2")
        await c.pilot.press("x")
        engine.gate.set()
        await c.idle()
        assert len(answers(c)) == 3
        assert "2 answers are complete: /compare shows them side by side" in c.line("footer")
        assert c.app.composer.text == "x"
        c.app.composer.set_text("")
        for words in ("0", "5", "two"):
            await c.ask(f"/regen {words}")
            assert "/regen [1-4]" in c.line("footer")


async def test_a_series_gives_way_to_what_comes_between(chat: Any) -> None:
    engine = FakeEngine(FOUR)
    async with chat(engine, look=ChatOptions(keys={"answer.several": ("Z",)})) as c:
        await c.ask("Hi")
        await c.idle()
        engine.gate.clear()
        await transcript_keys(c, "Z")
        await c.until(lambda: c.app.session.generating)
        await c.pilot.press("f5")  # stops, then opens
        engine.gate.set()
        await c.until(lambda: isinstance(c.app.screen, BranchesScreen))
        await c.idle()
        assert len(answers(c)) == 2


async def transcript_keys(c: Any, *keys: str) -> None:
    await read(c)
    await c.pilot.press(*keys)


@pytest.mark.slow
async def test_up_to_four_marked_answers(chat: Any) -> None:
    async with chat(FakeEngine(FOUR), size=(160, 45)) as c:
        await c.ask("Hi")
        await c.idle()
        for _ in range(4):
            await transcript(c, "r")
        await c.pilot.press("f5")
        await c.until(lambda: isinstance(c.app.screen, BranchesScreen))
        for marks in range(1, 6):
            await c.pilot.press("space", "up")
            assert f"{min(marks, 4)} marked" in c.screen()
        assert c.screen().count("◆") == 4
        await c.pilot.press("equals_sign")
        screen = await comparing(c)
        assert screen._answers == c.app.session.tree.children(last(c).asked)[:4]
        await c.pilot.press("1")
        await c.until(lambda: len(c.app.screen_stack) == 1)
        assert last(c).node == screen._answers[0].id


async def test_long_beginnings_are_cut_so_that_the_fork_is_in_sight(chat: Any) -> None:
    async with chat(FakeEngine(STORY * 5, context=10**5), size=(80, 24)) as c:
        await c.ask("Tell")
        await c.idle()
        c.app.answers.fork(last(c).node, 300, 77)
        await c.pilot.pause(0.1)
        await c.idle()
        await transcript(c, "equals_sign")
        await comparing(c)
        assert c.screen().count("── token 301 ──") == 2
        assert "300 tokens shared" in c.screen()


def node(bits: float, model: str = "m", typed: bool = False) -> Node:
    made = branched().path()[2]
    made.model = model
    step = made.steps[0]
    made.steps = [step._replace(logprob=float("nan") if typed else -bits * 0.6931471805599453)]
    return made


def test_what_a_comparison_says() -> None:
    two = describe_comparison([node(3), node(1)], [4, 5])
    assert two == "1 token shared · 0 and 0 follow · likeliest: 5 (1.00 bits/token), then 4 (3.00)"
    assert describe_comparison([node(3), node(1), node(2)], [1, 2, 3]).endswith(
        "0, 0 and 0 follow · likeliest: 2 (1.00 bits/token), then 3 (2.00), 1 (3.00)"
    )
    other = describe_comparison([node(3), node(1, "other")], [1, 2])
    assert other.endswith("by different models: their bits cannot be compared")
    typed = describe_comparison([node(3), node(1, typed=True)], [1, 2])
    assert typed.endswith("tokens without a probability count 0 bits")


def test_how_an_answer_was_drawn() -> None:
    assert presets.describe_sampling(Sampling(seed=4)) == "seed 4 · balanced"
    assert (
        presets.describe_sampling(Sampling(temperature=1, min_p=0.1)) == "T 1 top_k 40 top_p 0.95 min_p 0.1"
    )


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (60, 20), (160, 45)])
async def test_what_it_looks_like(chat: Any, size: tuple[int, int]) -> None:
    async with chat(FakeEngine(FOUR), size=size, seed=7) as c:
        await c.ask("Hi")
        await c.idle()
        await c.ask("/regen 3")
        await comparing(c)
        compare(f"compare-three-{size[0]}", shown(c, c.app.screen.query_one(".sheet")))
