"""A trace as JSON lines, schema `ropechat.trace/1`.

Line 1 describes the trace; one line per token follows; the last line is the distribution after the last token
(`"next": true`). Logprobs and entropies are raw (temperature 1, no filter), in nats. `token` is for display;
`bytes` and `id` are exact. `span` is a byte range of `text` in line 1: the given text or, for a chat, the
rendered prompt. `role` is text, template (written by the chat template), special or bos; in a conversation
also system, user and assistant. `roles` in line 1 are those that nll and perplexity cover.
`beyond_trained_length` counts the tokens at positions beyond `trained_length`. `ctx` is the number of tokens
that a token was scored under; a long text is scored in windows of `window` tokens, each `stride` further.
`tokens` is null for a long text that is still being read. Readers must check the major version in `schema`.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from ropechat.trace import SUMMED, Scores, TokenDistribution, TokenScore

SCHEMA = "ropechat.trace/1"


def _number(value: float | None) -> float | None:
    """The number, or None (null) for NaN and infinity, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None


def _top(row: TokenDistribution | None) -> list[list[float | int | None]] | None:
    return None if row is None else [[id, _number(logprob)] for id, logprob in row.top]


def meta_record(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The record of the first line."""
    return {
        "schema": SCHEMA,
        "model": meta.get("model"),
        "revision": meta.get("revision"),
        "dtype": meta.get("dtype"),
        "kv_dtype": meta.get("kv_dtype"),
        "isa": meta.get("isa"),
        "engine": meta.get("engine"),
        "vocab": meta.get("vocab_size"),
        "top_k": meta.get("top_k"),
        "bos": meta.get("bos"),
        "log_base": "e",
        "stage": "raw",
        "tokens": meta.get("tokens"),
        "trained_length": meta.get("trained_length"),
        "beyond_trained_length": meta.get("beyond_trained_length"),
        "window": meta.get("window"),
        "stride": meta.get("stride"),
        "roles": list(meta.get("roles") or SUMMED),
        **({"messages": meta["messages"]} if "messages" in meta else {}),
        "text": meta.get("text"),
    }


def token_record(token: TokenScore) -> dict[str, Any]:
    """The record of a token."""
    logprob = _number(token.logprob)
    return {
        "i": token.index,
        "id": token.id,
        "token": token.text,
        "bytes": list(token.bytes),
        "span": list(token.span),
        "role": token.role,
        "ctx": token.context,
        "logprob": logprob,
        "rank": token.rank,
        "entropy": _number(token.entropy),
        "surprisal_bits": None if logprob is None else -logprob / math.log(2),
        "top": _top(token.row),
        "top_mass": None if token.row is None else _number(token.row.top_mass),
    }


def next_record(row: TokenDistribution) -> dict[str, Any]:
    """The record of the last line."""
    return {
        "next": True,
        "entropy": _number(row.entropy),
        "top": _top(row),
        "top_mass": _number(row.top_mass),
    }


def lines(scores: Scores) -> Iterator[str]:
    """Yield the lines of the file, without line endings, as the scores come."""
    yield _line(meta_record(scores.meta))
    for token in scores:
        yield _line(token_record(token))
    if scores.next is not None:
        yield _line(next_record(scores.next))


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False)
