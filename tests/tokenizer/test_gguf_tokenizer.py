"""Vocabularies inside GGUF files: ids as their tokenizer.json gives them, exact bytes, faults by name."""

import json
import random
from typing import Any

import pytest
from gguf_vocabularies import (
    BYTE,
    CONTROL,
    KEY,
    NORMAL,
    USER_DEFINED,
    bytes_vocabulary,
    concatenated,
    gemma4_vocabulary,
    merged_by_score,
    metadata,
    spm_vocabulary,
    tokenizer_of,
)
from model_folders import GOLDEN

from ropechat.errors import ConfigError, ModelFileError, TokenizerError, UnsupportedModelError
from ropechat.tokenizer import Tokenizer
from ropechat.tokenizer.pre_types import PRE_TYPES

DETOK = json.loads((GOLDEN / "detok" / "detok.json").read_text())["tokenizers"]
LETTERS = "abe ht.,!1234\n\t'日é😀\u0301é\x00"


def golden_bytes(**changes: Any) -> dict[str, Any]:
    """The golden byte-level vocabulary as a GGUF file holds it."""
    data = json.loads((GOLDEN / "detok" / "bl" / "tokenizer.json").read_text())
    vocab, merges = data["model"]["vocab"], data["model"]["merges"]
    given = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": sorted(vocab, key=vocab.get),
        "token_type": [CONTROL] * 3 + [NORMAL] * (len(vocab) - 3),
        "merges": [" ".join(merge) for merge in merges],
        "eos_token_id": 2,
    }
    return metadata(**{**given, **changes})


def random_texts(count: int, letters: str = LETTERS) -> list[str]:
    rng = random.Random(11)
    return ["".join(rng.choices(letters, k=rng.randrange(30))) for _ in range(count)]


# ---- Ids


def test_byte_level_ids_are_those_of_tokenizer_json() -> None:
    ours = tokenizer_of(golden_bytes())
    theirs = Tokenizer.load(GOLDEN / "detok" / "bl", 600)
    for case in DETOK["bl"]["cases"]:
        assert ours.encode(case["text_in"]) == case["ids"]
    for text in random_texts(500):
        assert ours.encode(text) == theirs.encode(text)


def test_pieces_of_a_sentencepiece_vocabulary_are_those_of_its_procedure() -> None:
    keys = spm_vocabulary()
    tokenizer, tokens = tokenizer_of(keys), keys[KEY + "tokens"]
    scores = {token: -float(id) for id, token in enumerate(tokens) if id >= 259}
    ids = {token: id for id, token in enumerate(tokens)}
    known = "".join(sorted({letter for token in scores for letter in token} - {"▁"})) + " "
    for text in [*random_texts(300, known), "e" * 99, " " * 70, "the the " * 20]:
        want = [
            ids[piece] for piece in merged_by_score(("▁" + text.replace(" ", "▁")) if text else "", scores)
        ]
        assert tokenizer.encode(text) == [1, *want]


def test_runs_of_spaces_with_one_score() -> None:
    """As in Mistral's vocabulary: tokens of 1 to 14 and 16 spaces: SentencePiece joins from the left."""
    given = spm_vocabulary()
    runs = ["▁" * length for length in (4, 2, 8, 5, 16, 6, 12, 13, 10, 14, 3, 9, 7, 11)]
    tokens = [token for token in given[KEY + "tokens"] if set(token) != {"▁"}]
    tokens = [*tokens[: 700 - len(runs) - 1], "▁", *runs]
    scores = [-float(id) if set(token) != {"▁"} else -1e9 for id, token in enumerate(tokens)]
    tokenizer = tokenizer_of(given | {KEY + "tokens": tokens, KEY + "scores": scores})
    of_token = {token: scores[id] for id, token in enumerate(tokens) if id >= 259}
    for length in range(1, 70):
        want = merged_by_score("▁" * (length + 1), of_token)
        assert tokenizer.encode(" " * length) == [1, *map(tokens.index, want)], length


