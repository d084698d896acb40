"""Finding text, and long chats, of which only what is seen is laid out."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import STORY, FakeEngine, pieces
from reading import answered
from textual import events

from ropechat.tui.render.find import compile_pattern


def test_patterns() -> None:
    assert compile_pattern("  ") is None
    cases = [("word", "a **wo*rd*** b"), ("two words", "two\n  words"), ("a.b", "xa.b"), ("ROPE", "ROPE")]
    assert all(compile_pattern(wanted).search(text) for wanted, text in cases)  # type: ignore[union-attr]
    assert not compile_pattern("ROPE").search("rope")  # type: ignore[union-attr]
    assert compile_pattern("rope").search("RoPE")  # type: ignore[union-attr]
    assert not compile_pattern("a.b").search("axb")  # type: ignore[union-attr]


async def test_find_marks_counts_and_goes_round(chat: Any) -> None:
    async with chat(FakeEngine(STORY * 4, context=10**5)) as c:
        view = await answered(c)
        await c.pilot.press("ctrl+f", *"lily")
        assert view.finder.count == 16
        assert "16/16" in c.screen()
        await c.pilot.press("enter", "n")
        assert "1/16" in c.screen()
        assert round(view.scroll_y) < view.max_scroll_y
        await c.pilot.press("N")
        assert "16/16" in c.screen()
        reverse = [s.text for strip in c.strips() for s in strip if s.style and s.style.reverse]
        assert "Lily" in reverse
        await c.pilot.press("escape")
        assert not view.finder.active
        assert not c.app.find.active
        assert c.app.composer.has_focus


async def test_find_in_prose_goes_over_marks(chat: Any) -> None:
    async with chat(FakeEngine("A **bold** word and `code`.")) as c:
        await c.ask("Tell")
        await c.idle()
        await c.pilot.press("f3", "ctrl+f", *"bold word")
        assert c.app.transcript.finder.count == 1
        await c.pilot.press(*"xyz")
        assert c.app.transcript.finder.count == 0
        assert "none" in c.screen()


@pytest.mark.slow
async def test_find_sees_what_comes(chat: Any) -> None:
    engine = FakeEngine(STORY * 3, context=10**5, rate=300)
    async with chat(engine) as c:
        c.app.transcript.find("acorn")
        await c.ask("Tell")
        await c.idle()
        assert c.app.transcript.finder.count == 3


@pytest.mark.slow
async def test_a_thousand_messages_are_laid_out_only_where_they_are_seen(chat: Any) -> None:
    from ropechat.tui.render.blocks import AnswerBlock, Block

    async with chat(FakeEngine(STORY)) as c:
        view = c.app.transcript
        for number in range(500):
            for block in (Block("user", "you"), AnswerBlock("answer", "m")):
                block.say(f"message {number} " + STORY)
                view.add(block)
        await c.pilot.pause(0.1)

        def laid_out() -> int:
            return sum(block.laid_out for block in view.blocks)

        assert laid_out() < 200
        view.focus()
        await c.pilot.press("f3", "home")
        assert "message 0 " in c.screen()
        for _ in range(30):
            await c.pilot.press("pagedown")
        rows = [row for row in c.screen().split("\n") if "message" in row]
        await c.pilot.press("pageup", "pagedown")
        assert [row for row in c.screen().split("\n") if "message" in row] == rows
        assert laid_out() < 200
        await c.pilot.press("end")
        assert view.follow
        assert "acorn caps" in c.screen()


@pytest.mark.slow
async def test_scrolling_up_into_unseen_messages_goes_row_by_row(chat: Any) -> None:
    from ropechat.tui.render.blocks import Block

    async with chat(FakeEngine(STORY)) as c:
        view = c.app.transcript
        for number in range(60):
            block = Block("user", "you")
            block.say(f"message {number}\n" + "a word or two " * number)
            view.add(block)
        view.focus()
        await c.pilot.pause(0.1)
        for _ in range(80):
            before = c.screen().split("\n")[2:-8]
            await c.pilot.press("up")
            after = c.screen().split("\n")[2:-8]
            assert after[1:-1] == before[:-2]


async def test_the_wheel_over_the_transcript_keeps_the_cursor(chat: Any) -> None:
    async with chat(FakeEngine(STORY * 5, context=10**5)) as c:
        view = await answered(c)
        await c.pilot.press("left")
        token = view.cursor
        view.post_message(events.MouseScrollUp(view, 5, 5, 0, 1, 0, False, False, False))
        await c.pilot.pause(0.5)
        assert view.cursor == token
        assert len(token.block.steps) == len(pieces(STORY * 5))
