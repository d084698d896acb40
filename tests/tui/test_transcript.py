"""The transcript: follows without fighting the reader, keeps the place on resize, draws any text safely."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import STORY, FakeEngine
from payloads import BRACKETS, ESCAPES, FORBIDDEN
from reading import feed
from rich.cells import cell_len
from textual import events

from ropechat.tui.widgets import transcript

LONG = STORY * 6


def raw(c: Any) -> set[str]:
    """Characters that must never reach a terminal, as found on the screen."""
    found = {character for strip in c.strips() for character in strip.text if ord(character) in FORBIDDEN}
    return found | {"control" for strip in c.strips() for segment in strip if segment.control}


def widths(c: Any) -> set[int]:
    return {sum(cell_len(segment.text) for segment in strip) for strip in c.strips()}


@pytest.mark.slow
async def test_follows_while_writing(chat: Any) -> None:
    async with chat(FakeEngine(LONG, context=10**5)) as c:
        await c.ask("Tell")
        await c.idle()
        view = c.app.transcript
        assert view.max_scroll_y > 0
        assert round(view.scroll_y) == view.max_scroll_y
        assert view.follow


@pytest.mark.slow
async def test_a_reader_who_scrolls_up_is_left_alone(chat: Any) -> None:
    engine = FakeEngine(LONG, context=10**5, rate=400)
    async with chat(engine) as c:
        await c.ask("Tell")
        view = c.app.transcript
        await c.until(lambda: view.max_scroll_y > 8)
        engine.gate.clear()  # hold the answer
        await c.pilot.press("pageup")
        assert not view.follow
        place, end = round(view.scroll_y), view.max_scroll_y
        engine.gate.set()
        await c.until(lambda: view.max_scroll_y > end + 4)
        assert round(view.scroll_y) == place
        await c.idle()
        for _ in range(8):
            await c.pilot.press("pagedown")
        assert view.follow
        await c.ask("More")  # asking brings the end back
        await c.until(lambda: len(c.app.session.last.answer.node.steps) > 30)
        assert round(view.scroll_y) == view.max_scroll_y


@pytest.mark.slow
async def test_the_wheel_leaves_and_takes_up_following(chat: Any) -> None:
    engine = FakeEngine(LONG, context=10**5, rate=300)
    async with chat(engine) as c:
        await c.ask("Tell")
        view = c.app.transcript
        await c.until(lambda: view.max_scroll_y > 10)
        engine.gate.clear()

        def wheel(kind: Any) -> None:
            view.post_message(kind(view, 5, 5, 0, 1, 0, False, False, False))

        wheel(events.MouseScrollUp)
        wheel(events.MouseScrollUp)
        await c.until(lambda: not view.follow and round(view.scroll_y) < view.max_scroll_y)
        engine.gate.set()
        await c.idle()
        for _ in range(40):
            wheel(events.MouseScrollDown)
        await c.until(lambda: view.follow)
        assert round(view.scroll_y) == view.max_scroll_y


@pytest.mark.slow
async def test_resize_keeps_the_place_or_the_end(chat: Any) -> None:
    async with chat(FakeEngine(LONG, context=10**5)) as c:
        await c.ask("Tell")
        await c.idle()
        view = c.app.transcript
        for size in ((60, 20), (160, 45), (40, 12), (80, 24)):
            await c.pilot.resize_terminal(*size)
            await c.pilot.pause(0.1)
            assert round(view.scroll_y) == view.max_scroll_y
            assert widths(c) == {size[0]}
        view.leave_end()
        view.scroll_to(y=12, animate=False)
        await c.pilot.pause(0.1)
        place = view.page.place(12)
        for size in ((50, 24), (120, 24), (80, 24)):
            await c.pilot.resize_terminal(*size)
            await c.pilot.pause(0.1)
            assert round(view.scroll_y) == view.page.y_of(place)
        assert not view.follow


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (60, 20), (60, 19), (40, 13), (20, 6), (160, 45), (1, 1)])
async def test_any_size_draws(chat: Any, size: tuple[int, int]) -> None:
    async with chat(FakeEngine(STORY), size=size) as c:
        await c.ask("Tell me")
        await c.idle()
        assert widths(c) == {size[0]}
        assert c.app.query_one("#gauge").display is (size[1] >= 20)
        assert c.app.query_one("#footer").display is (size[1] >= 14)


@pytest.mark.slow
async def test_escapes_never_reach_the_screen(chat: Any) -> None:
    for begin in range(0, len(ESCAPES), 10):
        some = [text.replace("\n", " ") for text in ESCAPES[begin : begin + 10]]
        script = [f"({text})\n" for text in some]
        engine = FakeEngine("".join(script), name="\x1b[31mname\u202e", facts={"dtype": "\x1b]0;x\x07"})
        async with chat(engine, size=(80, 50)) as c:
            question = " ".join(some).encode("utf-8", "replace").decode()
            await c.ask(question)
            await c.idle()
            for keys in ((), ("f3",), ("escape", "f4"), ("j", "h", "h"), ("f3",)):
                await c.pilot.press(*keys)
                await c.pilot.pause(0.1)
                assert not raw(c)
                assert widths(c) == {80}
            c.app.composer.set_text(question)
            c.app.ui.hint(question)
            c.app.ui.run("view.find")
            c.app.find_bar.value = some[0]
            await c.pilot.pause(0.1)
            assert not raw(c)


@pytest.mark.slow
async def test_an_escape_split_over_tokens_does_not_pass(chat: Any) -> None:
    from fakes import fake_step

    async with chat(FakeEngine("ok")) as c:
        await c.ask("Hi")
        await c.idle()
        block = c.app.transcript.blocks[-1]
        for payload in ESCAPES:
            steps = [fake_step(0, b"", character) for character in payload + "\n"]
            feed(c.app.transcript, block, steps)
            await c.pilot.pause()
            assert not raw(c)


@pytest.mark.slow
async def test_brackets_are_only_text(chat: Any) -> None:
    assert len(BRACKETS) == 500
    engine = FakeEngine("\n".join(BRACKETS), context=10**6)
    async with chat(engine, size=(80, 45), max_tokens=10**6) as c:
        await c.ask("\n".join(BRACKETS) + "\n.")
        await c.idle()
        view = c.app.transcript
        shown = "\n".join(block.text for block in view.blocks)
        assert all(text in shown for text in BRACKETS)
        for _ in ("tokens", "prose"):
            for y in range(0, int(view.max_scroll_y), 30):
                view.scroll_to(y=y, animate=False)
                await c.pilot.pause()
                assert widths(c) == {80}
            await c.pilot.press("f3")
        for text in BRACKETS[::25]:
            c.app.ui.hint(text)
            c.app.composer.placeholder = "Message"
            c.app.turns.notice("notice", text)
            c.app.session.turns[0].question_node.final_text = text
            c.app.ui.refresh()
            await c.pilot.pause()


async def test_wide_text_keeps_the_columns(chat: Any) -> None:
    text = "你好，世界。 これは👩\u200d👩\u200d👧 試験 e\u0301 ☺️ 👍🏽 🇩🇪🇫🇷 " * 12
    for width in (80, 41, 23):
        async with chat(FakeEngine(text, context=10**5), size=(width, 24)) as c:
            await c.ask(text)
            await c.idle()
            assert widths(c) == {width}


async def test_without_colours_tint_is_underline_and_reverse(
    chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with chat(FakeEngine(STORY * 3, context=10**5)) as c:
        await c.ask("Tell")
        await c.idle()
        assert c.app.native_ansi_color
        styles = [segment.style for strip in c.strips() for segment in strip if segment.style]
        assert any(style.underline for style in styles)
        assert any(style.reverse for style in styles)


async def test_long_chats_cost_no_more(chat: Any) -> None:
    import time

    from fakes import fake_step

    async with chat(FakeEngine("ok")) as c:
        await c.ask("Hi")
        await c.idle()
        block = c.app.transcript.blocks[-1]
        feed(c.app.transcript, block, [fake_step(i, b" word", " word") for i in range(50_000)])
        await c.pilot.pause(0.1)
        begun = time.process_time()
        for number in range(200):
            feed(c.app.transcript, block, [fake_step(number, b" more", " more")] * 7)
        assert time.process_time() - begun < 5  # 0.04 s; minutes where each step looks at the whole answer


async def test_selected_text_is_joined_again(chat: Any) -> None:
    text = "A sentence that is long enough to be wrapped on a narrow screen, for sure.\nNext 你好 line."
    async with chat(FakeEngine(text), size=(40, 24)) as c:
        await c.ask("Hi")
        await c.idle()
        rows = c.screen().split("\n")
        first = next(number for number, row in enumerate(rows) if "A sentence" in row)
        last = next(number for number, row in enumerate(rows) if "Next" in row)
        await c.pilot.mouse_down(offset=(4, first))
        await c.pilot.hover(offset=(10, last))
        await c.pilot.mouse_up(offset=(10, last))
        assert c.app.composer.has_focus
        selected = c.app.screen.get_selected_text()
        assert selected is not None
        assert text.startswith("A " + selected)
        assert widths(c) == {40}
        await c.pilot.press("ctrl+c")
        assert c.app.clipboard == selected


async def test_a_new_theme_is_seen_at_once(chat: Any) -> None:
    async with chat(FakeEngine(STORY), size=(130, 40)) as c:
        await c.ask("Tell")
        await c.idle()

        def colours() -> set[str]:
            styles = [segment.style for strip in c.strips() for segment in strip if segment.style]
            return {style.bgcolor.name for style in styles if style.bgcolor}

        assert c.app.current_theme.background in colours()
        for name in ("ropechat-light", "dracula", "ropechat-ansi-dark"):
            before = c.app.current_theme.background
            c.app.theme = name
            await c.pilot.pause(0.2)
            assert before not in colours(), name


@pytest.mark.parametrize("view", ["tokens", "prose"])
async def test_an_end_draws_what_a_whole_redraw_draws(chat: Any, view: str) -> None:
    async with chat(FakeEngine(STORY * 12 + "\n- an *open* list\n\n\n", context=10**6)) as c:
        if view == "prose":
            c.app.ui.run("view.toggle")
        await c.ask("Tell me")
        await c.until(lambda: not c.app.session.generating)
        drawn = [strip.text for strip in c.strips()[:-2]]
        kept = len(c.app.transcript._strips)
        c.app.transcript.redraw()
        await c.pilot.pause(0.1)
        assert drawn == [strip.text for strip in c.strips()[:-2]]
        assert kept > 5  # rows that stood were not drawn again at the end


@pytest.mark.usefixtures("every_frame")
async def test_many_rows_are_kept_but_not_without_end(chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "CACHED", 30)
    async with chat(FakeEngine("row\n" * 200)) as c:
        await c.ask("Count")
        await c.idle()
        for _ in range(12):
            c.app.transcript.action_page_up()
            await c.pilot.pause()
            assert len(c.app.transcript._strips) <= 30
            seen = round(c.app.transcript.scroll_y) + c.app.transcript.size.height - 1
            assert seen in c.app.transcript._strips  # what was drawn last is kept
