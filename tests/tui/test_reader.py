"""Reading: two views, the token cursor, tints, the inspector and find, driven as a user would."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import STORY, FakeEngine, fake_step, pieces
from reading import answered, inspected, telling_step
from textual import events

from ropechat.tui.render import cursor as moves
from ropechat.tui.render.find import pattern

MARKDOWN = (
    "# A title\n\nSome *text* with `code`.\n\n- first item\n- second item\n\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\ndef f(x):\n    return x\n```\n\nThe **last** words.\n"
)


def under(c: Any) -> str:
    """The text of the token under the cursor."""
    token = c.app.transcript.cursor
    start, end = token.span
    return str(token.block.text[start:end])


def row_of_cursor(c: Any) -> int:
    view = c.app.transcript
    place = moves.place_of(view.page, view.cursor)
    return int(view.page.y_of(place)) - round(view.scroll_y)


# --- views ---


async def test_prose_is_markdown_and_tokens_are_the_source(chat: Any) -> None:
    async with chat(FakeEngine(MARKDOWN), size=(80, 40)) as c:
        await answered(c)
        assert "# A title" in c.screen()
        assert "| a | b |" in c.screen()
        await c.pilot.press("f3")
        assert "prose" in c.line("footer")
        screen = c.screen()
        assert "# A title" not in screen
        assert "A title" in screen
        assert "• first item" in screen
        assert "a │ b" in screen
        assert "Some text with code." in screen
        await c.pilot.press("f3")
        assert "**last**" in c.screen()


async def test_prose_while_it_is_written_is_prose_at_the_end(chat: Any) -> None:
    engine = FakeEngine(MARKDOWN * 3, context=10**5, rate=300)
    async with chat(engine) as c:
        await c.pilot.press("f3")
        await c.ask("Tell")
        await c.idle()
        streamed = c.screen()
        await c.pilot.press("f3", "f3")
        await c.until(lambda: "prose" in c.line("footer"))
        assert c.screen().split("\n")[2:18] == streamed.split("\n")[2:18]


@pytest.mark.parametrize("back", [3, 40, 90])
async def test_f3_keeps_the_token_in_its_row(chat: Any, back: int) -> None:
    async with chat(FakeEngine(MARKDOWN * 8, context=10**5)) as c:
        view = await answered(c)
        for _ in range(back):
            await c.pilot.press("b")
        token, row = view.cursor, row_of_cursor(c)
        view.leave_end()
        for _ in range(2):
            await c.pilot.press("f3")
            assert view.cursor == token
            assert row_of_cursor(c) == row


async def test_f3_at_the_end_stays_at_the_end(chat: Any) -> None:
    async with chat(FakeEngine(MARKDOWN * 8, context=10**5)) as c:
        view = await answered(c)
        for _ in range(3):
            await c.pilot.press("f3")
            assert view.follow
            assert round(view.scroll_y) == view.max_scroll_y


# --- follow ---


async def test_new_lines_are_told_and_g_goes_there(chat: Any) -> None:
    engine = FakeEngine(STORY * 6, context=10**5, rate=400)
    async with chat(engine) as c:
        await c.ask("Tell")
        view = c.app.transcript
        await c.until(lambda: view.max_scroll_y > 8)
        engine.gate.clear()
        await c.pilot.press("pageup")
        engine.gate.set()
        await c.idle()
        assert "new lines · G" in c.screen()
        await c.pilot.press("escape", "G")
        assert view.follow
        assert "new line" not in c.screen()
        await c.pilot.press("g")
        assert round(view.scroll_y) == 0
        assert not view.follow


async def test_a_click_on_the_mark_of_new_lines_goes_there(chat: Any) -> None:
    engine = FakeEngine(STORY * 6, context=10**5, rate=400)
    async with chat(engine) as c:
        await c.ask("Tell")
        view = c.app.transcript
        await c.until(lambda: view.max_scroll_y > 8)
        await c.pilot.press("pageup")
        await c.idle()
        y = next(number for number, row in enumerate(c.screen().split("\n")) if "new lines" in row)
        await c.pilot.click(offset=(70, y))
        assert view.follow


async def test_the_end_is_exact_once_the_answer_is_complete(chat: Any) -> None:
    async with chat(FakeEngine(STORY * 20, context=10**5, rate=2000)) as c:
        await c.ask("Tell")
        view = c.app.transcript
        await c.until(lambda: view.max_scroll_y > 30)
        assert view.virtual_size.height >= view.page.rows  # room for what comes next
        await c.idle()
        assert view.virtual_size.height == view.page.rows
        assert round(view.scroll_y) == view.max_scroll_y


# --- cursor ---


async def test_h_l_go_from_token_to_token(chat: Any) -> None:
    async with chat(FakeEngine("One two three.\nFour")) as c:
        view = await answered(c)
        await c.pilot.press("h")  # begins at the last token in sight
        assert under(c) == "\nFour"
        await c.pilot.press("h", "h")
        assert view.cursor_token() == (c.app.session.last.node, 2)
        assert (under(c), view.cursor.index) == (" thre", 2)
        await c.pilot.press("h", "h", "h", "h")
        assert (under(c), view.cursor.index) == ("One", 0)
        await c.pilot.press("l", "right")
        assert view.cursor.index == 2
        await c.pilot.press("escape")
        assert view.cursor is None
        assert view.cursor_token() is None


async def test_w_b_go_by_word_and_j_k_by_row(chat: Any) -> None:
    async with chat(FakeEngine(STORY), size=(60, 24)) as c:
        view = await answered(c)
        await c.pilot.press("b", "b")
        assert under(c).strip()
        assert under(c)[0] in " \n"
        before, row = view.cursor, row_of_cursor(c)
        await c.pilot.press("k")
        assert row_of_cursor(c) == row - 1
        await c.pilot.press("j", "w", "b")
        assert abs(view.cursor.index - before.index) < 4
        assert row_of_cursor(c) == row


async def test_without_a_cursor_j_k_scroll(chat: Any) -> None:
    async with chat(FakeEngine(STORY * 5, context=10**5)) as c:
        view = await answered(c)
        end = round(view.scroll_y)
        await c.pilot.press("k", "k")
        assert round(view.scroll_y) == end - 2
        assert view.cursor is None
        await c.pilot.press("j", "j")
        assert view.follow


async def test_n_goes_to_surprises(chat: Any) -> None:
    async with chat(FakeEngine(STORY * 3, context=10**5)) as c:
        view = await answered(c)
        await c.pilot.press("N")
        for _ in range(5):
            assert view.cursor.block.levels("surprisal")[view.cursor.index] >= 2
            await c.pilot.press("N")
        at = view.cursor.index
        await c.pilot.press("n")
        assert view.cursor.index > at


async def test_a_line_break_under_the_cursor_is_seen(chat: Any) -> None:
    async with chat(FakeEngine("One\n")) as c:
        await answered(c)
        await c.pilot.press("h", "l")
        assert "One⏎" in c.screen()


async def test_marks_of_markdown_under_the_cursor_are_seen_in_prose(chat: Any) -> None:
    async with chat(FakeEngine("ok")) as c:
        view = await answered(c)
        block = view.blocks[-1]
        parts = enumerate((" ", "**", "bold", "**", " end"), 9)
        view.feed(block, [fake_step(index, text.encode(), text) for index, text in parts])
        await c.pilot.press("f3")
        view.move_to(moves.TokenPlace(block, 2))
        await c.pilot.pause(0.1)
        assert "ok bold end**" in c.screen()


@pytest.mark.parametrize("view_key", [(), ("f3",)])
async def test_a_click_finds_the_token_after_wide_text(chat: Any, view_key: tuple[str, ...]) -> None:
    async with chat(FakeEngine("你好 👩\u200d👩\u200d👧 here and there")) as c:
        await answered(c)
        await c.pilot.press(*view_key)

        def y() -> int:
            return next(number for number, row in enumerate(c.screen().split("\n")) if "here and" in row)

        await c.pilot.click(offset=(2 + 4 + 1 + 2 + 2, y()))  # gutter, 你好, blank, family, into "here"
        assert under(c) == " here"
        assert c.app.inspector.display
        await c.pilot.pause(0.2)
        await c.pilot.click(offset=(2 + 2, y()))
        assert "好" in under(c) or "你" in under(c)


async def test_dragging_selects_and_sets_no_cursor(chat: Any) -> None:
    async with chat(FakeEngine(STORY)) as c:
        await c.ask("Tell")
        await c.idle()
        await c.pilot.mouse_down(offset=(4, 6))
        await c.pilot.hover(offset=(20, 7))
        await c.pilot.mouse_up(offset=(20, 7))
        assert c.app.transcript.cursor is None
        assert c.app.screen.get_selected_text()


async def test_the_cursor_goes_with_its_block(chat: Any) -> None:
    async with chat(FakeEngine(STORY)) as c:
        view = await answered(c)
        await c.pilot.press("h")
        view.clear()
        await c.pilot.pause(0.1)
        assert view.cursor is None


# --- inspector ---


@pytest.mark.parametrize("size", [(80, 24), (160, 45)])
async def test_the_inspector_tells_why(chat: Any, size: tuple[int, int]) -> None:
    async with chat(FakeEngine("ok"), size=size, temperature=1.0, top_k=3, top_p=0.8) as c:
        inspector = await inspected(c)
        text = inspector.text
        assert "token 2 of 2 ·dangle" in text
        assert "id 8 · bytes 20 64 61 6e 67 6c 65" in text
        assert "rank 2" in text
        assert "2.2 bits" in text
        assert "H 1.6 bits" in text
        assert "raw 0.223" in text
        assert "sampled 0.269" in text  # e^-1.5 / (e^-0.5 + e^-1.5)
        assert "cut by top-p" in text
        assert "cut by top-k" in text
        assert "2 survived" in text
        assert "·dangle" in c.screen()
        rail = inspector.region.x > 0
        assert rail is (size[0] >= 120)
        lines = text.split("\n")
        assert sum("▸" in line for line in lines) == 1
        assert any("█" in line for line in lines)


async def test_j_k_choose_and_enter_and_p_act_on_the_choice(chat: Any) -> None:
    asked: list[tuple[Any, ...]] = []

    def preview(*args: Any) -> bool:
        *what, show = args
        asked.append(("preview", *what))
        show(type("Found", (), {"steps": [telling_step(0, b" x", 7), fake_step(1, b" and on", " and on")]}))
        return True

    async with chat(FakeEngine("ok"), size=(100, 40)) as c:
        inspector = await inspected(c)
        c.app.fork = c.app.preview = None  # an app that offers neither
        await c.pilot.press("p", "enter")
        assert not asked
        c.app.fork = lambda *args: asked.append(("fork", *args))
        c.app.preview = preview
        await c.pilot.press("k")
        assert inspector.chosen.id == 7
        await c.pilot.press("p")
        assert "and on" in inspector.text
        await c.pilot.press("enter")
        node, index = c.app.transcript.cursor_token()
        assert asked == [("preview", node, index, 7), ("fork", node, index, 7)]
        await c.pilot.press("j", "j", "j", "j", "j", "j")
        assert inspector.chosen.id == 3  # the last
        assert "fork here" in c.line("footer")


async def test_bytes_that_are_no_text_and_blanks_are_visible(chat: Any) -> None:
    async with chat(FakeEngine("ok")) as c:
        inspector = await inspected(c, b"\xf0\x9f\n\x1b ")
        assert "⟨F0⟩⟨9F⟩⏎␛·" in inspector.text


async def test_f4_opens_and_escape_closes_step_by_step(chat: Any) -> None:
    async with chat(FakeEngine(STORY)) as c:
        await c.ask("Tell")
        await c.idle()
        await c.pilot.press("f4")
        assert c.app.inspector.display
        assert c.app.transcript.cursor is not None
        assert c.app.transcript.has_focus
        assert 0 <= row_of_cursor(c) < c.app.transcript.size.height
        await c.pilot.press("escape")
        assert not c.app.inspector.display
        await c.pilot.press("escape")
        assert c.app.transcript.cursor is None
        await c.pilot.press("escape")
        assert c.app.composer.has_focus


async def test_an_empty_chat_has_nothing_to_inspect(chat: Any) -> None:
    async with chat(FakeEngine()) as c:
        await c.pilot.press("f4")
        await c.pilot.pause(0.1)
        assert "No token is selected" in c.screen()
        await c.pilot.press("f4", "ctrl+f", "x", "enter", "n", "f3", "escape", "escape")


async def test_the_rail_shows_the_newest_token_while_it_is_written(chat: Any) -> None:
    engine = FakeEngine(STORY * 5, context=10**5, rate=60)
    async with chat(engine, size=(130, 40)) as c:
        c.app.open_inspector()
        await c.ask("Tell")
        await c.until(lambda: "token" in c.app.inspector.text and " of " in c.app.inspector.text)
        first = c.app.inspector.text
        await c.until(lambda: c.app.inspector.text != first)
        await c.pilot.press("escape")
        await c.idle()


# --- find ---


def test_patterns() -> None:
    assert pattern("  ") is None
    cases = [("word", "a **wo*rd*** b"), ("two words", "two\n  words"), ("a.b", "xa.b"), ("ROPE", "ROPE")]
    assert all(pattern(wanted).search(text) for wanted, text in cases)  # type: ignore[union-attr]
    assert not pattern("ROPE").search("rope")  # type: ignore[union-attr]
    assert pattern("rope").search("RoPE")  # type: ignore[union-attr]
    assert not pattern("a.b").search("axb")  # type: ignore[union-attr]


async def test_find_marks_counts_and_goes_round(chat: Any) -> None:
    async with chat(FakeEngine(STORY * 4, context=10**5)) as c:
        view = await answered(c)
        await c.pilot.press("slash", *"lily")
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
        assert not c.app.finding
        assert view.has_focus


async def test_find_in_prose_goes_over_marks(chat: Any) -> None:
    async with chat(FakeEngine("A **bold** word and `code`.")) as c:
        await c.ask("Tell")
        await c.idle()
        await c.pilot.press("f3", "ctrl+f", *"bold word")
        assert c.app.transcript.finder.count == 1
        await c.pilot.press(*"xyz")
        assert c.app.transcript.finder.count == 0
        assert "none" in c.screen()


async def test_find_sees_what_comes(chat: Any) -> None:
    engine = FakeEngine(STORY * 3, context=10**5, rate=300)
    async with chat(engine) as c:
        c.app.transcript.find("acorn")
        await c.ask("Tell")
        await c.idle()
        assert c.app.transcript.finder.count == 3


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
        await c.pilot.press("f3", "g")
        assert "message 0 " in c.screen()
        for _ in range(30):
            await c.pilot.press("space")
        rows = [row for row in c.screen().split("\n") if "message" in row]
        await c.pilot.press("pageup", "space")
        assert [row for row in c.screen().split("\n") if "message" in row] == rows
        assert laid_out() < 200
        await c.pilot.press("G")
        assert view.follow
        assert "acorn caps" in c.screen()


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
            await c.pilot.press("k")
            after = c.screen().split("\n")[2:-8]
            assert after[1:-1] == before[:-2]


async def test_the_wheel_over_the_transcript_keeps_the_cursor(chat: Any) -> None:
    async with chat(FakeEngine(STORY * 5, context=10**5)) as c:
        view = await answered(c)
        await c.pilot.press("h")
        token = view.cursor
        view.post_message(events.MouseScrollUp(view, 5, 5, 0, 1, 0, False, False, False))
        await c.pilot.pause(0.5)
        assert view.cursor == token
        assert len(token.block.steps) == len(pieces(STORY * 5))
