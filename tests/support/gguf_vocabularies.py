"""Metadata of GGUF vocabularies for tests: made from the golden tokenizers, or read from a file."""

import heapq
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from model_folders import GOLDEN, byte_alphabet

from ropechat.tokenizer import Tokenizer

KEY = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def metadata(**changes: Any) -> dict[str, Any]:
    """Keys without their prefix; `chat_template` has one of its own, None leaves a key out."""
    template = changes.pop("chat_template", None)
    keys = {KEY + name: value for name, value in changes.items() if value is not None}
    return keys if template is None else {**keys, "tokenizer.chat_template": template}


def bytes_vocabulary(**changes: Any) -> dict[str, Any]:
    """A token per byte (id = byte); <s> 256, </s> 257, <|im_start|> 258, <|im_end|> 259; he 260, <x> 261."""
    special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    given = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [*byte_alphabet(), *special, "he", "<x>"],
        "token_type": [NORMAL] * 256 + [CONTROL] * 4 + [NORMAL, USER_DEFINED],
        "merges": ["h e"],
        "bos_token_id": 256,
        "eos_token_id": 257,
    }
    return metadata(**{**given, **changes})


def spm_vocabulary(**changes: Any) -> dict[str, Any]:
    """The golden vocabulary with byte fallback; earlier tokens have better scores, as in trained ones."""
    data = json.loads((GOLDEN / "detok" / "sp" / "tokenizer.json").read_text())
    tokens = sorted(data["model"]["vocab"], key=data["model"]["vocab"].get)
    given = {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "scores": [-float(id) for id in range(len(tokens))],
        "token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(tokens) - 259)],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return metadata(**{**given, **changes})


def gemma4_vocabulary(**changes: Any) -> dict[str, Any]:
    """The same vocabulary with merges in the place of scores, and nothing before the text."""
    data = json.loads((GOLDEN / "detok" / "sp" / "tokenizer.json").read_text())
    merges = [" ".join(pair) for pair in data["model"]["merges"]]
    return spm_vocabulary(**{"model": "gemma4", "pre": None, "scores": None, "merges": merges, **changes})


def tokenizer_of(keys: Mapping[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(Path("model.gguf"), lambda: keys, len(keys[KEY + "tokens"]))


def read_metadata(path: Path) -> Mapping[str, Any]:
    """Of a file, by the compiled reader or by the gguf package; skipped where there is neither."""
    try:
        from ropechat.engine._core import gguf_metadata
    except ImportError:
        import pytest

        gguf = pytest.importorskip("gguf")
        return {key: field.contents() for key, field in gguf.GGUFReader(path).fields.items()}
    return dict(gguf_metadata(str(path)))


def merged_by_score(text: str, scores: Mapping[str, float]) -> list[str]:
    """SentencePiece's own procedure: the best neighbours join, leftmost first, while they make a token."""
    pieces: list[str] = list(text)
    before, after = list(range(-1, len(text) - 1)), [*range(1, len(text)), -1]
    queue: list[tuple[float, int, int, str]] = []

    def offer(left: int, right: int) -> None:
        if left >= 0 and right >= 0 and pieces[left] + pieces[right] in scores:
            joined = pieces[left] + pieces[right]
            heapq.heappush(queue, (-scores[joined], left, right, joined))

    for left in range(len(text) - 1):
        offer(left, left + 1)
    while queue:
        _, left, right, joined = heapq.heappop(queue)
        if not pieces[left] or not pieces[right] or pieces[left] + pieces[right] != joined:
            continue
        pieces[left], pieces[right] = joined, ""
        after[left] = after[right]
        if after[right] >= 0:
            before[after[right]] = left
        offer(before[left], left)
        offer(left, after[left])
    return [piece for piece in pieces if piece]


def vocab_tests(inputs: Path) -> list[tuple[str, list[int]]]:
    """Texts and ids of llama.cpp's vocabulary tests (`.inp` and `.out`)."""
    texts = inputs.read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = inputs.with_suffix(".out").read_text().split("\n")
    return [(text, [int(id) for id in line.split()]) for text, line in zip(texts, lines, strict=False)]


def concatenated(tokenizer: Tokenizer, ids: Sequence[int]) -> bytes:
    return b"".join(map(tokenizer.token_bytes, ids))
