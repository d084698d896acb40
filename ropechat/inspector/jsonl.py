"""A trace as JSON lines, schema `ropechat.trace/1`.

Line 1 describes the trace; one line per token follows; the last line is the distribution after the last token
(`"next": true`). Logprobs and entropies are raw (temperature 1, no filter), in nats. `token` is for display;
`bytes` and `id` are exact. `span` is a byte range of `text` in line 1: the given text or, for a chat, the
rendered prompt. `role` is text, template (written by the chat template), special or bos; nll and perplexity
cover text only. `beyond_trained_length` counts the tokens at positions beyond `trained_length`. Readers must
check the major version in `schema`. With sampler settings line 1 has `sampling`, and tokens have `sampler`,
see `ropechat.inspector.stages`.
"""

import json
import math
from collections.abc import Iterator
from typing import Any

from ropechat.inspector.stages import sampler_record, settings_record
from ropechat.trace import TokenDistribution, TokenScore, Trace

SCHEMA = "ropechat.trace/1"


def _number(value: float | None) -> float | None:
    """The number, or None (null) for NaN and infinity, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None


def _top(row: TokenDistribution | None) -> list[list[float | int | None]] | None:
    return None if row is None else [[id, _number(logprob)] for id, logprob in row.top]


def meta_record(trace: Trace) -> dict[str, Any]:
    """The record of the first line."""
    meta = trace.meta
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
        "tokens": len(trace),
        "trained_length": meta.get("trained_length"),
        "beyond_trained_length": trace.beyond_trained_length,
        **settings_record(meta.get("sampling")),
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
        "logprob": logprob,
        "rank": token.rank,
        "entropy": _number(token.entropy),
        "surprisal_bits": None if logprob is None else -logprob / math.log(2),
        "top": _top(token.row),
        "top_mass": None if token.row is None else _number(token.row.top_mass),
        **sampler_record(token),
    }


def next_record(row: TokenDistribution) -> dict[str, Any]:
    """The record of the last line."""
    return {
        "next": True,
        "entropy": _number(row.entropy),
        "top": _top(row),
        "top_mass": _number(row.top_mass),
    }


def lines(trace: Trace) -> Iterator[str]:
    """Yield the lines of the file, without line endings."""
    records = [meta_record(trace), *map(token_record, trace)]
    if trace.next.top or not math.isnan(trace.next.entropy):  # the trace of a draw has no such row
        records.append(next_record(trace.next))
    for record in records:
        yield json.dumps(record, ensure_ascii=False, allow_nan=False)
