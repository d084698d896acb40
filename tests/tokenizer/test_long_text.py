"""A long text encoded in pieces has the tokens of the whole text."""

import random
from pathlib import Path

import pytest

from ropechat import builtin
from ropechat.models.resolve import resolve
from ropechat.tokenizer import EncodedToken, Tokenizer
from ropechat.tokenizer.long_text import encode_pieces

PIECE = 4096
ROOT = Path(__file__).parents[1] / "golden" / "detok"


def pieces_of(tokenizer: Tokenizer, text: str) -> list[list[EncodedToken]]:
    return list(encode_pieces(tokenizer.encode_aligned, text, PIECE))


def sample(seed: int, size: int) -> str:
    """Words, numbers, code, accents, emoji, runs of spaces and newlines."""
    rng = random.Random(seed)
    parts = [
        *(
            "the",
            "Question",
            "don't",
            "naïve",
            "été",
            "日本語",
            "🙂🙂",
            "x = 12345678;",
            "\n",
            "\n\n  ",
            "\t",
        ),
        *("   ", "...", "3.14159", "ÄÖ", "a" * 40, "-" * 30, "e\u0301", "<|im_end|>", "\r\n", "1" * 25),
    ]
    out, length = [], 0
    while length < size:
        out.append(rng.choice(parts) + rng.choice(["", " ", " ", "\n"]))
        length += len(out[-1].encode())
    return "".join(out)


@pytest.fixture(scope="module", params=["builtin", "bl", "sp", "real"])
def tokenizers(request: pytest.FixtureRequest) -> list[Tokenizer]:
    if request.param == "builtin":
        return [Tokenizer.load(resolve(builtin.NAME), 1 << 20, keep=False)]
    if request.param != "real":
        return [Tokenizer.load(ROOT / request.param, 1 << 20, keep=False)]
    folder = request.getfixturevalue("real") / "tokenizers"
    return [Tokenizer.load(folder / name, 1 << 20, keep=False) for name in ("gpt2-50257", "minueza-32m-chat")]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_pieces_are_the_whole(tokenizers: list[Tokenizer], seed: int) -> None:
    text = sample(seed, 15_000)
    for tokenizer in tokenizers:
        found = pieces_of(tokenizer, text)
        assert len(found) > 2
        assert [token for piece in found for token in piece] == tokenizer.encode_aligned(text)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "a", "a" * 9000, "1" * 9000, " " * 9000, "é\n" * 3000, "ab" * PIECE])
def test_texts_of_one_kind(tokenizers: list[Tokenizer], text: str) -> None:
    for tokenizer in tokenizers:
        tokens = [token for piece in pieces_of(tokenizer, text) for token in piece]
        whole = tokenizer.encode_aligned(text)
        assert b"".join(text.encode()[slice(*t.span)] for t in tokens) == text.encode() or tokens == whole
        if len(text) < PIECE:
            assert tokens == whole


def test_pieces_that_never_agree_are_encoded_as_one() -> None:
    def encode(part: str) -> list[EncodedToken]:
        return [EncodedToken(len(part), (0, len(part)), "text")]

    (tokens,) = encode_pieces(encode, "x" * 50_000, PIECE)
    assert tokens == [EncodedToken(50_000, (0, 50_000), "text")]


def test_added_tokens_are_only_at_the_ends() -> None:
    def encode(part: str) -> list[EncodedToken]:
        own = [EncodedToken(ord(letter), (i, i + 1), "text") for i, letter in enumerate(part)]
        return [EncodedToken(1, (0, 0), "bos"), *own, EncodedToken(2, (0, 0), "special")]

    text = "abc\n" * 5000
    tokens = [token for piece in encode_pieces(encode, text, PIECE) for token in piece]
    assert [token.id for token in tokens] == [1, *map(ord, text), 2]
    assert [token.span for token in tokens[1:-1]] == [(i, i + 1) for i in range(len(text))]
