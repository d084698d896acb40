"""A chat on a fake engine, run headless."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import simulated_time
from textual._compositor import Compositor
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from ropechat.tui.app import ChatApp


class Chat:
    """A running chat: the app, its pilot and its engine."""

    def __init__(self, app: ChatApp, pilot: Pilot[None], engine: Any) -> None:
        self.app, self.pilot, self.engine = app, pilot, engine

    async def until(self, condition: Callable[[], bool], limit: float = 60.0) -> None:
        """Wait for a condition; the screen is up to date afterwards."""
        end = simulated_time.real() + limit
        while not condition():
            assert simulated_time.real() < end, f"not true after {limit} s; the screen:\n{self.screen()}"
            await asyncio.sleep(0.01)
        await self.pilot.pause(0.05)

    async def ready(self) -> None:
        """Wait for the model."""
        await self.until(lambda: self.app.session.info is not None)

    async def idle(self) -> None:
        """Wait until nothing is under way, and esc is not meant to stop an answer any more."""
        from ropechat.tui.features.keyboard import JUST_ENDED_S

        await self.until(lambda: not self.app.session.generating and not self.app.inference.busy)
        await self.pilot.pause(JUST_ENDED_S)

    async def ask(self, text: str) -> None:
        """Send a question."""
        self.app.composer.focus()
        self.app.composer.set_text(text)
        await self.pilot.press("enter")

    def screen(self) -> str:
        """The rows of the screen as text."""
        return "\n".join(strip.text.rstrip() for strip in self.strips())

    def strips(self) -> list[Any]:
        """What the compositor would write to the terminal."""
        return list(self.app.screen._compositor.render_strips())

    def line(self, name: str) -> str:
        """The text of title, gauge or footer."""
        return str(self.app.query_one(f"#{name}").text)  # type: ignore[attr-defined]


def pytest_asyncio_loop_factories() -> dict[str, type[simulated_time.Loop]]:
    """No test waits for a timer."""
    return {"simulated time": simulated_time.Loop}


@pytest.fixture(scope="session", autouse=True)
def styles_are_parsed_once() -> Iterator[None]:
    """The apps of all tests share what Textual parses out of style sheets."""
    parse, parsed = Stylesheet._parse_rules, {}

    def parse_once(sheet: Stylesheet, *css: Any, **options: Any) -> Any:
        key = (css, tuple(options.items()), tuple(sheet._variables.items()))
        if key not in parsed:
            parsed[key] = parse(sheet, *css, **options)
        return parsed[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stylesheet, "_parse_rules", parse_once)
        patch.setattr(RuleSet, "__hash__", object.__hash__)  # the same, not in Python
        yield


@pytest.fixture(autouse=True)
def only_what_is_looked_at_is_drawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames are not rendered: nothing would write them. `Chat.screen` renders; so does the end of a test.

    Tests that are about drawing ask for `every_frame`.
    """
    if "every_frame" in request.fixturenames:
        return
    render = Compositor.render_update

    def render_update(compositor: Compositor, full: bool = False, **options: Any) -> Any:
        if full:
            return render(compositor, full, **options)
        compositor._dirty_regions.clear()
        return None

    monkeypatch.setattr(Compositor, "render_update", render_update)


@pytest.fixture
def every_frame() -> None:
    """Frames are rendered as at a terminal."""


async def next_frame(*_: object) -> None:
    """What Textual's `wait_for_idle` waits for at least; it would measure the CPU time of the process."""
    await asyncio.sleep(0.02)


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of chat and reader are known to wait when they do; after keys, the layout is done."""
    wait = Pilot._wait_for_screen

    async def wait_for_layout(pilot: Pilot[Any], timeout: float = 30.0) -> bool:
        done, app = await wait(pilot, timeout), pilot.app
        for _ in range(20):  # frames
            if app._batch_count or not app.screen_stack or not app.screen._layout_required:
                break
            await asyncio.sleep(0.02)
        return done

    monkeypatch.setattr(Pilot, "_wait_for_screen", wait_for_layout)
    for module in ("chat.inference", "inspector.reader_thread"):
        monkeypatch.setattr(f"ropechat.{module}.SimpleQueue", simulated_time.Queue)
    monkeypatch.setattr("ropechat.store.writer.Condition", simulated_time.Condition)
    for module in ("app", "pilot"):
        monkeypatch.setattr(f"textual.{module}.wait_for_idle", next_frame)


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another model or chat does not thaw what pytest holds."""
    for module in ("ui", "features.models"):
        monkeypatch.setattr(f"ropechat.tui.{module}.gc_pause", SimpleNamespace(thaw=lambda: None))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A terminal with colours, not over ssh; nobody's settings."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.setenv("COLORTERM", "truecolor")
    for name in ("NO_COLOR", "TEXTUAL_THEME", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def chat() -> Callable[..., Any]:
    """`async with chat(engine, size=(80, 24)) as c:` runs a chat; an error is raised at load."""

    @asynccontextmanager
    async def open_chat(
        engine: Any, size: tuple[int, int] = (80, 24), wait: bool = True, **settings: Any
    ) -> AsyncIterator[Chat]:
        from ropechat.chat.live import LiveChat
        from ropechat.sampling import Sampling
        from ropechat.tui.app import ChatApp

        def load() -> Any:
            if isinstance(engine, BaseException):
                raise engine
            return engine() if callable(engine) else engine

        names = ("system", "store", "resume", "look", "models")
        system, store, resume, look, models = (settings.pop(name, None) for name in names)
        progress = settings.pop("progress", lambda: None)
        sampling = Sampling(**{"max_tokens": 1000, **settings})
        live = LiveChat(load, "models/fake-1m", sampling, system, store, models, progress)
        app = ChatApp(live, resume, look)
        async with app.run_test(size=size) as pilot:
            running = Chat(app, pilot, engine)
            if wait:
                await running.until(
                    lambda: app.session.info is not None or app.session.load_error is not None
                )
                await running.idle()
            yield running
            running.strips()
        if hasattr(engine, "gate"):
            engine.gate.set()
        app.inference.shutdown(2.0)

    return open_chat
