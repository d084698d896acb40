"""ScoredText: two views, following, and the token cursor, driven as a user would."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import STORY, FakeEngine, fake_step
from reading import answered, feed, row_of_cursor
from rich.color import Color, ColorSystem
from rich.style import Style

from ropechat.tui.format.theme import DARK, LIGHT, for_content, tint_styles
from ropechat.tui.render import cursor as moves
from ropechat.tui.render.tint import NAMES

MARKDOWN = (
    "# A title\n\nSome *text* with `code`.\n\n- first item\n- second item\n\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\ndef f(x):\n    return x\n```\n\nThe **last** words.\n"
)


def under(c: Any) -> str:
    """The text of the token under the cursor."""
    token = c.app.transcript.cursor
    start, end = token.span
    return str(token.block.text[start:end])


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


@pytest.mark.slow
@pytest.mark.parametrize("back", [3, 40, 90])
async def test_f3_keeps_the_token_in_its_row(chat: Any, back: int) -> None:
    async with chat(FakeEngine(MARKDOWN * 8, context=10**5)) as c:
        view = await answered(c)
        for _ in range(back):
            await c.pilot.press("b" if view.cursor else "left")
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


@pytest.mark.slow
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
        assert "new lines · PgDn" in c.screen()
        await c.pilot.press("escape", "left", "G")
        assert view.follow
        assert "new line" not in c.screen()
        await c.pilot.press("g")
        assert round(view.scroll_y) == 0
        assert not view.follow


@pytest.mark.slow
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


@pytest.mark.slow
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
        await c.pilot.press("left")  # begins at the last token in sight
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
        await c.pilot.press("left", "b")
        assert under(c).strip()
        assert under(c)[0] in " \n"
        before, row = view.cursor, row_of_cursor(c)
        await c.pilot.press("k")
        assert row_of_cursor(c) == row - 1
        await c.pilot.press("j", "w", "b")
        assert abs(view.cursor.index - before.index) < 4
        assert row_of_cursor(c) == row


async def test_without_a_cursor_arrows_scroll(chat: Any) -> None:
    async with chat(FakeEngine(STORY * 5, context=10**5)) as c:
        view = await answered(c)
        end = round(view.scroll_y)
        await c.pilot.press("up", "up")
        assert round(view.scroll_y) == end - 2
        assert view.cursor is None
        await c.pilot.press("down", "down")
        assert view.follow


async def test_n_goes_to_surprises(chat: Any) -> None:
    async with chat(FakeEngine(STORY * 3, context=10**5)) as c:
        view = await answered(c)
        await c.pilot.press("left", "N")
        for _ in range(5):
            assert view.cursor.block.levels("surprisal")[view.cursor.index] >= 2
            await c.pilot.press("N")
        at = view.cursor.index
        await c.pilot.press("n")
        assert view.cursor.index > at


async def test_a_line_break_under_the_cursor_is_seen(chat: Any) -> None:
    async with chat(FakeEngine("One\n")) as c:
        await answered(c)
        await c.pilot.press("left", "l")
        assert "One⏎" in c.screen()


async def test_marks_of_markdown_under_the_cursor_are_seen_in_prose(chat: Any) -> None:
    async with chat(FakeEngine("ok")) as c:
        view = await answered(c)
        block = view.blocks[-1]
        parts = enumerate((" ", "**", "bold", "**", " end"), 9)
        feed(view, block, [fake_step(index, text.encode(), text) for index, text in parts])
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


async def test_copied_code_is_the_code(chat: Any) -> None:
    code = "def f(x):\n    return '" + "long " * 9 + "'"
    async with chat(FakeEngine(f"```python\n{code}\n```\n\nEnd."), size=(50, 24)) as c:
        await answered(c)
        await c.pilot.press("f3")
        c.app.transcript.text_select_all()
        assert code in c.app.screen.get_selected_text()


async def test_the_cursor_goes_with_its_block(chat: Any) -> None:
    async with chat(FakeEngine(STORY)) as c:
        view = await answered(c)
        await c.pilot.press("left")
        view.remove_from(0)
        await c.pilot.pause(0.1)
        assert view.cursor is None


# --- tints ---


async def test_tints_go_round(chat: Any) -> None:
    async with chat(FakeEngine(STORY)) as c:
        await c.ask("Tell")
        await c.idle()

        def backgrounds() -> set[Any]:
            return {s.style.bgcolor for strip in c.strips() for s in strip if s.style and s.style.bgcolor}

        await c.pilot.press("escape", "left")
        tinted = backgrounds()
        names = []
        for _ in NAMES:
            await c.pilot.press("T")
            await c.pilot.pause(0.1)
            names.append(c.app.transcript.tint)
            if names[-1] == "off":
                assert len(tinted) > len(backgrounds())
        assert sorted(names) == sorted(NAMES)
        assert backgrounds() == tinted


@pytest.mark.parametrize("dark", [True, False])
def test_tints_differ_with_256_colours(dark: bool) -> None:
    styles = [Style.parse(words) for words in tint_styles(dark, ansi=False)[1:]]
    backgrounds = {style.bgcolor.downgrade(ColorSystem.EIGHT_BIT).number for style in styles if style.bgcolor}
    plain = Color.parse(str((DARK if dark else LIGHT).background)).downgrade(ColorSystem.EIGHT_BIT).number
    assert len(backgrounds | {plain}) == 5


def test_tints_differ_with_16_colours_and_with_none() -> None:
    for words in (tint_styles(True, ansi=True), tint_styles(True, ansi=True, colourless=True)):
        assert len(set(words)) == 5
    assert all(Style.parse(words).color is None for words in tint_styles(True, True, True))


def test_the_terminals_own_colours_are_the_same_in_both_libraries() -> None:
    from textual.style import Style as ContentStyle

    def shown(colour: Any) -> Any:
        """The colour as Rich would show it."""
        return None if colour is None else colour.rich_color.get_truecolor()

    given = (tint_styles(True, ansi=True), tint_styles(True, True, True), tint_styles(False, ansi=False))
    for words in (words for styles in given for words in styles):
        rich, content = Style.parse(words), ContentStyle.parse(for_content(words))
        assert bool(content.reverse) == bool(rich.reverse)
        assert shown(content.foreground) == (rich.color and rich.color.get_truecolor())
        assert shown(content.background) == (rich.bgcolor and rich.bgcolor.get_truecolor())
