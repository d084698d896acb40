"""tokenizer.json files that would be slow or panic: they work within limits, odd values are refused."""

import base64
import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from model_folders import adds_bos, byte_tokenizer, write_folder

from ropechat import builtin
from ropechat.errors import RopechatError, TokenizerError
from ropechat.tokenizer import Tokenizer, confined, library, pre_types
from ropechat.tokenizer.confined import ConfinedTokenizer
from ropechat.tokenizer.hazards import is_linear_time, replace_slow_regexes
from ropechat.tokenizer.linear import is_linear

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def splitting(regex: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    level = {**byte_tokenizer()["pre_tokenizer"], "use_regex": False}
    return byte_tokenizer(pre_tokenizer={"type": "Sequence", "pretokenizers": [split, level]})


@pytest.mark.parametrize(
    "regex",
    [
        *(r"(a+)+$", r"(a|aa)+$", r"(?:a*)*b", r"(x+x+)+y", r"(?:xy)*z"),
        *(r" +$", r"z+y", r"\d{1,3}(?=(?:\d{3})*\b)", r"(?=(\d{3})+(?!\d))", r"\p{L}+!", r"(?=a)[a-z]+"),
    ],
)
def test_a_regex_that_is_not_linear_by_its_form_is_confined(regex: str) -> None:
    assert not is_linear_time(splitting(regex))
    replaced = {"type": "Replace", "pattern": {"Regex": regex}, "content": ""}
    assert not is_linear_time(byte_tokenizer(normalizer=replaced))
    assert not is_linear_time(byte_tokenizer(decoder=replaced))


@pytest.mark.parametrize(
    ("linear", "model"),
    [
        (True, {"type": "WordPiece", "vocab": {}, "max_input_chars_per_word": 100}),
        (True, {"type": "WordPiece", "vocab": {}}),
        (False, {"type": "WordPiece", "vocab": {}, "max_input_chars_per_word": 10**9}),
        (True, {"type": "Unigram", "vocab": [["a" * 256, 0.0]]}),
        (False, {"type": "Unigram", "vocab": [["a" * 257, 0.0]]}),
    ],
)
def test_the_model_decides_too(linear: bool, model: dict[str, Any]) -> None:
    assert is_linear_time(byte_tokenizer(model=model)) == linear


@pytest.mark.parametrize(
    "regex",
    [
        LLAMA3,
        LLAMA3.replace("{1,3}", ""),
        r"[0-9]| ?[^\s0-9]+|\s",
        r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"(?:https?|ftp)?[a-z]{2,}[0-9]*|\s*\n|\s+",
        r"\d|[\]\[|(]+|.",
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*",
        *(r"\s+", r"[a-z]+|.", "foo", LLAMA3.replace("{1,3}", "{1,2}")),
    ],
)
def test_linear_by_its_shape(regex: str) -> None:
    assert is_linear(regex)


@pytest.mark.parametrize(
    "regex",
    [
        *(r"\p{L}+!", r" +$", r"a*a+", r"\s*[\r\n]+", r"\s*[\r\n]+|\s|\s+", r"\s+(?=x)"),
        *(r"(a+)+", r"(?:a|b)+", r"(?:a+|b)", r"(?:(?:a))", "a?" * 30 + "b", r"a{500}", r"a{1,300}b"),
        *(
            r"(a)\1",
            r"a++b",
            r"a{2}+",
            r"a+?",
            r"a**",
            r"a{2}{3}",
            r"a{2",
            r"a|",
            r"[[:alpha:]]",
            r"[a",
            r"(?i)a",
            "",
        ),
        *(r"\b", r"\X+", r"\k<a>", r"^a", r"(?<=a)b", r"(?i:a", r")"),
    ],
)
def test_no_other_is_taken_for_linear(regex: str) -> None:
    assert not is_linear(regex)


def test_published_ones_are_not_confined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is each text that they encode run with stderr turned away, as if the library might panic."""
    monkeypatch.setattr(confined, "LimitedProcess", lambda *given, **more: pytest.fail("it was confined"))
    tokenizer = Tokenizer.load(builtin.FOLDER, 1 << 20)
    monkeypatch.setattr("ropechat.tokenizer.library.os.dup", lambda file: pytest.fail("stderr is gone"))
    assert tokenizer.decode(tokenizer.encode("Once upon a time, 1 2 3")) == "Once upon a time, 1 2 3"
    for regex in (LLAMA3, *pre_types.known_patterns()):
        assert is_linear_time(splitting(regex))


# ---- Work within limits


def is_confined(tokenizer: Tokenizer) -> bool:
    assert tokenizer._vocabulary is not None
    return isinstance(tokenizer._vocabulary.library(), ConfinedTokenizer)


def test_a_confined_one_means_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids, spans, escaped control tokens, decoding in pieces; here by a decoder that has a regex too."""
    steps = [{"type": "Replace", "pattern": {"Regex": "(?=z)z"}, "content": "Z"}, byte_tokenizer()["decoder"]]
    data = splitting(r"(?=a)[a-z]+") | {"decoder": {"type": "Sequence", "decoders": steps}}
    data["post_processor"] = adds_bos()
    write_folder(tmp_path, tokenizer=data)
    text = "abc zz <|im_end|> é\n"

    def everything() -> list[object]:
        tokenizer = Tokenizer.load(tmp_path, 260)
        found: list[object] = [is_confined(tokenizer), tokenizer.vocab_size, tokenizer.token(65)]
        ids = tokenizer.encode(text)
        escaper = tokenizer.escaper(tokenizer.control_ids)
        found += [ids, tokenizer.decode(ids), tokenizer.encode_aligned(text), tokenizer.id_of("</s>")]
        found += [escaper.encode(escaper.escape(text)), tokenizer.encode_aligned(text, tokenizer.control_ids)]
        stream = tokenizer.stream()
        return [*found, [stream.push(id) for id in ids], stream.flush()]

    within = everything()
    monkeypatch.setattr(library, "is_linear_time", lambda data: True)
    monkeypatch.setattr("ropechat.tokenizer.loader.is_linear_time", lambda data: True)
    assert everything() == [False, *within[1:]]
    assert within[0]


@pytest.mark.slow
def test_a_slow_text_is_given_up(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tokenizer = Tokenizer.load(write_folder(tmp_path, tokenizer=splitting(r"(?:xy)*(?:xy)*z")), 260)
    assert tokenizer.encode("xyz") == [ord(letter) for letter in "xyz"]
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: .*must take at most 2(\.\d)? s of CPU time"):
        tokenizer.encode("xy" * 20_000 + "wz")
    assert tokenizer.encode("xyz") == [ord(letter) for letter in "xyz"]
    assert capfd.readouterr().err == ""


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


BOS, TEXT = {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}


def template(pieces: list[Any], ids: list[int]) -> dict[str, Any]:
    special = {"<s>": {"id": "<s>", "ids": ids, "tokens": ["<s>"] * len(ids)}}
    return {"type": "TemplateProcessing", "single": pieces, "pair": [], "special_tokens": special}


def charsmap(text: bytes) -> dict[str, Any]:
    """One whose trie is empty, with a text that a character becomes."""
    data = base64.b64encode((4).to_bytes(4, "little") + bytes(4) + text + b"\0").decode()
    return {"type": "Precompiled", "precompiled_charsmap": data}


MERGED = {"vocab": {"a": 0, "▁": 1, "a▁": 2}, "merges": [["a", "▁"]]}
"""With a prefix of one byte, the second token would be cut within its character."""


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
        ("normalizer.Prepend", {"normalizer": {"type": "Prepend", "prepend": "a" * 65}}),
        ("normalizer", {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 32}}),
        (
            "pre_tokenizer",
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits"}] * 32}},
        ),
        ("normalizer.Precompiled", {"normalizer": charsmap(b"a" * 65)}),
        (
            "model.end_of_word_suffix",
            {"model": {**byte_tokenizer()["model"], "end_of_word_suffix": "a" * 65}},
        ),
        ("model.end_of_word_suffix", {"model": {**byte_tokenizer()["model"], "end_of_word_suffix": 5}}),
        (
            "model.merges[0]",
            {"model": {**byte_tokenizer()["model"], **MERGED, "continuing_subword_prefix": "\0"}},
        ),
        ("post_processor", {"post_processor": template([BOS] * 4, [256] * 251)}),
        ("post_processor", {"post_processor": template([TEXT] * 9, [256])}),
    ],
)
def test_what_is_refused(field: str, changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.load(write_folder(tmp_path, tokenizer=byte_tokenizer(**changes)), 260)
    assert f"tokenizer.json: {field}: " in str(caught.value)


def test_a_step_of_another_section_is_named(tmp_path: Path) -> None:
    odd = byte_tokenizer(pre_tokenizer={"type": "TemplateProcessing"})  # without the lists that it must have
    with pytest.raises(TokenizerError, match="pre_tokenizer"):
        Tokenizer.load(write_folder(tmp_path, tokenizer=odd), 260)


def test_dropout_of_training_does_not_make_ids_random(tmp_path: Path) -> None:
    model = byte_tokenizer()["model"]
    model |= {"dropout": 0.9, "vocab": {**model["vocab"], "he": 260}, "merges": ["h e"]}
    tokenizer = Tokenizer.load(write_folder(tmp_path, tokenizer=byte_tokenizer(model=model)), 261)
    assert tokenizer.encode("he" * 50) == [260] * 50
