"""tokenizer.json files that would be slow or panic: regexes are found and bounded, odd values refused."""

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from model_folders import adds_bos, byte_tokenizer, write_folder

from ropechat import builtin
from ropechat.errors import RopechatError, TokenizerError
from ropechat.tokenizer import Tokenizer
from ropechat.tokenizer import regex_safety as hazards
from ropechat.tokenizer.linear import is_linear
from ropechat.tokenizer.regex_safety import MAX_SLOW_BYTES, has_slow_regex, replace_slow_regexes

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
    assert not has_slow_regex(splitting(regex))


@pytest.mark.parametrize(
    "regex",
    [
        *(r"(a+)+$", r"(a|aa)+$", r"(?:a*)*b", r"(x+x+)+y"),  # exponential
        *(r" +$", r"z+y", r"\d{1,3}(?=(?:\d{3})*\b)", r"(?=(\d{3})+(?!\d))", r"\p{L}+!"),  # quadratic
    ],
)
def test_slow(regex: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert has_slow_regex(splitting(regex))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "regex",
    [
        LLAMA3,
        LLAMA3.replace("{1,3}", ""),
        r"[0-9]| ?[^\s0-9]+|\s",
        r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"(?:https?|ftp)?[a-z]{2,}[0-9]*|\s*\n|\s+",
        r"\d|[\]\[|(]+|.",
    ],
)
def test_linear_by_its_shape(regex: str) -> None:
    assert is_linear(regex)


@pytest.mark.parametrize(
    "regex",
    [
        *(r"\p{L}+!", r" +$", r"a*a+", r"\s*[\r\n]+", r"\s*[\r\n]+|\s|\s+", r"\s+(?=x)"),
        *(r"(a+)+", r"(?:a|b)+", r"(?:a+|b)", r"(?:(?:a))", "a?" * 30 + "b", r"a{500}", r"a{1,300}b"),
        *(r"(a)\1", r"a++", r"a+?", r"a**", r"a{2}{3}", r"a{2", r"a|", r"[[:alpha:]]", r"[a", r"(?i)a", ""),
        *(r"\b", r"\X+", r"\k<a>", r"^a", r"(?<=a)b", r"(?i:a", r")"),
    ],
)
def test_no_other_is_taken_for_linear(regex: str) -> None:
    assert not is_linear(regex)


def test_the_built_in_model_is_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is each text that it encodes run with stderr turned away, as if the library might panic."""
    monkeypatch.setattr(hazards, "_seconds", lambda split, text: pytest.fail("it was probed"))
    tokenizer = Tokenizer.load(builtin.FOLDER, 1 << 20)
    monkeypatch.setattr("ropechat.tokenizer.library.os.dup", lambda file: pytest.fail("stderr is gone"))
    assert tokenizer.decode(tokenizer.encode("Once upon a time, 1 2 3")) == "Once upon a time, 1 2 3"


@pytest.mark.parametrize("factor", [1e-9, 1.0], ids=["fast", "slow"])
def test_the_speed_of_the_machine_decides_nothing(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    regex = r"(?=a)[a-z]+"  # not known, and neither linear nor slow by its shape
    assert not is_linear(regex)
    for exponent, slow in ((1.0, False), (1.1, False), (2.0, True), (3.0, True)):
        monkeypatch.setattr(hazards, "_seconds", lambda split, text, e=exponent: factor * len(text) ** e)
        assert has_slow_regex(splitting(regex)) == slow, exponent


@pytest.mark.parametrize(("exponent", "faster"), [(1.0, False), (2.0, True)])
@pytest.mark.parametrize("spiked", range(15))
def test_one_disturbed_measurement_decides_nothing(exponent: float, faster: bool, spiked: int) -> None:
    calls = iter(range(1000))

    def cost(length: int) -> float:
        return (50.0 if next(calls) == spiked else 1.0) * (100.0 + length**exponent)

    assert hazards.grows_faster(cost, 500, 4000) == faster


def test_a_slow_one_bounds_the_text(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, tokenizer=splitting(r"z+y"))
    tokenizer = Tokenizer.load(folder, 260)
    assert len(tokenizer.encode("z" * MAX_SLOW_BYTES)) == MAX_SLOW_BYTES
    with pytest.raises(
        TokenizerError,
        match=rf"pre_tokenizer: text must be at most {MAX_SLOW_BYTES} bytes .* because of a slow regex",
    ):
        tokenizer.encode("z" * MAX_SLOW_BYTES + "z")


def test_a_known_slow_one_has_a_linear_twin(tmp_path: Path) -> None:
    from tokenizers import Regex, pre_tokenizers

    data = splitting(r"\s+$")
    replace_slow_regexes(data)
    twin = data["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    assert twin != r"\s+$"
    old, new = (pre_tokenizers.Split(Regex(regex), "isolated") for regex in (r"\s+$", twin))
    rng = random.Random(6)
    for _ in range(2000):
        text = "".join(rng.choices(" \t\nab", k=rng.randrange(9)))
        assert new.pre_tokenize_str(text) == old.pre_tokenize_str(text)
    tokenizer = Tokenizer.load(write_folder(tmp_path, tokenizer=splitting(r"\s+$")), 260)
    assert len(tokenizer.encode(" " * 300_000 + "x")) == 300_001


# ---- Panics

ODD: list[Any] = [None, -1, 2**64, "", [], {}, {"Regex": "("}]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a tokenizer.json; of the vocabulary only its first token."""
    if path:
        yield path
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        for key in keys[:1] if path[-1:] == ("vocab",) else keys:
            yield from places(value[key], (*path, key))


