"""A comparison as JSON lines, schema `ropechat.compare/1`, and as CSV.

JSONL: line 1 describes the comparison; one line per compared token, or per span where the tokenizers differ;
for spans then one per line of the text; the last line is the summary (`"summary": true`). `i` is that of
`inspect`: the place among the tokens that `a` reads, its prompt and BOS included; spans are counted from 0.
Logprobs, entropies and divergences are raw (temperature 1, no filter) and in nats, surprisals of spans in
bits, as are fields whose names end in `_bits`. `span` is a byte range of `text` in line 1. `kl` is from `a`
to `b`, `kl_back` the other way round. An infinite number is null: `kl` is, where `b` excludes a token that
`a` does not. Readers must check the major version in `schema`.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ropechat.inspector.compare import Comparison, Summary, TokenPair, View
from ropechat.inspector.compare_spans import SpanComparison, SpanPair, SpanSummary
from ropechat.inspector.compare_text import Pairing, side_facts
from ropechat.inspector.scored_text import LN2
from ropechat.util.records import Csv, TokenText, cells, json_line

SCHEMA = "ropechat.compare/1"
_TOKEN_COLUMNS = (
    *(
        "i",
        "start",
        "end",
        "id",
        "token",
        "kl",
        "kl_back",
        "js",
        "kl_bits",
        "kl_back_bits",
        "js_bits",
        "same_top",
    ),
    *(f"{name}_{side}" for side in "ab" for name in ("logprob", "rank", "entropy", "best", "best_logprob")),
)
_SPAN_COLUMNS = ("i", "start", "end", "text", "bits_a", "bits_b", "difference", "tokens_a", "tokens_b")


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
        "token": _token_text(pairing, pair.id),
        "span": pair.span,
        "kl": pair.kl,
        "kl_back": pair.kl_back,
        "js": pair.js,
        **{f"{name}_bits": getattr(pair, name) / LN2 for name in ("kl", "kl_back", "js")},
        "same_top": pair.same_top,
        "a": _view_record(pairing, pair.a, pair.context[0]),
        "b": _view_record(pairing, pair.b, pair.context[1]),
    }


def span_record(pairing: Pairing, pair: SpanPair) -> dict[str, Any]:
    """The record of a common span."""
    return {"i": pair.number, "token": TokenText(pairing.text[slice(*pair.span)]), **_span_fields(pair)}


def line_record(pair: SpanPair) -> dict[str, Any]:
    return {"line": pair.number, **_span_fields(pair)}


def summary_record(summary: Summary | SpanSummary) -> dict[str, Any]:
    """The record of the last line."""
    if isinstance(summary, Summary):
        return {"summary": True, **asdict(summary)}
    names = ("tokens", "bits", "bits_per_byte", "ppl_per_byte", "ppl")
    sides = {side: {name: getattr(summary, name)[at] for name in names} for at, side in enumerate("ab")}
    return {"summary": True, "bytes": summary.bytes, "spans": summary.spans, **sides}


class Lines:
    """The lines of a comparison in a form, jsonl or csv: `head`, one per token or span, `rest`."""

    def __init__(self, pairing: Pairing, form: str, window: int | None) -> None:
        self._pairing = pairing
        self._csv = (
            Csv(_TOKEN_COLUMNS if pairing.shared else _SPAN_COLUMNS, end="\n") if form == "csv" else None
        )
        self.head = json_line(meta_record(pairing, window)) if self._csv is None else self._csv.head

    def token(self, pair: TokenPair) -> str:
        """The line of a token."""
        record = token_record(self._pairing, pair)
        if self._csv is None:
            return json_line(record)
        for side in (record["a"], record["b"]):
            (_, logprob), *_ = side["top"]
            side |= {"best": side["top_text"][0], "best_logprob": logprob}
        return self._csv.line(cells(record))

    def rest(self, result: Comparison | SpanComparison) -> Iterator[str]:
        """The lines after the tokens: of spans and lines, and in JSON the summary."""
        if isinstance(result, SpanComparison):
            for pair in result.spans:
                record = span_record(self._pairing, pair)
                if self._csv is None:
                    yield json_line(record)
                else:
                    yield self._csv.line(cells({**record, "text": record["token"]}))
        if self._csv is None:
            if isinstance(result, SpanComparison):
                yield from (json_line(line_record(pair)) for pair in result.lines)
            yield json_line(summary_record(result.summary))


def _token_text(pairing: Pairing, id: int) -> TokenText:
    return TokenText(pairing.a.engine.token_bytes(id))


def _span_fields(pair: SpanPair) -> dict[str, Any]:
    sides = zip("ab", pair.bits, pair.tokens, strict=True)
    return {
        "span": pair.span,
        "difference": pair.difference,
        **{name: {"bits": bits, "tokens": tokens} for name, bits, tokens in sides},
    }


def _side_record(pairing: Pairing, place: int) -> dict[str, Any]:
    side = (pairing.a, pairing.b)[place]
    return {**side_facts(side), "tokens": len(side.ids), "prompt_tokens": side.first}


def _view_record(pairing: Pairing, view: View, context: int) -> dict[str, Any]:
    return {
        "logprob": view.logprob,
        "rank": view.rank,
        "entropy": view.entropy,
        "ctx": context,
        "top": view.top,
        "top_text": [_token_text(pairing, id) for id, _ in view.top],
    }
