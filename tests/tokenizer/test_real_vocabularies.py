"""Published vocabularies, where they lie beside the checkout: llama.cpp's vocabulary tests, id by id."""

from pathlib import Path

import pytest
from gguf_vocabularies import KEY, concatenated, read_metadata, vocab_tests

from ropechat.tokenizer import Tokenizer

pytestmark = pytest.mark.slow

GGUF = ("deepseek-coder", "gpt-2", "llama-spm", "phi-3")
JSON = {
    "gpt-2": "gpt2-50257",
    "llama-spm": "llama2-32000",
    "phi-3": "llama2-32000",
    "llama-bpe": "llama3.2-128256",
    "qwen2": "qwen2-151646",
    "deepseek-r1-qwen": "qwen2-151646",
}
SOME = "War and Peace. Война и мир!\n\n  2 + 2 = 4 \t«日本語» 😀👨‍👩 don't DON'T  \r\n"


def from_gguf(path: Path) -> Tokenizer:
    keys = read_metadata(path)
    return Tokenizer.from_gguf(path, lambda: keys, len(keys[KEY + "tokens"]))


def agree(tokenizer: Tokenizer, inputs: Path) -> None:
    cases = vocab_tests(inputs)
    assert len(cases) == 47
    for text, ids in cases:
        assert tokenizer.encode(text, add_special_tokens=False) == ids, text


@pytest.mark.parametrize("name", GGUF)
def test_gguf_vocabularies(name: str, real: Path) -> None:
    path = real / "vocab-tests" / f"ggml-vocab-{name}.gguf"
    tokenizer = from_gguf(path)
    agree(tokenizer, path.with_suffix(".gguf.inp"))
    ids = tokenizer.encode(SOME, add_special_tokens=False)
    assert concatenated(tokenizer, ids).removeprefix(b" ") == SOME.encode()
    assert tokenizer.decode(ids) == SOME


@pytest.mark.parametrize("name", GGUF)
def test_gguf_vocabularies_that_are_kept(
    name: str, real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropechat.tokenizer.cache.cache_folder", lambda: tmp_path)
    monkeypatch.setenv("ROPECHAT_CACHE", "auto")
    path = real / "vocab-tests" / f"ggml-vocab-{name}.gguf"
    first = from_gguf(path)
    kept = Tokenizer.from_gguf(path, lambda: {}, first.vocab_size)
    agree(kept, path.with_suffix(".gguf.inp"))
    for id in range(0, first.vocab_size, 7):
        assert (kept.token(id), kept.token_bytes(id)) == (first.token(id), first.token_bytes(id))


@pytest.mark.parametrize("name", JSON)
def test_tokenizer_json(name: str, real: Path) -> None:
    tokenizer = Tokenizer.load(real / "tokenizers" / JSON[name], 200_000)
    agree(tokenizer, real / "vocab-tests" / f"ggml-vocab-{name}.gguf.inp")


def test_a_vocabulary_without_a_pre_type(real: Path) -> None:
    """As old files have it; there are no ids to compare with."""
    tokenizer = from_gguf(real / "vocab-tests" / "ggml-vocab-gpt-neox.gguf")
    assert tokenizer.decode(tokenizer.encode(SOME)) == SOME


@pytest.mark.parametrize("model", ["stories260K", "tinystories-656k"])
def test_a_models_two_forms_have_one_vocabulary(model: str, real: Path) -> None:
    gguf = from_gguf(real / model / "gguf" / f"{model}.f16.gguf")
    json = Tokenizer.load(real / model / "hf", gguf.vocab_size)
    text = (real / "text" / "tinyshakespeare.txt").read_text()[:20_000]
    for start in range(0, 20_000, 400):
        piece = text[start : start + 400]
        assert gguf.encode(piece) == json.encode(piece)
        assert gguf.decode(gguf.encode(piece)) == json.decode(json.encode(piece))
    assert (gguf.bos_id, gguf.end_ids) == (json.bos_id, json.end_ids)
