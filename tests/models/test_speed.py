"""Measured speeds of models: kept on disk, and what follows from them for others."""

import json
from pathlib import Path

import pytest

from ropechat.models.speed import Speed, expected_speed, keep_speed, known_speeds, load_speed
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
