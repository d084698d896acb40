"""Step mode: the user takes the tokens of an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from branches import answers, last, told, transcript
from fakes import STOP, STORY, FakeEngine, pieces
from stores import done

from ropechat.conversation import NodeState
from ropechat.tui.screens.step import StepScreen

if TYPE_CHECKING:
    from ropechat.store.store import Store

SIZE = {"vocab_size": 300}


async def steps(c: Any) -> Any:
    """Wait for the candidates of the next token, or why there are none."""
    await c.until(lambda: isinstance(c.app.screen, StepScreen) and bool(c.app.screen.view.text))
    view = c.app.screen.view
    await c.until(lambda: (view.place is not None and bool(view.next_tokens)) or bool(view.note))
    return c.app.screen


async def press(c: Any, *keys: str) -> Any:
    """Press keys one after the other, each at a place that is known."""
    for key in keys:
        await c.pilot.press(key)
        await c.until(lambda: not c.app.inference.busy)
    return await steps(c)


def said(screen: Any) -> str:
    return "".join(step.text for step in screen.stepping.spot.steps)


async def test_take_take_back_and_leave(chat: Any, store: Store) -> None:
    async with chat(FakeEngine(facts=SIZE), store=store) as c:
        await c.ask("/step Tell me a story.")
        await steps(c)
        text = c.screen()
        assert "step · Tell me a story." in text
        assert "entropy" in text
        assert "50%" in text  # what would follow
        assert "esc back" in text
        screen = await press(c, "tab", "tab", "1", "down", "enter")
        words = [pieces(STORY)[id].decode() for id in (0, 1, 0, 1)]
        assert said(screen) == "".join(words)
        screen = await press(c, "backspace")
        assert said(screen) == "".join(words[:3])
        chosen = [step.id for step in screen.stepping.spot.steps]
        assert chosen == [0, 1, 0]
        await c.pilot.press("escape")
        await c.until(lambda: not c.app.ui.covered)
        node = c.app.session.tree[last(c).node]
        assert (node.text, node.state, node.prefix_length) == ("".join(words[:3]), NodeState.STOPPED, 3)
        assert node.text in c.screen()
        assert done(store.load(c.app.session.recorder.id)).tree[node.id].text == node.text
        await c.ask("/step")  # goes on where it was left
        screen = await steps(c)
        assert said(screen) == node.text
        await press(c, "2")
        await c.pilot.press("ctrl+g")
        await c.until(lambda: not c.app.ui.covered)
        await c.idle()
        assert answers(c)[1] == node.text + words[1]
        assert answers(c)[2].startswith(answers(c)[1])
        assert c.app.session.tree[last(c).node].state is NodeState.DONE


async def test_from_the_token_under_the_cursor(chat: Any) -> None:
    async with chat(FakeEngine(STORY, facts=SIZE)) as c:
        await c.ask("Tell")
        await c.idle()
        first = c.app.session.tree[last(c).node]
        await transcript(c, *["right"] * 4)
        index = c.app.transcript.cursor.index
        await c.pilot.press("s")
        screen = await steps(c)
        assert [step.id for step in screen.stepping.spot.steps] == list(range(index))
        await press(c, "9")
        await c.pilot.press("escape")
        await c.until(lambda: not c.app.ui.covered)
        fork = c.app.session.tree[last(c).node]
        assert (fork.origin.node, fork.origin.index, fork.origin.kind) == (first.id, index, "fork")
        assert [step.id for step in fork.steps] == [*range(index), 8]
        assert "‹ 2/2 ›" in c.screen()
        assert c.app.session.tree[first.id].text == STORY


async def test_a_search_takes_any_token(chat: Any) -> None:
    async with chat(FakeEngine(facts=SIZE)) as c:
        await c.ask("/step Tell")
        await steps(c)
        screen = await press(c, *"word19")  # digits too, once there is a text
        assert screen.view.found is not None
        assert [one.id for one in screen.view.found] == [190 + digit for digit in range(10)]
        assert "10 with this text" in c.screen()
        await press(c, "backspace", "backspace", *"nothing")
        assert "no token has this text" in c.screen()
        await c.pilot.press("enter")
        assert said(screen) == ""
        await press(c, "escape")
        await c.pilot.press(*"word197", "enter")  # before the search is done
        await c.until(lambda: bool(screen.stepping.spot.steps))
        assert said(screen) == " word197"


async def test_the_end_and_what_is_not_taken(chat: Any) -> None:
    engine = FakeEngine("Yes, of course.", facts=SIZE)
    engine.stop_ids = frozenset({STOP, 1})
    async with chat(engine) as c:
        assert "/step QUESTION" in await told(c, "/step")
        await c.ask("/step Well?")
        await steps(c)
        assert "take a token first" in (await press(c, "ctrl+g")).key_hints._said
        assert "nothing was taken yet" in (await press(c, "backspace")).key_hints._said
        await c.pilot.press("escape")
        await c.until(lambda: not c.app.ui.covered)
        assert c.app.composer.text == "Well?"
        assert c.app.session.empty
        c.app.composer.set_text("")
        await c.ask("/step Well?")
        await steps(c)
        screen = await press(c, "1", "2")
        assert "The answer ends here." in c.screen()
        await press(c, "1", "enter", "tab")
        assert [step.id for step in screen.stepping.spot.steps] == [0, 1]
        await c.pilot.press("ctrl+n", "ctrl+n")  # nothing waits for an answer
        await c.until(lambda: not c.app.session.turns)
        await c.pilot.press("backspace")
        await c.until(lambda: not c.app.ui.covered)


@pytest.mark.slow
async def test_with_a_real_model_in_a_small_screen(chat: Any) -> None:
    from ropechat.engine.engine import Engine

    async with chat(lambda: Engine.load("builtin", threads=1), temperature=0.7, top_p=0.9) as c:
        await c.ask("/step What is a token?")
        screen = await press(c, "1", "1", "2")
        text = c.screen()
        for words in ("token 4", "entropy", "possible", "temperature 0.7", "top_p 0.9", "sampled", "then"):
            assert words in text, words
        assert "tab as drawn  ^g go on  esc back" in text
        assert len(screen.view.shown) >= 9
        taken = said(screen)
        assert taken in text.replace("\n", " ")
        await c.pilot.press("ctrl+g")
        await c.until(lambda: not c.app.ui.covered)
        await c.idle()
        assert answers(c)[-1].startswith(taken)
        assert len(answers(c)[-1]) > len(taken)