def test_sentencepiece_ids_of_the_golden_texts() -> None:
    tokenizer = tokenizer_of(spm_vocabulary())
    for case in DETOK["sp"]["cases"]:
        assert tokenizer.encode(case["text_in"]) == case["ids"]


def test_ids_of_gemma_4_are_those_of_tokenizer_json() -> None:
    """Merges over the whole text as in the golden tokenizer, whose normalizer writes a space before it."""
    theirs = Tokenizer.load(GOLDEN / "detok" / "sp", 700)
    for add_bos in (None, True, False):
        ours = tokenizer_of(gemma4_vocabulary(add_bos_token=add_bos))
        for text in ["the the\n\n\nend", *random_texts(200, "abe ht.,!12\n日é😀")]:
            assert ours.encode(f" {text}") == theirs.encode(text) if text else ours.encode(text) == [1]


def test_equal_scores_for_most_tokens_are_refused() -> None:
    """Some converters wrote -1000 for all: merging by them gives other ids than the model was trained on."""
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.scores: must differ between tokens"):
        tokenizer_of(spm_vocabulary(scores=[-1000.0] * 700))


def test_typed_text_never_merges_into_control_or_byte_tokens() -> None:
    keys = spm_vocabulary()
    tokens = [*keys[KEY + "tokens"][:-4], "<s", "s>", "<0x0", "<|"]
    keys |= {KEY + "tokens": tokens, KEY + "scores": [0.0] * 259 + [-float(id) for id in range(259, 700)]}
    tokenizer = tokenizer_of(keys)
    control = tokenizer.escaper(tokenizer.special_ids)
    assert not {0, 1, 2} & set(control.encode(control.escape("a<s></s><unk>b")))
    assert tokenizer.decode(tokenizer.encode("a<0x0A>b")) == "a<0x0A>b"


# ---- Bytes


@pytest.mark.parametrize(
    "keys", [golden_bytes(), spm_vocabulary(), spm_vocabulary(add_space_prefix=False), gemma4_vocabulary()]
)
def test_bytes_of_the_tokens_are_those_of_the_text(keys: dict[str, Any]) -> None:
    tokenizer = tokenizer_of(keys)
    rng = random.Random(4)
    invented = keys[KEY + "model"] == "llama" and keys.get(KEY + "add_space_prefix", True)
    for _ in range(500):
        text = "".join(
            chr(rng.choice([rng.randrange(0x80), rng.randrange(0xD800), 0x1F600])) for _ in range(12)
        )
        text = text.replace("▁", "_")  # which SentencePiece takes for a space
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert concatenated(tokenizer, ids) == (b" " if invented else b"") + text.encode()
        stream = tokenizer.stream()
        assert "".join([*map(stream.push, ids), stream.flush()]) == text == tokenizer.decode(ids)
        data = text.encode()
        spans = [token.span for token in tokenizer.encode_aligned(text)]
        assert b"".join(data[start:end] for start, end in spans) == data


def test_empty_tokens_are_ids_without_a_token() -> None:
    keys = bytes_vocabulary()
    tokens = [*keys[KEY + "tokens"], "", ""]
    keys |= {KEY + "tokens": tokens, KEY + "token_type": [*keys[KEY + "token_type"], NORMAL, NORMAL]}
    tokenizer = tokenizer_of(keys)
    assert (tokenizer.token(262), tokenizer.token_bytes(263)) == (None, b"")
    assert tokenizer.decode([104, 262, 105]) == "hi"


