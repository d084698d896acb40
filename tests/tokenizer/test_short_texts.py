"""Texts that are encoded with a part of the vocabulary: the tokens, and their places, of the whole one."""

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gguf_vocabularies import vocab_tests
from model_folders import GOLDEN, byte_folder, byte_tokenizer

from ropechat.tokenizer import Tokenizer
from ropechat.tokenizer.partial_bpe import base_tokens
from ropechat.tokenizer.vocabulary_pages import Pages, lay_out

VOCAB_SIZE = 1 << 20
LETTERS = "ab 1\n!é日"
TEXTS = ["", " ", "Once upon a time", "naïve café 漢字 🙂 👨‍👩", "\0\x1b[0m", "a\u0301 \ufb01", "x" * 300]


pytestmark = pytest.mark.usefixtures("folder")


def is_whole(tokenizer: Tokenizer) -> bool:
    assert tokenizer._vocabulary is not None
    return tokenizer._vocabulary._short is None


def said(tokenizer: Tokenizer, text: str) -> list[Any]:
    ids = tokenizer.encode(text)
    return [
        ids,
        tokenizer.encode(text, add_special_tokens=False),
        tokenizer.encode_aligned(text),
        tokenizer.decode(ids),
    ]


def agree(model: Path, texts: list[str]) -> int:
    """Compare a kept tokenizer with the whole one; how many texts went by the pages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ropechat.tokenizer.tokenizer.load_cached", lambda where, vocab_size: None)
        whole = Tokenizer.load(model, VOCAB_SIZE)
    tokenizer, paged = Tokenizer.load(model, VOCAB_SIZE), 0
    assert not is_whole(tokenizer)
    for text in texts:
        if is_whole(tokenizer):
            tokenizer = Tokenizer.load(model, VOCAB_SIZE)
        assert said(tokenizer, text) == said(whole, text), text
        paged += not is_whole(tokenizer)
    return paged


def random_words(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choice(LETTERS) for _ in range(rng.randrange(40))) for _ in range(count)]


def random_vocabulary(seed: int, alphabet: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens of `alphabet` and random merges of them."""
    rng, tokens, merges = random.Random(seed), list(alphabet), []
    while len(merges) < 150:
        left, right = rng.choice(tokens), rng.choice(tokens)
        if left + right not in tokens:
            tokens.append(left + right)
            merges.append((left, right))
    rng.shuffle(tokens)
    rng.shuffle(merges)  # so that some can never apply
    return tokens, merges


@pytest.mark.parametrize("seed", range(6))
def test_random_vocabularies(seed: int, tmp_path: Path) -> None:
    """Words are not cut: the whole text is one; some characters are unknown."""
    tokens, merges = random_vocabulary(seed, LETTERS[: 5 + seed % 3])
    bytes_too = seed % 2 == 1
    if bytes_too:
        tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += ["<unk>", "<s>", "</s>"]
    model = {
        "type": "BPE",
        "vocab": {token: id for id, token in enumerate(tokens)},
        "merges": merges,
        "unk_token": "<unk>",
        "fuse_unk": seed > 2,
        "byte_fallback": bytes_too,
    }
    file = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": model,
    }
    folder = byte_folder(tmp_path / "model", tokenizer=file)
    texts = random_words(seed, 150)
    assert agree(folder, texts) > 0.9 * len(texts)


@pytest.mark.parametrize("ignore_merges", [False, True])
def test_byte_level_words(ignore_merges: bool, tmp_path: Path) -> None:
    file = byte_tokenizer()
    vocab = file["model"]["vocab"]
    _, merges = random_vocabulary(7, "abcdeĠ!")
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab) + 100)
    vocab["zebra"] = 5000  # no merge leads to it
    file["model"] |= {"merges": merges, "ignore_merges": ignore_merges}
    model = byte_folder(tmp_path / "model", tokenizer=file)
    texts = [*TEXTS, "zebra", "zebra a zebras", *random_words(1, 50), " abcde" * 30]
    assert agree(model, texts) > len(texts) - 3
    assert (5000 in Tokenizer.load(model, 1 << 20).encode("zebra")) is ignore_merges


def test_an_added_token_that_the_library_renames(tmp_path: Path) -> None:
    """It gives such a token as its normalizer makes it."""
    file = byte_tokenizer()
    file["normalizer"] = {"type": "Prepend", "prepend": "_"}
    file["added_tokens"].append(file["added_tokens"][0] | {"content": "<n>", "id": 700, "normalized": True})
    model = byte_folder(tmp_path / "model", tokenizer=file)
    whole = Tokenizer.load(model, VOCAB_SIZE)
    tokenizer = Tokenizer.load(model, VOCAB_SIZE)
    assert whole.token(700) == "_<n>"
    assert (tokenizer.id_of("<n>"), tokenizer.token(700)) == (whole.id_of("<n>"), "_<n>")
    assert agree(model, ["<n>", "a<n>b", "_<n> <n>"]) == 3


