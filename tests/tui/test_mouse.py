"""What the mouse does: all that the keys do."""

from __future__ import annotations

from typing import Any

import pytest
from branches import answers, last
from fakes import STORY, FakeEngine

from ropechat.tui.screens.compare import CompareScreen
from ropechat.tui.screens.help import HelpScreen
from ropechat.tui.screens.models import ModelsScreen

WIDE = (160, 45)


async def told(c: Any, text: str = "Tell") -> None:
    await c.ask(text)
    await c.idle()


def spot(c: Any, text: str, last: bool = False) -> tuple[int, int]:
    """(column, row) of a text on the screen."""
    rows = c.screen().splitlines()
    found = [(line.index(text), y) for y, line in enumerate(rows) if text in line]
    assert found, f"{text!r} is not on the screen:\n{c.screen()}"
    return found[-1 if last else 0]


async def click(c: Any, text: str, times: int = 1, last: bool = False, by: int = 0) -> None:
    x, y = spot(c, text, last)
    await c.pilot.click(offset=(x + by, y), times=times)
    await c.pilot.pause(0.05)


@pytest.mark.slow
async def test_keys_of_the_footer_are_pressed(chat: Any) -> None:
    async with chat(FakeEngine([STORY, "two"])) as c:
        await told(c)
        await click(c, "F1 help")
        assert isinstance(c.app.screen, HelpScreen)
        await click(c, "esc back")
        await c.until(lambda: len(c.app.screen_stack) == 1)
        await click(c, "help", last=True)  # its label too
        await c.until(lambda: isinstance(c.app.screen, HelpScreen))
        await c.pilot.press("escape")
        await c.pilot.press(*"More?")
        await click(c, "⏎ send")
        await c.idle()
        assert last(c).question == "More?"


async def test_the_model_and_the_chat_open_their_dialogs(chat: Any) -> None:
    async with chat(FakeEngine(STORY)) as c:
        await told(c)
        await click(c, c.app.session.info.name)
        await c.until(lambda: isinstance(c.app.screen, ModelsScreen))


async def test_an_alternative_is_selected_and_forks(chat: Any) -> None:
    async with chat(FakeEngine([STORY, STORY])) as c:
        await told(c)
        await click(c, "Once", by=2)
        await c.until(lambda: c.app.inspector.display)
        row = c.app.inspector.region.y + min(y for y, at in c.app.inspector._listed.items() if at == 1)
        await c.pilot.click(offset=(10, row))
        await c.pilot.pause(0.05)
        assert c.app.inspector.choice == 1
        assert len(answers(c)) == 1
        await c.pilot.click(offset=(10, row))
        await c.idle()
        assert len(answers(c)) == 2
        assert c.app.session.tree[last(c).node].origin.kind == "fork"


async def test_versions_are_stepped_through_in_the_heading(chat: Any) -> None:
    async with chat(FakeEngine([STORY, "another", "third"])) as c:
        await told(c)
        await told(c, "/regen")
        await told(c, "/regen")
        shown = last(c).node
        await click(c, "‹ 3/3 ›")
        assert last(c).node != shown
        await click(c, "‹ 2/3 ›", by=6)
        assert last(c).node == shown


@pytest.mark.slow
async def test_columns_of_a_comparison_are_chosen(chat: Any) -> None:
    async with chat(FakeEngine([STORY, "another"])) as c:
        await told(c)
        await told(c, "/regen")
        second = last(c).node
        await told(c, "/compare 1 2")
        await c.until(lambda: isinstance(c.app.screen, CompareScreen))
        await c.pilot.click(offset=(10, 8))
        assert "answer 1/2 ◂" in c.screen()
        await c.pilot.click(offset=(10, 8), times=2)
        await c.until(lambda: len(c.app.screen_stack) == 1)
        assert last(c).node != second


@pytest.mark.slow
async def test_sampling_is_set_in_its_bars(chat: Any) -> None:
    for size in ((80, 24), WIDE):
        async with chat(FakeEngine(STORY), size=size) as c:
            await told(c)
            await c.pilot.press("f7")
            y = spot(c, "temperature ")[1]
            bar = [x for x, cell in enumerate(c.screen().splitlines()[y]) if cell in "━╸╺─"]
            await c.pilot.click(offset=(bar[-1], y))
            await c.pilot.pause(0.05)
            assert c.app.session.sampling.temperature == 2.0, c.screen()
            await c.pilot.click(offset=(bar[0], y))
            await c.pilot.pause(0.05)
            assert c.app.session.sampling.temperature <= 2.0 / len(bar) + 0.05
            await click(c, "1 greedy")
            assert c.app.session.sampling.temperature == 0.0


async def test_an_attached_file_is_unfolded(chat: Any, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_text("first secret\nsecond")
    async with chat(FakeEngine(["ok", "ok"])) as c:
        await told(c, "@notes.md what?")
        assert "▸ notes.md · 2 lines, 19 characters" in c.screen()
        assert "secret" not in c.screen()
        await click(c, "▸ notes.md")
        assert "first secret" in c.screen()
        await click(c, "▾ notes.md")
        assert "secret" not in c.screen()
        await told(c, "/files")
        assert "first secret" in c.screen()


async def test_a_dialog_closes_once(chat: Any) -> None:
    async with chat(FakeEngine("ok")) as c:
        await c.pilot.press("f1")
        help_screen = c.app.screen
        assert isinstance(help_screen, HelpScreen)
        help_screen.dismiss()
        help_screen.dismiss()  # a second click that comes before the first has closed it
        await c.pilot.press("o", "k")
        assert c.app.composer.text == "ok"
