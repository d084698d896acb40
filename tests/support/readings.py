"""Scored texts without a model."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from ropechat.inspector.scored_text import ScoredText
from ropechat.trace import TokenDistribution, TokenScore, Trace

META = {"model": "m", "dtype": "f32", "vocab_size": 1000, "trained_length": 512, "top_k": 5, "engine": "0"}


def reading(pieces: Sequence[str | bytes], name: str = "", top_k: int = 3, **meta: Any) -> ScoredText:
    """`trace_of` as a ScoredText."""
    return ScoredText(trace_of(pieces, top_k, **meta), name, spelled(pieces))


def trace_of(pieces: Sequence[str | bytes], top_k: int = 3, **meta: Any) -> Trace:
    """A text of these tokens; token i has the id i and, from the second on, the surprisal of i bits.

    Its candidates have the ids i, i + 1, ..., so that `bytes_of` spells them with the texts of others.
    """
    data = [piece if isinstance(piece, bytes) else piece.encode("utf-8", "surrogatepass") for piece in pieces]
    text = b"".join(data).decode("utf-8", "surrogatepass")
    tokens, at = [], 0
    for i, piece in enumerate(data):
        row = distribution(i, top_k) if i else None
        logprob = -i * math.log(2) if i else None
        spelled = piece.decode("utf-8", "replace")
        span = (at, at + len(piece))
        tokens.append(
            TokenScore(i, i, piece, spelled, span, "text", logprob, i + 1, row and row.entropy, row)
        )
        at += len(piece)
    if tokens:
        tokens[0] = dataclasses.replace(tokens[0], rank=None)
    facts = {**META, "text": text, "tokens": len(data), **meta}
    return Trace(tuple(tokens), distribution(len(data), top_k), facts)


def distribution(i: int, top_k: int) -> TokenDistribution:
    """Candidates with ids from i on and falling probabilities."""
    top = tuple((i + k, -0.5 - k) for k in range(top_k))
    return TokenDistribution(i - 1, top, 9.0, 1.5, sum(math.exp(logprob) for _, logprob in top))


def spelled(pieces: Sequence[str | bytes]) -> Any:
    """id -> bytes, going around at the end of the list."""
    data = [piece if isinstance(piece, bytes) else piece.encode("utf-8", "surrogatepass") for piece in pieces]
    return lambda id: data[id % len(data)]