# ---- How words are cut


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "I'll  go 123!?\n\nx", ["I", "'ll", " ", " go", " 123", "!?", "\n", "\n", "x"]),
        ("llama-bpe", "I'LL  go 12345!\n\nx", ["I", "'LL", " ", " go", " ", "123", "45", "!\n\n", "x"]),
        ("qwen2", "don't 12.\n", ["don", "'t", " ", "1", "2", ".\n"]),
        ("smollm", "a 12b", ["a", " ", "1", "2", "b"]),
        ("default", "a+b 1234", ["a", "+", "b", " ", "123", "4"]),
        ("falcon", "a`b 1234", ["a", "`", "b", " ", "123", "4"]),
        ("deepseek-llm", "ab 12  ", ["ab", " ", "12", "  "]),
        ("deepseek-coder", "if x:\n日本", ["if", " x", ":", "\n", "日本"]),
        ("deepseek-v3", "a1234.b日本", ["a", "123", "4", ".b", "日本"]),
        ("gpt-4o", "HelloWorld's 1234/\n", ["Hello", "World's", " ", "123", "4", "/\n"]),
        ("tekken", "HelloWorld 12", ["Hello", "World", " ", "1", "2"]),
        ("bloom", "a.b,  c", ["a", ".", "b", ", ", " c"]),
        ("exaone-moe", "가 나 1", ["가 나", " ", "1"]),
    ],
)
def test_words(pre: str, text: str, words: list[str]) -> None:
    from tokenizers import Regex, pre_tokenizers

    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PRE_TYPES[pre].patterns]
    assert [word for word, _ in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)] == words


@pytest.mark.parametrize("pre", sorted(PRE_TYPES))
def test_every_pre_type_keeps_every_byte(pre: str) -> None:
    tokenizer = tokenizer_of(golden_bytes(pre=pre))
    for text in random_texts(40):
        assert concatenated(tokenizer, tokenizer.encode(text, add_special_tokens=False)) == text.encode()


def test_a_whole_word_that_is_a_token_is_not_merged_where_merges_are_ignored() -> None:
    keys = bytes_vocabulary()
    tokens = [*keys[KEY + "tokens"], "heh"]
    keys |= {KEY + "tokens": tokens, KEY + "token_type": [*keys[KEY + "token_type"], NORMAL]}
    assert tokenizer_of(keys).encode("heh") == [260, 104]
    assert tokenizer_of({**keys, KEY + "pre": "tekken", KEY + "add_bos_token": False}).encode("heh") == [262]


# ---- Special tokens


def test_what_stands_around_a_text() -> None:
    assert tokenizer_of(bytes_vocabulary()).encode("h") == [104]
    assert tokenizer_of(bytes_vocabulary(add_bos_token=True)).encode("h") == [256, 104]
    both = tokenizer_of(bytes_vocabulary(add_bos_token=True, add_eos_token=True))
    assert both.encode("h") == [256, 104, 257]
    assert both.adds_bos
    assert tokenizer_of(bytes_vocabulary(pre="llama-bpe")).encode("h") == [256, 104]
    assert tokenizer_of(spm_vocabulary(bos_token_id=None)).encode("")[:1] == [1]
    with pytest.raises(TokenizerError, match=r"add_bos_token: must be false without"):
        tokenizer_of(bytes_vocabulary(add_bos_token=True, bos_token_id=None))


def test_added_tokens_in_a_text() -> None:
    tokenizer = tokenizer_of(bytes_vocabulary())
    assert tokenizer.encode("h<x><|im_end|>e") == [104, 261, 259, 101]
    assert tokenizer.special_ids == {256, 257, 258, 259}
    assert tokenizer.decode([104, 261, 259]) == "h<x>"


def test_ends_and_names_for_templates() -> None:
    tokenizer = tokenizer_of(bytes_vocabulary(eot_token_id=259, padding_token_id=4_000_000_000))
    assert tokenizer.end_ids == {257, 259}
    assert tokenizer.config == {"bos_token": "<s>", "eos_token": "</s>", "chat_template": None}


def test_named_templates() -> None:
    keys = bytes_vocabulary(chat_template="A") | {"tokenizer.chat_template.tool_use": "B"}
    assert tokenizer_of(keys).config["chat_template"] == [
        {"name": "default", "template": "A"},
        {"name": "tool_use", "template": "B"},
    ]


def test_a_file_without_types_has_the_special_tokens_that_it_names() -> None:
    tokenizer = tokenizer_of(bytes_vocabulary(token_type=None))
    assert tokenizer.special_ids == {256, 257}


def test_phi_3_tokens_swallow_white_space() -> None:
    keys = bytes_vocabulary()
    assert tokenizer_of(keys).encode("<|im_end|>\nh") == [259, 10, 104]
    assert tokenizer_of(keys | {"general.name": "Phi-3 mini"}).encode("<|im_end|>\nh<s> h") == [
        259,
        104,
        256,
        32,
        104,
    ]


