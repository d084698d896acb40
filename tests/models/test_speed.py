"""Measured speeds of models: kept on disk, and what follows from them for others."""

import json
from pathlib import Path

import pytest

from ropechat.models.speed import (
    Machine,
    Speed,
    expected_speed,
    keep_machine,
    keep_speed,
    known_machine,
    known_speeds,
    load_speed,
)
from ropechat.util.paths import cache_folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


MEASURED = Speed(40.0, 6.0, 7.5, weights=5 * 10**9, products=7 * 10**9, growth=1e-4, dtype="q4_k")


def test_a_speed_comes_back_for_its_model_only(tmp_path: Path) -> None:
    model = tmp_path / "a.gguf"
    assert load_speed(model) is None
    keep_speed(model, MEASURED)
    assert load_speed(model) == MEASURED
    assert load_speed(tmp_path / "b.gguf") is None
    (file,) = (cache_folder() / "speed").iterdir()
    assert json.loads(file.read_text())["model"] == str(model)
    file.write_text(file.read_text().replace("a.gguf", "c.gguf"))  # another path with the same checksum
    assert load_speed(model) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"prefill": "fast"}', '{"prefill": -1, "decode": 1e999}', "7"]
)
def test_a_file_that_someone_changed_says_nothing(tmp_path: Path, text: str) -> None:
    keep_speed(tmp_path / "a", MEASURED)
    (file,) = (cache_folder() / "speed").iterdir()
    file.write_text(text)
    assert load_speed(tmp_path / "a") is None
    assert all((one.prefill, one.decode) == (None, None) for one in known_speeds())


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    cache_folder().parent.mkdir()
    cache_folder().write_text("a file in its place")
    keep_speed(tmp_path / "a", MEASURED)
    assert known_speeds() == []


def test_measurements_are_taken_in_when_they_say_something() -> None:
    speed = Speed(growth=1e-3)
    assert speed.with_read(0, 31, 1.0) == speed
    assert speed.with_written(7, 1.0) == speed
    read = speed.with_read(0, 1000, 15.0)  # a prompt of 1,000 tokens costs 1,500
    assert read.prefill == 100.0
    assert read.seconds_to_read(0, 1000) == 15.0
    assert read.seconds_to_read(900, 1000) == pytest.approx(100 * 1.95 / 100)
    assert read.with_read(0, 1000, 30.0).prefill == 75.0  # the mean with the newest
    assert speed.with_written(10, 2.0).decode == 5.0
    assert speed.seconds_to_read(0, 10) is None


def test_others_are_expected_by_bytes_and_products() -> None:
    assert expected_speed(10**9, 10**9, []) == Speed(weights=10**9, products=10**9)
    found = expected_speed(25 * 10**8, 35 * 10**8, [MEASURED])
    assert (found.prefill, found.decode) == (80.0, 12.0)
    tiny = Speed(
        1000.0, 1000.0, weights=10**7, products=10**7
    )  # 100 times below: caches and overhead rule there
    known = [tiny, MEASURED, MEASURED, MEASURED]
    assert expected_speed(25 * 10**8, 35 * 10**8, known) == found


def test_a_probe_is_corrected_by_what_was_measured() -> None:
    machine = Machine("1", 40e9, {"q8_0": 300e9, "bf16": 200e9, "q4_k": 100e9})
    alone = expected_speed(5 * 10**9, 10**9, [], "Q4_K_M", machine)
    assert alone.prefill == pytest.approx(85.0)
    assert alone.decode == pytest.approx(6.4)
    assert expected_speed(10**9, 10**9, [], "Q8_0", machine).prefill == pytest.approx(255.0)
    assert expected_speed(10**9, 10**9, [], "bfloat16", machine).prefill == pytest.approx(170.0)
    # A model with half of the products and a quarter of the bandwidth of the probe; another kind of weights.
    measured = Speed(150.0, 10.0, weights=10**9, products=10**9, dtype="q8_0")
    found = expected_speed(2 * 10**9, 10**9, [measured], "Q4_K_M", machine)
    assert found.prefill == pytest.approx(50.0)
    assert found.decode == pytest.approx(5.0)
    assert expected_speed(0, 0, [measured], "", machine) == Speed()


@pytest.mark.parametrize("text", ["", "[]", '{"version": "1"}', '{"bandwidth": -1, "products": {}}'])
def test_a_damaged_probe_says_nothing(text: str) -> None:
    keep_machine(Machine("1", 1e10, {"q8_0": 1e11, "bf16": 1e11, "q4_k": 1e11}))
    (file,) = (cache_folder() / "speed").iterdir()
    assert known_machine("1") is not None
    file.write_text(text)
    assert known_machine() is None