@pytest.mark.slow
def test_an_odd_value_anywhere_is_refused_or_harmless(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Only errors of ropechat come out, and the library's panics leave no trace on stderr."""
    parts = [{"type": "Strip", "content": " ", "start": 0, "stop": 1}, byte_tokenizer()["decoder"]]
    normalizer = {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}
    data = splitting(LLAMA3) | {"decoder": {"type": "Sequence", "decoders": parts}, "normalizer": normalizer}
    data["post_processor"] = adds_bos()
    used, messages = 0, []
    for path in places(data):
        for value in ODD:
            odd = copy.deepcopy(data)
            *parents, last = path
            holder = odd
            for key in parents:
                holder = holder[key]
            holder[last] = value
            write_folder(tmp_path, tokenizer=odd)
            try:
                tokenizer = Tokenizer.load(tmp_path, 260)
                tokenizer.decode(tokenizer.encode("a b  c\n"))
                used += 1
            except RopechatError as error:
                messages.append(str(error))
    assert used > 20
    assert all(str(tmp_path) in message for message in messages)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("pre_tokenizer.FixedLength", {"pre_tokenizer": {"type": "FixedLength", "length": 0}}),
        ("pre_tokenizer.type", {"pre_tokenizer": {"type": 5}}),
        ("pre_tokenizer.type 'Foo'", {"pre_tokenizer": {"type": "Foo"}}),
        (
            "post_processor.sep",
            {"post_processor": {"type": "BertProcessing", "sep": ["a", 260], "cls": ["b", 1]}},
        ),
        (
            "normalizer.pattern",
            {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x"}},
        ),
        ("normalizer", {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 9}}),
        ("decoder", {"decoder": {"type": "Replace", "pattern": {"Regex": "a"}, "content": "b" * 9}}),
    ],
)
def test_what_is_refused(field: str, changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.load(write_folder(tmp_path, tokenizer=byte_tokenizer(**changes)), 260)
    assert f"tokenizer.json: {field}: " in str(caught.value)


def test_dropout_of_training_does_not_make_ids_random(tmp_path: Path) -> None:
    model = byte_tokenizer()["model"]
    model |= {"dropout": 0.9, "vocab": {**model["vocab"], "he": 260}, "merges": ["h e"]}
    tokenizer = Tokenizer.load(write_folder(tmp_path, tokenizer=byte_tokenizer(model=model)), 261)
    assert tokenizer.encode("he" * 50) == [260] * 50
