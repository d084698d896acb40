"""Fixtures of all tests."""

import gc
import os
import platform
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import simulated_time

if TYPE_CHECKING:
    from cli_door import Door

    from ropechat.store.store import Store

IS_ARM = platform.machine() in {"aarch64", "arm64"}
ISAS = tuple(os.environ.get("ROPECHAT_TEST_ISAS", "").split())  # all of them: tests/trust/sanitize.py
ISAS = ISAS or (("scalar", "neon", "neon-dotprod") if IS_ARM else ("scalar", "avx2", "avx512"))


def pytest_configure() -> None:
    """Programs that tests start receive SIGINT and SIGHUP, even if pytest was started with them ignored."""
    simulated_time.install()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that import packages of the extras, seconds each, are read only where they are asked for."""
    return True if collection_path.name == "adapters" and "not extras" in config.option.markexpr else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that take hours run only where they are asked for."""
    if "trust" not in config.option.markexpr:
        long = [item for item in items if item.get_closest_marker("trust")]
        items[:] = [item for item in items if not item.get_closest_marker("trust")]
        config.hook.pytest_deselected(items=long)


def pytest_collection_finish() -> None:
    """Never look for garbage among what pytest holds: a fifth of the time of the chat's tests."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup() -> None:
    """Collect garbage seldom; a test may have asked for more, as the chat does."""
    gc.set_threshold(50_000, 10, 10)


@pytest.fixture(scope="session", autouse=True)
def no_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither read nor fill the caches of whoever runs them, nor their chats, settings and models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROPECHAT_CACHE", "off")
        patch.delenv("XDG_CACHE_HOME", raising=False)  # the one below HOME is used
        for name in ("COLUMNS", "LINES"):  # xdist sets them; programs would take them for the terminal's size
            patch.delenv(name, raising=False)
        patch.setenv("ROPECHAT_DATA", str(tmp_path_factory.mktemp("data")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        for name in ("OLLAMA_MODELS", "LLAMA_CACHE"):
            patch.setenv(name, str(tmp_path_factory.mktemp("programs")))
        yield


@pytest.fixture(scope="session", params=ISAS)
def known_isa(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A set of this CPU; skipped where the CPU lacks it."""
    from core import load  # late: the oracle's tests need no built module
    from models import write_llama

    from ropechat.errors import RequestError

    forced: str = request.param
    tiny = write_llama(tmp_path_factory.mktemp("isa"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROPECHAT_ISA", forced)
        try:
            engine = load(tiny)
        except RequestError as error:
            pytest.skip(f"this CPU: {error}")
    assert str(engine.facts["isa"]).startswith(forced)
    return forced


@pytest.fixture
def isa(known_isa: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """ROPECHAT_ISA forces this set on every engine that the test loads, and on none of other tests."""
    monkeypatch.setenv("ROPECHAT_ISA", known_isa)
    return known_isa


@pytest.fixture(scope="session")
def real() -> Path:
    """Trained models lie beside a checkout of the project's own machines (never inside it)."""
    directory = Path(__file__).parents[2] / "shared" / "real"
    if not directory.is_dir():
        pytest.skip("no ../shared/real beside this checkout")
    return directory


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(2024)


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> "Door":
    """Runs the command line in this process."""
    from cli_door import Door

    return Door(monkeypatch, capfd)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a tiny model that has one token per byte."""
    from model_folders import byte_folder

    return byte_folder(tmp_path / "model")


@pytest.fixture
def store(opened: "Callable[[], Store]") -> "Store":
    """A store in this test's folder `data`."""
    return opened()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Opens the store of this test's folder `data`, once more at each call; closed at the end."""
    from ropechat.store.store import Store

    made: list[Store] = []

    def open_store() -> Store:
        made.append(Store(tmp_path / "data"))
        return made[-1]

    yield open_store
    for store in made:
        store.close()
