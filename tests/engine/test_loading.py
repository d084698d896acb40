"""The order of a load: what waits for what, and who is told when something fails on the way."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from models import write_llama

from ropechat.engine import _core
from ropechat.engine.native import ModelLoad


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A model whose weights take more than 32 MiB in f32."""
    return write_llama(tmp_path / "large", dtype="f16", vocab_size=130_000)


def load(model: Path, before_packing: Callable[[], object], **options: Any) -> _core.Engine:
    return _core.Engine.load(str(model), dtype="f32", threads=2, before_packing=before_packing, **options)


def test_large_weights_are_announced_before_they_are_packed(large: Path, tmp_path: Path) -> None:
    said: list[str] = []
    first = load(large, lambda: said.append("first"), pack_cache=tmp_path / "packs")
    assert said == ["first"]
    assert first.finish_pack(60)
    assert load(large, lambda: said.append("second"), pack_cache=tmp_path / "packs").facts["from_pack"]
    load(write_llama(tmp_path / "small"), lambda: said.append("small"))
    assert said == ["first"]


@pytest.mark.parametrize("exception", [ValueError("no"), KeyboardInterrupt()], ids=repr)
def test_an_exception_before_packing_is_raised_as_it_is(large: Path, exception: BaseException) -> None:
    def fail() -> None:
        raise exception

    with pytest.raises(type(exception)) as raised:
        load(large, fail)
    assert raised.value is exception
    assert raised.traceback[-1].name == "fail"


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens while `ModelLoad` runs, of which compiled engines tell that they pack."""
    seen: list[str] = []

    def load(folder: str, *, before_packing: Callable[[], object], **options: object) -> str:
        before_packing()
        seen.append("packed")
        return "engine"

    fake = SimpleNamespace(
        Engine=SimpleNamespace(load=load), Progress=object, read_config=lambda folder: {"vocab_size": 5}
    )
    monkeypatch.setattr("ropechat.engine.native.load_core", lambda: fake)
    return seen


def test_packing_waits_for_what_runs_meanwhile(order: list[str], tmp_path: Path) -> None:
    loading = ModelLoad(tmp_path)
    assert loading.run_before_packing(lambda: order.append("checked") or 5) == 5
    assert loading.result() == "engine"
    assert order == ["checked", "packed"]


def test_packing_does_not_wait_for_ever(order: list[str], tmp_path: Path) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    loading = ModelLoad(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        loading.run_before_packing(interrupted)
    loading._core.result()
    with pytest.raises(KeyboardInterrupt), ModelLoad(tmp_path) as loading:
        raise KeyboardInterrupt
    loading._core.result()
    assert ModelLoad(tmp_path).result() == "engine"
    assert order == ["packed"] * 3
