"""A comparison as JSON lines, schema `ropechat.compare/1`, and as CSV.

JSONL: line 1 describes the comparison; one line per compared token, or per span where the tokenizers differ;
for spans then one per line of the text; the last line is the summary (`"summary": true`). `i` is that of
`inspect`: the place among the tokens that `a` reads, its prompt and BOS included; spans are counted from 0.
Logprobs, entropies and divergences are raw (temperature 1, no filter) and in nats, surprisals of spans in
bits. `span` is a byte range of `text` in line 1. `kl` is from `a` to `b`, `kl_back` the other way round. An
infinite number is null: `kl` is, where `b` excludes a token that `a` does not. Readers must check the major
version in `schema`.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ropechat.inspector.compare import Summary, TokenPair, View
from ropechat.inspector.compare_spans import SpanPair, SpanSummary
from ropechat.inspector.compare_text import Pairing, side_facts
from ropechat.util.json_lines import finite
from ropechat.util.text import visible

SCHEMA = "ropechat.compare/1"
_SIDE_COLUMNS = ("logprob", "rank", "entropy", "best", "best_logprob")
TOKEN_COLUMNS = (
    *("i", "start", "end", "id", "token", "kl", "kl_back", "js", "same_top"),
    *(f"{name}_{side}" for side in "ab" for name in _SIDE_COLUMNS),
)
SPAN_COLUMNS = ("i", "start", "end", "text", "bits_a", "bits_b", "difference", "tokens_a", "tokens_b")


def meta_record(pairing: Pairing, window: int | None) -> dict[str, Any]:
    """The record of the first line."""
    return {
        "schema": SCHEMA,
        "by": "token" if pairing.shared else "span",
        "a": _side_record(pairing, 0),
        "b": _side_record(pairing, 1),
        "log_base": "e",
        "stage": "raw",
        "window": window,
        "stride": None if window is None else max(1, window // 2),
        "text": pairing.text.decode("utf-8", "replace"),
    }


def token_record(pairing: Pairing, pair: TokenPair) -> dict[str, Any]:
    return {
        "i": pair.number,
        "id": pair.id,
        "token": token_text(pairing, pair.id),
        "span": list(pair.span),
        "kl": finite(pair.kl),
        "kl_back": finite(pair.kl_back),
        "js": finite(pair.js),
        "same_top": pair.same_top,
        "a": _view_record(pairing, pair.a, pair.context[0]),
        "b": _view_record(pairing, pair.b, pair.context[1]),
    }


def span_record(pairing: Pairing, pair: SpanPair) -> dict[str, Any]:
    """The record of a common span."""
    return {"i": pair.number, "token": span_text(pairing, pair), **_span_fields(pair)}


def line_record(pairing: Pairing, pair: SpanPair) -> dict[str, Any]:
    return {"line": pair.number, **_span_fields(pair)}


def summary_record(summary: Summary | SpanSummary) -> dict[str, Any]:
    """The record of the last line."""
    if isinstance(summary, Summary):
        return {"summary": True, **{name: finite(value) for name, value in asdict(summary).items()}}
    pairs = {
        "tokens": summary.tokens,
        "bits": summary.bits,
        "bits_per_byte": summary.bits_per_byte,
        "ppl_per_byte": summary.ppl_per_byte,
        "ppl": summary.ppl,
    }
    sides = {name: {key: finite(values[i]) for key, values in pairs.items()} for i, name in enumerate("ab")}
    return {"summary": True, "bytes": summary.bytes, "spans": summary.spans, **sides}


def token_row(pairing: Pairing, pair: TokenPair) -> list[Any]:
    """The values of TOKEN_COLUMNS. Tokens are for display (a space is ·), so no cell has a line break."""
    row: list[Any] = [pair.number, *pair.span, pair.id, _shown(pairing, pair.id)]
    row += [pair.kl, pair.kl_back, pair.js, int(pair.same_top)]
    for view in (pair.a, pair.b):
        id, logprob = view.top[0]
        row += [view.logprob, view.rank, view.entropy, _shown(pairing, id), logprob]
    return row


def span_row(pairing: Pairing, pair: SpanPair) -> list[Any]:
    """The values of SPAN_COLUMNS."""
    shown = visible(pairing.text[slice(*pair.span)])
    return [pair.number, *pair.span, shown, *pair.bits, pair.difference, *pair.tokens]


def csv_line(row: Sequence[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(row)
    return line.getvalue()


def token_text(pairing: Pairing, id: int) -> str:
    """The bytes of a token as text; an incomplete character becomes U+FFFD."""
    return pairing.a.engine.token_bytes(id).decode("utf-8", "replace")


def span_text(pairing: Pairing, pair: SpanPair) -> str:
    """The bytes of a span as text."""
    return pairing.text[slice(*pair.span)].decode("utf-8", "replace")


def _shown(pairing: Pairing, id: int) -> str:
    return visible(pairing.a.engine.token_bytes(id))


def _span_fields(pair: SpanPair) -> dict[str, Any]:
    sides = zip("ab", pair.bits, pair.tokens, strict=True)
    return {
        "span": list(pair.span),
        "difference": finite(pair.difference),
        **{name: {"bits": finite(bits), "tokens": tokens} for name, bits, tokens in sides},
    }


def _side_record(pairing: Pairing, place: int) -> dict[str, Any]:
    side = (pairing.a, pairing.b)[place]
    return {**side_facts(side), "tokens": len(side.ids), "prompt_tokens": side.first}


def _view_record(pairing: Pairing, view: View, context: int) -> dict[str, Any]:
    return {
        "logprob": finite(view.logprob),
        "rank": view.rank,
        "entropy": finite(view.entropy),
        "ctx": context,
        "top": [[id, finite(logprob)] for id, logprob in view.top],
        "top_text": [token_text(pairing, id) for id, _ in view.top],
    }
