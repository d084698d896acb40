"""The sheet of what the model does with positions: `/rope`."""

from typing import Any

import pytest
from fakes import FakeEngine
from snapshots import shown
from textual.widgets import Static

from ropechat.errors import RequestError
from ropechat.inspector.rope.report import CONFIG_VIEWS
from ropechat.tui.screens.rope import RopeScreen
from ropechat.util.text import cell_width


async def drawn(c: Any, name: str) -> str:
    """The sheet, once it shows a view."""
    await c.until(lambda: isinstance(c.app.screen, RopeScreen))
    await c.until(lambda: name in str(c.app.screen.query_one(".sheet").border_title))
    await c.pilot.pause(0.1)
    return str(shown(c, c.app.screen.query_one(".sheet")))


@pytest.mark.parametrize("size", [(80, 24), (50, 20), (160, 45)])
async def test_views_turn_and_fit(chat: Any, size: tuple[int, int]) -> None:
    async with chat(FakeEngine("ok"), size=size) as c:
        await c.idle()
        await c.ask("/rope")
        text = await drawn(c, "bands · 1 of 8")
        assert "trained length 512" in text
        assert "V1 Bands" in text
        sheet = c.app.screen.query_one(".sheet")
        lines = str(sheet.query_one(Static).render()).splitlines()
        assert max(map(cell_width, lines)) < sheet.size.width
        await c.pilot.press("right")
        assert "V2 Rotation map" in await drawn(c, "map · 2 of 8")
        await c.pilot.press("left", "left")
        text = await drawn(c, "length · 8 of 8")
        assert "V11 Length watch" in text
        assert len(CONFIG_VIEWS) == 8
        await c.pilot.press("escape")
        await c.until(lambda: not isinstance(c.app.screen, RopeScreen))


async def test_a_closed_model_is_said(chat: Any) -> None:
    class Closed(FakeEngine):
        def rope_spec(self, length: int = 0) -> dict[str, Any]:
            raise RequestError("engine: closed; load the model again")

    async with chat(Closed("ok")) as c:
        await c.idle()
        await c.ask("/rope")
        await c.until(lambda: isinstance(c.app.screen, RopeScreen))
        await c.until(lambda: "engine: closed" in str(shown(c, c.app.screen.query_one(".sheet"))))


async def test_without_a_model_there_is_no_sheet(chat: Any) -> None:
    async with chat(FakeEngine("ok")) as c:
        await c.idle()
        c.app.session.info = None
        await c.ask("/rope")
        await c.pilot.pause(0.1)
        assert not isinstance(c.app.screen, RopeScreen)
