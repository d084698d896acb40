"""A fork: what of the screen stays, where the token cursor goes, that following respects it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from branches import last, transcript
from fakes import STORY, FakeEngine
from reading import row_of_cursor

from ropechat.tui.features import frames
from ropechat.tui.render import cursor as moves
from ropechat.tui.render.cursor import TokenPlace


async def forked(c: Any, index: int = 3, token: int = 77) -> str:
    """Fork the newest answer from the inspector's side; the new answer's node."""
    before = last(c).node
    c.app.answers.fork(before, index, token)
    await c.until(lambda: last(c).node != before and bool(last(c).answer.node.steps))
    return str(last(c).node)


async def test_the_cursor_goes_to_the_forked_token_and_the_inspector_explains_it(chat: Any) -> None:
    async with chat(FakeEngine(STORY), size=(120, 40)) as c:
        await c.ask("Tell")
        await c.idle()
        await transcript(c, "h", "enter")
        node, index = c.app.transcript.cursor_token()
        await c.pilot.press("j", "enter")
        await c.until(lambda: last(c).node != node)
        await c.idle()
        assert c.app.transcript.cursor_token() == (last(c).node, index)
        assert c.app.inspector.token.index == index
        count = len(c.app.session.tree[last(c).node].steps)
        assert f"token {index + 1} of {count}" in c.app.inspector.text
        assert c.app.transcript.choosing
        await c.pilot.press("j", "enter")  # and on to another one, from there
        await c.until(lambda: len(c.app.session.tree) == 4)
        await c.idle()
        assert c.app.transcript.cursor_token() == (last(c).node, index)


@pytest.mark.usefixtures("every_frame")
async def test_rows_that_both_answers_begin_with_are_not_drawn_again(
    chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine([STORY * 6, STORY * 6], context=10**5)
    async with chat(engine) as c:
        await c.ask("Tell")
        await c.idle()
        view, drawn = c.app.transcript, []
        index = len(last(c).answer.node.steps) - 40
        await transcript(c, "h")
        before = [c.strips()[y].text for y in range(24)]
        place = moves.place_of(view.page, TokenPlace(view.blocks[-1], index))
        row, top = view.page.y_of(place), round(view.scroll_y)
        assert row > top + 4  # there is something above it to be seen
        draw = view._draw
        monkeypatch.setattr(view, "_draw", lambda y, span: (drawn.append(y), draw(y, span))[1])
        engine.gate.clear()
        c.app.answers.fork(last(c).node, index, 77)
        await c.until(lambda: view.cursor_token() == (last(c).node, index))
        engine.gate.set()
        await c.idle()
        assert drawn
        assert min(drawn) >= row - 1
        assert round(view.scroll_y) == top
        edge = view.region.y + row - 1 - top
        assert [c.strips()[y].text for y in range(view.region.y, edge)] == before[view.region.y : edge]


@pytest.mark.slow
async def test_following_goes_on_until_the_cursor_would_leave(chat: Any) -> None:
    engine = FakeEngine(STORY * 6, context=10**5)
    async with chat(engine) as c:
        await c.ask("Tell")
        await c.idle()
        engine.rate = 600
        node = await forked(c)
        view = c.app.transcript
        assert view.cursor_token() == (node, 3)
        assert view.follow
        await c.until(lambda: not view.follow)
        await c.idle()
        height = view.scrollable_content_region.height
        assert 0 <= row_of_cursor(c) < height
        assert "new lines" in c.screen()
        await c.pilot.press("f4", "f4")  # to the transcript: the cursor stays
        assert view.has_focus
        await c.pilot.press("G")
        assert view.cursor_token() == (node, 3)
        assert view.scroll_y == view.max_scroll_y
        assert row_of_cursor(c) < 0


@pytest.mark.slow
async def test_who_goes_to_the_end_stays_there(chat: Any) -> None:
    engine = FakeEngine(STORY * 6, context=10**5)
    async with chat(engine) as c:
        await c.ask("Tell")
        await c.idle()
        engine.rate = 300
        await forked(c)
        view = c.app.transcript
        await c.until(lambda: not view.follow)
        view.focus()
        await c.pilot.press("end")
        assert view.follow
        rows = view.page.rows
        await c.until(lambda: view.page.rows > rows + 5)
        assert view.follow
        engine.rate = 0
        await c.idle()
        assert view.scroll_y == view.max_scroll_y


async def test_a_fork_that_is_taken_back_leaves_no_cursor_waiting(chat: Any) -> None:
    engine = FakeEngine("a b c d e f g h", context=14)
    async with chat(engine) as c:
        await c.ask("Hi")
        await c.idle()
        engine.context = 6
        c.app.answers.fork(last(c).node, 5, 9)
        await c.until(lambda: "Not sent" in c.screen())
        assert c.app.transcript._awaited is None
        assert c.app.transcript.cursor is None


@pytest.mark.slow
async def test_the_inspector_keeps_what_it_says_until_the_new_token_is_there(chat: Any) -> None:
    engine = FakeEngine(STORY)
    async with chat(engine, size=(120, 40)) as c:
        await c.ask("Tell")
        await c.idle()
        await transcript(c, "h", "enter")
        said, spell, held = c.app.inspector.text, engine.spell, threading.Event()
        engine.spell = lambda *given: (held.wait(60), spell(*given))[1]  # type: ignore[method-assign]
        await c.pilot.press("j", "enter")
        await c.until(lambda: c.app.transcript.awaits)
        await c.pilot.pause(0.1)
        assert c.app.inspector.text.split("\n")[0] == said.split("\n")[0]
        held.set()
        await c.until(lambda: not c.app.transcript.awaits)
        assert c.app.inspector.token.block is c.app.transcript.blocks[-1]
        await c.idle()


@pytest.mark.slow
async def test_a_first_token_does_not_wait_for_the_apps_queue(chat: Any) -> None:
    engine = FakeEngine("ok", rate=1)
    async with chat(engine) as c:
        engine.gate.clear()
        await c.ask("Hi")
        await c.until(lambda: last(c).answer.started)
        c.app.frames.ticker.pause()
        held = asyncio.Event()
        c.app.call_later(held.wait)
        await asyncio.sleep(0.05)
        engine.gate.set()
        for _ in range(1000):
            if last(c).answer.node.steps:
                break
            await asyncio.sleep(0.01)
        waited = not held.is_set()
        held.set()
        assert waited
        assert last(c).answer.node.steps


@pytest.mark.parametrize(("held", "waits"), [(60.0, True), (0.01, False)])
async def test_nothing_is_drawn_until_the_first_token_or_for_a_moment(
    held: float, waits: bool, chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "FIRST_TOKEN_HOLD_S", held)
    engine = FakeEngine(STORY)
    async with chat(engine) as c:
        await c.ask("Tell")
        await c.idle()
        engine.gate.clear()
        drawn: list[int] = []
        monkeypatch.setattr(c.app, "post_display_hook", lambda: drawn.append(1))
        c.app.answers.fork(last(c).node, 3, 77)
        if waits:
            await asyncio.sleep(0.2)
            assert not drawn
            engine.gate.set()
        await c.until(lambda: bool(drawn))
        engine.gate.set()
        await c.idle()


async def test_alternatives_of_a_chat_that_was_left_fork_nothing(chat: Any) -> None:
    """A stored chat may open while the list of alternatives is shown."""
    async with chat(FakeEngine(STORY)) as c:
        await c.ask("Tell")
        await c.idle()
        left = last(c).node
        await c.pilot.press("ctrl+n", "ctrl+n")  # asks first: nothing is stored
        await c.until(lambda: not c.app.session.turns)
        c.app.answers.fork(left, 3, 77)
        await c.pilot.pause()
        assert not c.app.session.turns
        assert "that answer is in another chat" in c.line("footer")
