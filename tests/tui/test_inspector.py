"""The inspector: what it says of a token, and the keys that act on an alternative."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import STORY, FakeEngine, fake_step
from reading import inspected, row_of_cursor, telling_step

from ropechat.chat.events import PreviewReady


@pytest.mark.parametrize("size", [(80, 24), (160, 45)])
async def test_the_inspector_tells_why(chat: Any, size: tuple[int, int]) -> None:
    async with chat(FakeEngine("ok"), size=size, temperature=1.0, top_k=3, top_p=0.8) as c:
        inspector = await inspected(c)
        text = inspector.text
        assert "token 2 of 2 ·dangle" in text
        assert "bytes" not in text
        inspector.toggle_details()
        text = inspector.text
        assert "id 8 · bytes 20 64 61 6e 67 6c 65" in text
        assert "rank 2" in text
        assert "2.2 bits" in text
        assert "entropy 1.6 bits" in text
        assert "raw 0.223" in text
        assert "sampled 0.269" in text  # e^-1.5 / (e^-0.5 + e^-1.5)
        assert "cut by top_p" in text
        assert "cut by top_k" in text
        assert "2 tokens possible" in text
        assert "·dangle" in c.screen()
        rail = inspector.region.x > 0
        assert rail is (size[0] >= 120)
        lines = text.split("\n")
        assert sum("▸" in line for line in lines) == 1
        assert any("█" in line for line in lines)


@pytest.mark.slow
async def test_j_k_choose_and_enter_and_p_act_on_the_choice(chat: Any) -> None:
    asked: list[tuple[Any, ...]] = []

    def preview(*args: Any) -> bool:
        *what, show = args
        asked.append(("preview", *what))
        show(PreviewReady(1, (telling_step(0, b" x", 7), fake_step(1, b" and on", " and on"))))
        return True

    async with chat(FakeEngine("ok"), size=(100, 40)) as c:
        inspector = await inspected(c)
        c.app.answers.fork = lambda *args: asked.append(("fork", *args))
        c.app.answers.preview = preview
        await c.pilot.press("k")
        assert inspector.chosen.id == 7
        await c.pilot.press("p")
        assert "and on" in inspector.text
        await c.pilot.press("enter")
        node, index = c.app.transcript.cursor_token()
        assert asked == [("preview", node, index, 7), ("fork", node, index, 7)]
        await c.pilot.press("j", "j", "j", "j", "j", "j")
        assert inspector.chosen.id == 3  # the last


async def test_bytes_that_are_no_text_and_blanks_are_visible(chat: Any) -> None:
    async with chat(FakeEngine("ok")) as c:
        inspector = await inspected(c, b"\xf0\x9f\n\x1b ")
        assert "⟨F0⟩⟨9F⟩⏎␛·" in inspector.text


@pytest.mark.slow
async def test_f4_opens_and_escape_closes(chat: Any) -> None:
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
        assert c.app.transcript.cursor is None
        assert c.app.composer.has_focus
        await c.pilot.press("f4", "f4")
        assert not c.app.inspector.display
        assert c.app.reading.reading


async def test_an_empty_chat_has_nothing_to_inspect(chat: Any) -> None:
    async with chat(FakeEngine()) as c:
        await c.pilot.press("f4")
        await c.pilot.pause(0.1)
        assert "No token is selected" in c.screen()
        await c.pilot.press("f4", "ctrl+f", "x", "enter", "n", "f3", "escape", "escape")


async def test_a_click_beside_an_answer_that_another_version_replaced(chat: Any) -> None:
    async with chat(FakeEngine(STORY, rate=200), size=(130, 40)) as c:
        c.app.reading.open()
        await c.ask("Tell")
        await c.until(lambda: " of " in c.app.inspector.text)
        shown = c.app.inspector.token
        await c.idle()
        c.app.ui.run("answer.regenerate")
        await c.until(lambda: shown.block not in c.app.transcript.blocks)
        await c.idle()
        c.app.inspector.show(shown)  # as it was, until the next token comes
        c.app.reading.pick(forks=False)
        assert c.app.transcript.cursor is None


async def test_the_rail_shows_the_newest_token_while_it_is_written(chat: Any) -> None:
    engine = FakeEngine(STORY * 5, context=10**5, rate=60)
    async with chat(engine, size=(130, 40)) as c:
        c.app.reading.open()
        await c.ask("Tell")
        await c.until(lambda: "token" in c.app.inspector.text and " of " in c.app.inspector.text)
        first = c.app.inspector.text
        await c.until(lambda: c.app.inspector.text != first)
        await c.pilot.press("escape")
        await c.idle()
