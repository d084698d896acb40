"""Regexes of tokenizer.json files: known ones take linear time, slow ones are found, replaced or bounded."""

import random
from pathlib import Path
from typing import Any

import pytest
from model_folders import byte_tokenizer, write_folder

from ropechat.errors import TokenizerError
from ropechat.tokenizer import Tokenizer
from ropechat.tokenizer.hazards import MAX_SLOW_BYTES, any_slow, straighten

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def splitting(regex: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    level = {**byte_tokenizer()["pre_tokenizer"], "use_regex": False}
    return byte_tokenizer(pre_tokenizer={"type": "Sequence", "pretokenizers": [split, level]})


@pytest.mark.parametrize("regex", [LLAMA3, LLAMA3.replace("{1,3}", "{1,2}"), r"\s+", r"[a-z]+|.", "foo"])
def test_linear(regex: str) -> None:
    assert not any_slow(splitting(regex))


@pytest.mark.parametrize(
    "regex",
    [
        *(r"(a+)+$", r"(a|aa)+$", r"(?:a*)*b", r"(x+x+)+y"),  # exponential
        *(r" +$", r"z+y", r"\d{1,3}(?=(?:\d{3})*\b)", r"(?=(\d{3})+(?!\d))", r"\p{L}+!"),  # quadratic
    ],
)
def test_slow(regex: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert any_slow(splitting(regex))
    assert capfd.readouterr().err == ""


def test_a_slow_one_bounds_the_text(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, tokenizer=splitting(r"z+y"))
    tokenizer = Tokenizer.load(folder, 260)
    assert len(tokenizer.encode("z" * MAX_SLOW_BYTES)) == MAX_SLOW_BYTES
    with pytest.raises(TokenizerError, match=rf"pre_tokenizer: has a slow regex; .* {MAX_SLOW_BYTES} bytes"):
        tokenizer.encode("z" * MAX_SLOW_BYTES + "z")


def test_a_known_slow_one_has_a_linear_twin(tmp_path: Path) -> None:
    from tokenizers import Regex, pre_tokenizers

    data = splitting(r"\s+$")
    assert straighten(data)
    twin = data["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    old, new = (pre_tokenizers.Split(Regex(regex), "isolated") for regex in (r"\s+$", twin))
    rng = random.Random(6)
    for _ in range(2000):
        text = "".join(rng.choices(" \t\nab", k=rng.randrange(9)))
        assert new.pre_tokenize_str(text) == old.pre_tokenize_str(text)
    tokenizer = Tokenizer.load(write_folder(tmp_path, tokenizer=splitting(r"\s+$")), 260)
    assert len(tokenizer.encode(" " * 300_000 + "x")) == 300_001
