"""The sheet of what the model does with positions: `/rope`."""

from threading import Event
from typing import Any

import pytest
from builtin_config import LAYERS
from fakes import FakeEngine
from snapshots import shown
from textual.widgets import Static

from ropechat.engine.engine import Engine
from ropechat.errors import CancelledError, RequestError
from ropechat.inspector.rope.report import CONFIG_VIEWS
from ropechat.tui.screens.rope import RopeScreen
from ropechat.util.width import cell_width


async def drawn(c: Any, name: str) -> str:
    """The sheet, once it shows a view."""
    await c.until(lambda: isinstance(c.app.screen, RopeScreen))
    await c.until(lambda: name in str(c.app.screen.query_one(".sheet").border_title))
    await c.pilot.pause(0.1)
    return str(shown(c, c.app.screen.query_one(".sheet")))


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (50, 20), (160, 45)])
async def test_views_turn_and_fit(chat: Any, size: tuple[int, int]) -> None:
    async with chat(FakeEngine("ok"), size=size) as c:
        await c.idle()
        await c.ask("/rope")
        text = await drawn(c, "bands · 1 of 12")
        assert "trained length 512" in text
        assert "V1 Bands" in text
        sheet = c.app.screen.query_one(".sheet")
        lines = str(sheet.query_one(Static).render()).splitlines()
        assert max(map(cell_width, lines)) < sheet.size.width
        await c.pilot.press("right")
        assert "V2 Rotation map" in await drawn(c, "map · 2 of 12")
        await c.pilot.press("left", "left", "left", "left", "left", "left")
        text = await drawn(c, "length · 8 of 12")
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
        await c.pilot.press("n", "N", "m", "M", "left", "right")  # keys find no model, and end nothing
        assert isinstance(c.app.screen, RopeScreen)


@pytest.mark.slow
async def test_keys_while_the_model_is_replaced(chat: Any) -> None:
    """The old model is closed while its dialog is open; then the dialog goes."""
    gate, old = Event(), FakeEngine("ok")

    class Models:
        def check(self, model: str) -> None:
            spec = old.rope_spec
            old.rope_spec = lambda length=0: closed() if old.closed else spec(length)  # type: ignore[method-assign]

        def load(self, model: str, context: int | None = None) -> FakeEngine:
            gate.wait(60)
            return FakeEngine("new", name="new")

    def closed() -> Any:
        raise RequestError("engine: closed; load the model again")

    async with chat(old, models=Models()) as c:
        await c.ask("/rope")
        await drawn(c, "bands")
        c.app.models.switch_model("new")
        await c.until(lambda: old.closed)
        await c.pilot.press("n", "N", "m", "M", "right", "left", "n")
        assert "V1 Bands" in await drawn(c, "bands")
        gate.set()
        await c.until(lambda: c.app.session.info.name == "new")
        await c.until(lambda: not isinstance(c.app.screen, RopeScreen))
        c.app.session.coming = "another"
        await c.ask("/rope")
        assert "no model is loaded yet" in c.line("footer")


async def test_without_a_model_there_is_no_sheet(chat: Any) -> None:
    async with chat(FakeEngine("ok")) as c:
        await c.idle()
        c.app.session.info = None
        await c.ask("/rope")
        await c.pilot.pause(0.1)
        assert not isinstance(c.app.screen, RopeScreen)


@pytest.mark.slow
async def test_views_of_the_loaded_model(chat: Any) -> None:
    async with chat(Engine.load("builtin", threads=1), size=(100, 40)) as c:
        await c.idle()
        await c.ask("/rope")
        await drawn(c, "bands")
        for name, words in [
            ("distance", "V9 Attention by distance"),
            ("usage", "V8 Use of the pairs"),
            ("split", "V7 One attention score"),
            ("shift", "V6 Shift test"),
        ]:
            await c.pilot.press("left")
            await c.until(lambda words=words: words in sheet(c))
            assert f"{name} · " in str(c.app.screen.query_one(".sheet").border_title)
        await c.pilot.press("right")
        await c.until(lambda: "Layer 0, head 0" in sheet(c))
        await c.pilot.press("n", "m")
        await c.pilot.press("n", "m")
        await c.until(lambda: "Layer 1, head 1" in sheet(c))
        assert "layer 1 · head 1" in str(c.app.screen.query_one(".sheet").border_title)
        await c.pilot.press("N", "N")
        await c.until(lambda: f"Layer {LAYERS - 1}, head 1" in sheet(c))  # round at the ends


def sheet(c: Any) -> str:
    return str(shown(c, c.app.screen.query_one(".sheet")))


@pytest.mark.slow
async def test_a_measurement_is_stopped_and_the_screen_goes_on(
    chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go_on = Event(), Event()

    def slow(self: Engine, *given: Any, **named: Any) -> Any:
        request = self._request()
        started.set()
        go_on.wait(60)
        if request.token.cancelled:
            raise CancelledError("cancelled")
        raise AssertionError("it was not stopped")

    monkeypatch.setattr(Engine, "attention_by_distance", slow)
    async with chat(Engine.load("builtin", threads=1), size=(100, 30)) as c:
        await c.idle()
        await c.ask("/rope")
        await drawn(c, "bands")
        await c.pilot.press("left")
        await c.until(started.is_set)
        await c.until(lambda: "measuring a sample text" in str(shown(c, c.app.screen)))
        await c.pilot.press("right")  # the screen does not wait
        assert "V1 Bands" in await drawn(c, "bands")
        await c.pilot.press("left", "escape")
        await c.until(lambda: "stopped" in str(shown(c, c.app.screen)))
        assert isinstance(c.app.screen, RopeScreen)
        go_on.set()
        await c.pilot.press("escape")
        await c.until(lambda: not isinstance(c.app.screen, RopeScreen))
