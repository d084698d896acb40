"""What the main views look like, row by row: text and styles against tests/tui/snapshots.

ROPECHAT_SNAPSHOTS=write writes them again; look at the difference before you keep it.
"""

from __future__ import annotations

from typing import Any

import pytest
from fakes import FakeEngine
from reading import DOCUMENT, answered, inspected
from snapshots import compare, drawn

THEMES = ["ropechat-dark", "ropechat-light", "ropechat-ansi-dark"]


async def settled(c: Any) -> Any:
    """An answer whose heading says nothing that changes from run to run."""
    view = await answered(c)
    for block in view.blocks:
        block.note = ""
    view.redraw()
    await c.pilot.pause(0.1)
    return view


@pytest.mark.slow
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", ["tokens", "prose"])
async def test_views(chat: Any, name: str, theme: str) -> None:
    async with chat(FakeEngine(DOCUMENT, context=10**5), size=(80, 60)) as c:
        c.app.theme = theme
        view = await settled(c)
        if name == "prose":
            await c.pilot.press("f3")
        await c.pilot.pause(0.2)
        compare(f"{name}-{theme.removeprefix('ropechat-')}", drawn(view))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tokens", "prose"])
async def test_narrow(chat: Any, name: str) -> None:
    async with chat(FakeEngine(DOCUMENT, context=10**5), size=(44, 70)) as c:
        view = await settled(c)
        if name == "prose":
            await c.pilot.press("f3")
        await c.pilot.pause(0.2)
        compare(f"{name}-narrow", drawn(view))


async def test_without_colours(chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with chat(FakeEngine(DOCUMENT, context=10**5), size=(80, 60)) as c:
        compare("tokens-no-colour", drawn(await settled(c)))


@pytest.mark.parametrize("size", [(80, 24), (60, 20), (160, 45)])
async def test_inspector(chat: Any, size: tuple[int, int]) -> None:
    async with chat(FakeEngine("ok"), size=size, temperature=1.0, top_k=3, top_p=0.8) as c:
        compare(f"inspector-{size[0]}", drawn(await inspected(c)))
