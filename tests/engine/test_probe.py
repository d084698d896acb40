"""The probe of the machine: measured once, kept, and what is expected from it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from ropechat.engine.bench import probe
from ropechat.models.speed import Machine, keep_machine, known_machine, known_speeds

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="XDG_CACHE_HOME says where the cache is")
KINDS = {"q8_0": 3e11, "bf16": 2e11, "q4_k": 1e11}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ROPECHAT_CACHE", "auto")


@pytest.mark.slow
def test_the_machine_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert known_machine() is None
    found = probe.probe_machine()
    assert found is not None
    assert 1e8 < found.bandwidth < 1e13
    assert set(found.products) == {"q8_0", "bf16", "q4_k"}
    assert all(1e8 < rate < 1e15 for rate in found.products.values())
    assert known_machine(found.version) == found
    assert known_speeds() == [], "a probe is no model"
    monkeypatch.setattr(probe, "_measure", lambda version: pytest.fail("measured again"))
    assert probe.probe_machine() == found


def test_without_a_cache_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPECHAT_CACHE", "off")
    monkeypatch.setattr(probe, "_measure", lambda version: pytest.fail("measured"))
    assert probe.probe_machine() is None


def test_another_version_or_instruction_set_measures_again(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_machine(Machine("1", 3e10, KINDS))
    assert known_machine("1") is not None
    assert known_machine("2") is None
    monkeypatch.setenv("ROPECHAT_ISA", "scalar")
    assert known_machine("1") is None


def test_a_disk_without_room_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(version: str) -> Machine:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(probe, "_measure", refuse)
    assert probe.probe_machine() is None
