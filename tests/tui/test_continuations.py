"""What could follow a token: the tree over the chat, its keys, and the answer that goes on from a path."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from branches import answers, at_token, last
from fakes import STOP, FakeEngine, pieces

from ropechat.engine.engine import Engine
from ropechat.errors import CancelledError
from ropechat.trace import TokenDistribution
from ropechat.tui.render.cursor import TokenPlace
from ropechat.tui.screens.continuations import ContinuationsScreen
from ropechat.util.width import cell_width

SCRIPT = "One two three four five."


class TreeEngine(FakeEngine):
    """Its script is always the likeliest continuation."""

    def next_distributions(
        self, prompts: Sequence[Sequence[int]], *, top_k: int = 20, window: int = 16
    ) -> Iterator[TokenDistribution]:
        """The token of the script that follows with 60%, a word of its own with 30%; the gate holds each."""
        self._cancelled.clear()
        for ids in prompts:
            self.rows += 1
            if self._wait(0.0):
                raise CancelledError("cancelled")
            end = len(self._script)
            follows = STOP if ids[-1] + 1 == end else ids[-1] + 1 if ids[-1] < end else 5000 + ord("!")
            top = ((follows, math.log(0.6)), (1000 + ids[-1] % 1000, math.log(0.3)))
            yield TokenDistribution(len(ids) - 1, top[:top_k], 10.0, 0.9, 0.9)


async def opened(c: Any, index: int) -> ContinuationsScreen:
    """The tree of a token of the newest answer, as soon as it is there."""
    at_token(c, index)
    await c.pilot.press("F")
    await c.until(lambda: isinstance(c.app.screen, ContinuationsScreen) and " else" in screen(c))
    return c.app.screen  # type: ignore[no-any-return]


def screen(c: Any) -> str:
    return str(c.screen())


@pytest.mark.parametrize("size", [(80, 24), (160, 45), (50, 14)])
async def test_paths_are_opened_and_closed(chat: Any, size: tuple[int, int]) -> None:
    async with chat(TreeEngine(SCRIPT), size=size) as c:
        await c.ask("Count")
        await c.idle()
        await opened(c, 1)
        text = screen(c)
        assert "60.0%" in text
        assert "▸ ·two  ◂ three" in text  # closed, with its likeliest continuation
        assert "others" in text
        assert max(map(cell_width, text.splitlines())) <= size[0]
        await c.pilot.press("right")
        text = screen(c)
        assert "▾ ·two" in text
        assert "36.0%" in text
        await c.pilot.press("right")  # to the first one in it
        assert "36.0% · 2 tokens" in screen(c)
        await c.pilot.press("left", "left")
        assert "▸ ·two" in screen(c)
        await c.pilot.press("escape")
        await c.until(lambda: not isinstance(c.app.screen, ContinuationsScreen))


@pytest.mark.slow
async def test_closing_under_the_help(chat: Any) -> None:
    """A new model closes the tree, and the help of the tree with it; a key that comes late does nothing."""
    async with chat(TreeEngine([SCRIPT, SCRIPT])) as c:
        await c.ask("Count")
        await c.idle()
        for close in (lambda tree: tree.dismiss(None), lambda tree: tree.action_take()):
            tree = await opened(c, 1)
            await c.pilot.press("f1")
            await c.until(lambda tree=tree: c.app.screen is not tree)
            close(tree)
            assert not c.app.ui.covered
            close(tree)
            await c.pilot.pause(0.7)  # until the widgets are gone
            assert c.app.crash is None
        assert len(answers(c)) == 2  # the path that was taken under the help


async def test_a_path_becomes_an_answer_that_goes_on(chat: Any) -> None:
    engine = TreeEngine([SCRIPT, SCRIPT])
    async with chat(engine) as c:
        await c.ask("Count")
        await c.idle()
        await opened(c, 1)
        await c.pilot.press("right", "right", "down")  # two, then a word of its own
        await c.pilot.press("enter")
        await c.idle()
        node = c.app.session.tree[last(c).node]
        ids = [step.id for step in node.steps]
        assert ids[:2] == [0, 1]
        assert ids[2] == 1001
        assert engine.prefixes[-1] == ids[:3]
        assert node.text.startswith("One two word1001")
        assert node.text.endswith(" five.")  # the model went on
        assert node.origin is not None
        assert (node.origin.index, node.origin.kind) == (1, "fork")
        assert node.prefix_length == 3
        assert node.scored == len(node.steps)  # the tokens of the path have their probabilities
        assert c.app.transcript.cursor_token() == (node.id, 1)
        assert len(answers(c)) == 2


async def test_the_end_of_a_text_is_a_path_too(chat: Any) -> None:
    engine = TreeEngine(SCRIPT)
    async with chat(engine) as c:
        await c.ask("Count")
        await c.idle()
        count = len(pieces(SCRIPT))
        await opened(c, count - 1)
        await c.pilot.press("right", "right")
        assert "∎" in screen(c)
        await c.pilot.press("enter")
        await c.idle()
        node = c.app.session.tree[last(c).node]
        assert (len(node.steps), node.text) == (count + 1, SCRIPT)
        assert (node.steps[-1].finish_reason, node.steps[-1].text) == ("stop", "")
        assert len(engine.asked) == 1  # the model was not asked


async def test_a_dropped_path_counts_as_another_and_comes_back(chat: Any) -> None:
    async with chat(TreeEngine(SCRIPT)) as c:
        await c.ask("Count")
        await c.idle()
        await opened(c, 1)
        await c.pilot.press("x")
        text = screen(c)
        assert "▸ ·two" not in text
        assert "70.0% ███████" in text  # 60% and the 10% of the rest
        assert "30.0% · 1 token" in text  # the next one is chosen
        await c.pilot.press("u")
        assert "▸ ·two" in screen(c)
        await c.pilot.press("u")
        assert "no path was dropped" in screen(c)


async def test_more_computes_only_what_is_new(chat: Any) -> None:
    engine = TreeEngine(SCRIPT * 20)
    async with chat(engine) as c:
        await c.ask("Count")
        await c.idle()
        await opened(c, 1)
        assert "40 tokens" in screen(c)
        before = engine.rows
        await c.pilot.press("m")
        await c.until(lambda: "80 tokens" in screen(c))
        assert engine.rows - before < 80


async def test_it_waits_for_an_answer_that_streams_and_is_stopped(chat: Any) -> None:
    engine = TreeEngine([SCRIPT * 5, SCRIPT])
    async with chat(engine) as c:
        await c.ask("Count")
        await c.until(lambda: not c.app.session.generating)
        engine.gate.clear()
        await c.ask("Again")
        await c.until(lambda: c.app.session.generating and c.app.session.last.answer.started)
        block = next(one for one in c.app.transcript.blocks if getattr(one, "steps", ()))
        c.app.transcript.move_to(TokenPlace(block, 2))
        c.app.transcript.focus()
        await c.pilot.press("F")
        await c.until(lambda: "waits for the model" in screen(c))
        engine.gate.set()
        await c.until(lambda: " else" in screen(c))
        assert answers(c)[-1] == SCRIPT  # nothing disturbed it
        engine.gate.clear()
        await c.pilot.press("m")
        await c.until(lambda: "of 80 tokens" in screen(c))
        await c.pilot.press("escape")
        await c.until(lambda: "esc stops" not in screen(c))
        assert isinstance(c.app.screen, ContinuationsScreen)
        assert engine.cancels
        engine.gate.set()
        await c.pilot.press("m")  # goes on where it was stopped
        await c.until(lambda: "80 tokens" in screen(c))


async def test_without_a_cursor_it_is_what_follows_the_answer(chat: Any) -> None:
    async with chat(TreeEngine(SCRIPT)) as c:
        await c.ask("/continuations")
        assert "put the cursor on a token" in c.line("footer")
        await c.ask("Count")
        await c.idle()
        await c.ask("/continuations")
        await c.until(lambda: isinstance(c.app.screen, ContinuationsScreen) and " else" in screen(c))
        assert f"{pieces(SCRIPT)[-2].decode()}" in screen(c)
        c.app.session.info = None
        await c.pilot.press("escape")
        await c.ask("/continuations")
        assert "no model is loaded yet" in c.line("footer")


@pytest.mark.slow
async def test_the_tree_of_a_real_model_is_that_of_the_command(chat: Any) -> None:
    engine = Engine.load("builtin", threads=1)
    async with chat(engine, temperature=0.0, max_tokens=8) as c:
        await c.ask("Hi")
        await c.idle()
        node = c.app.session.tree[last(c).node]
        sheet = await opened(c, 2)
        assert sheet._tree is not None
        tree = sheet._tree
        assert abs(tree.mass + tree.remainder - 1) < 1e-9
        first = tree.nodes[1]
        assert (first.id, first.logprob) == (node.steps[2].id, node.steps[2].logprob)  # greedy, to the bit
        await c.pilot.press("right", "right", "enter")
        await c.idle()
        made = c.app.session.tree[last(c).node]
        assert made.id != node.id
        assert [step.id for step in made.steps[:4]] == [step.id for step in node.steps[:4]]
        assert made.text.startswith("".join(step.text for step in node.steps[:4]))