def test_a_file_without_a_vocabulary() -> None:
    tokenizer = tokenizer_of({KEY + "tokens": []})
    assert not tokenizer.present
    with pytest.raises(TokenizerError, match=r"model\.gguf: tokenizer\.ggml\.model: not found"):
        tokenizer.encode("a")


# ---- Faults

_TOKENS = bytes_vocabulary()[KEY + "tokens"]
_TYPES = bytes_vocabulary()[KEY + "token_type"]
FAULTS: list[tuple[str, type[ModelFileError] | type[UnsupportedModelError], dict[str, Any]]] = [
    ("model", UnsupportedModelError, bytes_vocabulary(model="foo")),
    ("model", TokenizerError, bytes_vocabulary(model=5)),
    ("pre", UnsupportedModelError, bytes_vocabulary(pre="foo")),
    ("tokens", TokenizerError, bytes_vocabulary(tokens=[*_TOKENS, "x"])),
    ("tokens", TokenizerError, bytes_vocabulary(tokens=[1] * 262)),
    ("tokens", TokenizerError, bytes_vocabulary(tokens=bytes(262))),
    ("tokens", TokenizerError, bytes_vocabulary(tokens=[""] * 262)),
    ("tokens", TokenizerError, bytes_vocabulary(tokens=[b"\xff", *_TOKENS[1:]])),
    ("tokens", TokenizerError, bytes_vocabulary(tokens=["\ud800", *_TOKENS[1:]])),
    ("tokens", TokenizerError, bytes_vocabulary(tokens=[_TOKENS[1], *_TOKENS[1:]])),
    ("tokens", TokenizerError, bytes_vocabulary(token_type=[BYTE, *_TYPES[1:]])),
    ("token_type", TokenizerError, bytes_vocabulary(token_type=_TYPES[1:])),
    ("token_type", TokenizerError, bytes_vocabulary(token_type=bytes(_TYPES))),
    ("token_type", TokenizerError, bytes_vocabulary(token_type=[99, *_TYPES[1:]])),
    ("merges", TokenizerError, bytes_vocabulary(merges=None)),
    ("merges", TokenizerError, bytes_vocabulary(merges=["he"])),
    ("merges", TokenizerError, bytes_vocabulary(merges=["h zz"])),
    ("merges", TokenizerError, bytes_vocabulary(merges=["h z"])),
    ("eos_token_id", ConfigError, bytes_vocabulary(eos_token_id=262)),
    ("bos_token_id", ConfigError, bytes_vocabulary(bos_token_id=-1)),
    ("eot_token_id", ConfigError, bytes_vocabulary(eot_token_id="x")),
    ("add_bos_token", TokenizerError, bytes_vocabulary(add_bos_token=1)),
    ("scores", TokenizerError, spm_vocabulary(scores=None)),
    ("scores", TokenizerError, spm_vocabulary(scores=[0.0])),
    ("scores", TokenizerError, spm_vocabulary(scores=[float("nan")] * 700)),
    ("unknown_token_id", ConfigError, spm_vocabulary(unknown_token_id=700)),
]


@pytest.mark.parametrize(("key", "error", "keys"), FAULTS)
def test_faults_name_file_and_key(
    key: str, error: type[Exception], keys: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    size = 700 if keys[KEY + "model"] == "llama" else 262
    with pytest.raises(error) as caught:
        Tokenizer.from_gguf(GOLDEN / "model.gguf", lambda: keys, size)
    assert str(caught.value).startswith(f"{GOLDEN / 'model.gguf'}: {KEY}{key}: ")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_the_first_of_equal_merges_counts() -> None:
    keys = bytes_vocabulary(
        tokens=[*_TOKENS, "hh"], token_type=[*_TYPES, USER_DEFINED], merges=["h e", "h h", "h e"]
    )
    keys[KEY + "token_type"][-1] = NORMAL
    assert tokenizer_of(keys).encode("hhe") == [104, 260]
