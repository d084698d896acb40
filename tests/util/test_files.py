"""The small files of a model folder: what they may cost."""

from pathlib import Path

import pytest

from ropechat.errors import ConfigError, ModelFileError
from ropechat.util.files import MAX_JSON_BYTES, parse_json, read_json


def test_a_large_configuration_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(MAX_JSON_BYTES + 1)
    with pytest.raises(
        ModelFileError, match=r"config\.json: must be at most 8,388,608 bytes \(got 8,388,609"
    ):
        read_json(tmp_path, "config.json")


def test_json_of_too_many_values_is_not_parsed() -> None:
    """Each of these lists of 3 bytes would take 64 bytes of memory."""
    many = b'{"x": [' + b"[]," * (2 << 20) + b"0]}"
    with pytest.raises(ConfigError, match=r"config\.json: must have at most 4,194,304 commas and brackets"):
        parse_json(many, Path("config.json"))