@pytest.mark.parametrize("kind", ["bl", "sp"])
def test_golden_vocabularies(kind: str) -> None:
    model = GOLDEN / "detok" / kind
    tokenizer = Tokenizer.load(model, VOCAB_SIZE)
    names = [tokenizer.token(id) or "" for id in sorted(tokenizer.control_ids)]
    texts = [*TEXTS, *random_words(2, 50), *names, *(f"a{left}{right} b" for left, right in pairwise(names))]
    assert agree(model, texts) > len(texts) // 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "folder_name"),
    [
        ("gpt-2", "gpt2-50257"),
        ("llama-spm", "llama2-32000"),
        ("llama-bpe", "llama3.2-128256"),
        ("qwen2", "qwen2-151646"),
    ],
)
def test_published_vocabularies(name: str, folder_name: str, real: Path) -> None:
    """llama.cpp's vocabulary tests, each by a vocabulary that knows nothing yet."""
    model = real / "tokenizers" / folder_name
    cases = vocab_tests(real / "vocab-tests" / f"ggml-vocab-{name}.gguf.inp")
    Tokenizer.load(model, VOCAB_SIZE)
    paged = 0
    for text, ids in cases:
        tokenizer = Tokenizer.load(model, VOCAB_SIZE)
        assert tokenizer.encode(text, add_special_tokens=False) == ids, text
        paged += not is_whole(tokenizer)
    assert paged > len(cases) - 5


def test_long_texts_and_many_words_take_the_whole_vocabulary(tmp_path: Path) -> None:
    model = byte_folder(tmp_path / "model")
    expected = Tokenizer.load(model, VOCAB_SIZE).encode("a b " * 10_000)
    long = Tokenizer.load(model, VOCAB_SIZE)
    assert long.encode("a b " * 100) == expected[: 4 * 100]
    assert not is_whole(long)
    assert long.encode("a b " * 10_000) == expected
    assert is_whole(long)
    words = [f"word{number}" for number in range(2000)]
    Tokenizer.load(GOLDEN / "detok" / "bl", VOCAB_SIZE)
    many = Tokenizer.load(GOLDEN / "detok" / "bl", VOCAB_SIZE)
    begun = many.encode(words[0])
    for word in words:
        many.encode(word)
    assert is_whole(many)
    assert many.encode(words[0]) == begun


@pytest.mark.parametrize(
    ("change", "paged"),
    [
        ({}, True),
        ({"continuing_subword_prefix": "##"}, False),
        ({"end_of_word_suffix": "</w>"}, False),
        ({"ignore_merges": True}, False),  # no ByteLevel: a word may hold characters without a token
    ],
)
def test_models_that_are_read_whole(change: dict[str, Any], paged: bool) -> None:
    model = {"vocab": {"a": 0, "b": 1}, "merges": []} | change
    assert (base_tokens({"model": model, "pre_tokenizer": None}) is not None) is paged


@pytest.mark.parametrize(("content", "id"), [("c", 2), ("<x>", 1)])
def test_letters_that_only_added_tokens_have(content: str, id: int) -> None:
    data = {"model": {"vocab": {"a": 0, "b": 1}, "merges": []}}
    assert base_tokens(data) == {"a": 0, "b": 1}
    assert base_tokens(data | {"added_tokens": [{"content": "<x>", "id": 2}]}) == {"a": 0, "b": 1, "<x>": 2}
    assert base_tokens(data | {"added_tokens": [{"content": content, "id": id}]}) is None


@pytest.mark.parametrize("number", range(5))
def test_a_damaged_head_of_pages_asks_for_no_more_than_the_block(number: int) -> None:
    """Of the block's first numbers (counts, length, offsets), each in turn is far too large."""
    vocab = {"a": 0, "b": 1, "ab": 2}
    block = lay_out(vocab, ["a b"], list(vocab))
    damaged = block[: 4 * number] + b"\xfe\xff\xff\xff" + block[4 * number + 4 :]

    def read(begin: int, end: int) -> bytes:
        assert end <= len(block)
        return damaged[begin:end]

    assert Pages(lambda begin, end: block[begin:end], len(block)).word("ab") == (2, [(1, 0)])
    if number == 2:  # the longest token's length has no part in reading
        assert Pages(read, len(block)).longest == 0xFFFFFFFE
        return
    with pytest.raises(ValueError):
        Pages(read, len(block)).word("ab")
