"""A scored text as JSON lines, schema `ropechat.trace/1`.

Line 1 describes the text; one line per token follows; then the distribution after the last token (`"next":
true`) and the sums (`"summary": true`). A file with several texts has these lines for each, with `file` in
line 1. Logprobs and entropies are raw (temperature 1, no filter), in nats; fields whose names end in `_bits`,
and `bits`, are in bits. `i` counts the tokens that the model read, from 0, a BOS token and a context
included. `token` and `top_text` are for display; `bytes` and `id` are exact. `span` is a byte range of `text`
in line 1: the given text or, for a chat, the rendered prompt. `role` is text, template (written by the chat
template), special or bos; in a conversation also system, user and assistant. `roles` in line 1 are those that
the sums cover. `ctx` is the number of tokens that a token was scored under; `drafted` marks the accepted
drafts of speculative decoding, which depend on measured times; a long text is scored in windows of `window`
tokens, each `stride` further. `tokens` is null for a long text that is still being read.
`beyond_trained_length` counts the tokens at positions beyond `trained_length`. With strings that are looked
up, tokens and the `next` line have `lookup`: {string: {"ids", "first_logprob", "rank", "logprob"}} of the
string in this place; rank and first_logprob are of its first token, logprob of all of them (null: of several,
and not asked for). With sampler settings line 1 has `sampling`, tokens have `sampler` and the last line has
`producible`, see `stages`. Readers must check the major version in `schema` and ignore fields that they do
not know.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ropechat.inspector.look_up import Found
from ropechat.inspector.scored_text import LN2, ScoredText, Summary
from ropechat.inspector.stages import Producible, sampler_record, settings_record
from ropechat.trace import SUMMED, TokenDistribution, TokenScore, Totals
from ropechat.util.json_lines import finite, json_line

SCHEMA = "ropechat.trace/1"
BytesOf = Callable[[int], bytes]


def _top(row: TokenDistribution | None, bytes_of: BytesOf) -> dict[str, Any]:
    if row is None:
        return {"top": None, "top_text": None, "top_mass": None}
    return {
        "top": [[id, finite(logprob)] for id, logprob in row.top],
        "top_text": [bytes_of(id).decode("utf-8", "replace") for id, _ in row.top],
        "top_mass": finite(row.top_mass),
    }


def meta_record(name: str, meta: Mapping[str, Any]) -> dict[str, Any]:
    """The record of the first line. name: of the file, "" for none."""
    text = meta.get("text")
    data = None if text is None else text.encode("utf-8", "replace")
    return {
        "schema": SCHEMA,
        **({"file": name} if name else {}),
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
        **settings_record(meta.get("sampling")),
        "text_sha256": None if data is None else hashlib.sha256(data).hexdigest(),
        "text": text,
    }


def _looked_up(found: Sequence[Found]) -> dict[str, Any]:
    """The key `lookup`; {} without strings."""
    if not found:
        return {}
    return {
        "lookup": {
            one.text: {
                "ids": list(one.ids),
                "first_logprob": finite(one.first),
                "rank": one.rank,
                "logprob": finite(one.logprob),
            }
            for one in found
        }
    }


def token_record(token: TokenScore, bytes_of: BytesOf, found: Sequence[Found] = ()) -> dict[str, Any]:
    """The record of a token. found: the strings that were looked up in its place."""
    logprob = finite(token.logprob)
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
        "entropy": finite(token.entropy),
        **({"drafted": True} if token.drafted else {}),
        "surprisal_bits": _bits(None if logprob is None else -logprob),
        "entropy_bits": _bits(token.entropy),
        **_top(token.row, bytes_of),
        **_looked_up(found),
        **sampler_record(token),
    }


def next_record(row: TokenDistribution, bytes_of: BytesOf, found: Sequence[Found] = ()) -> dict[str, Any]:
    """The record of the distribution after the last token, with the strings that were looked up."""
    return {
        "next": True,
        "entropy": finite(row.entropy),
        "entropy_bits": _bits(row.entropy),
        **_top(row, bytes_of),
        **_looked_up(found),
    }


def _bits(nats: float | None) -> float | None:
    value = finite(nats)
    return None if value is None else value / LN2


def _sums(sums: Totals) -> dict[str, Any]:
    return {
        "scored": sums.scored,
        "nll": finite(sums.nll),
        "bits": _bits(sums.nll),
        "ppl": finite(sums.ppl),
        "bits_per_byte": finite(sums.bits_per_byte),
    }


def summary_record(summary: Summary, producible: Producible) -> dict[str, Any]:
    """The record of the last line."""
    by_role = {role: _sums(sums) for role, sums in summary.by_role.items()}
    return {
        "summary": True,
        "tokens": summary.counted.tokens,
        **_sums(summary.counted),
        "by_role": by_role,
        **(producible.record() if producible.scored else {}),
    }


def lines(reading: ScoredText, bytes_of: BytesOf) -> Iterator[str]:
    """Yield the lines, with newlines. bytes_of: id -> the bytes of a token."""
    summary, producible = Summary(reading.roles), Producible(reading.roles)
    yield json_line(meta_record(reading.name, reading.meta))
    for token in producible.watch(summary.watch(reading.tokens)):
        yield json_line(token_record(token, bytes_of, reading.found))
    if reading.next is not None:
        yield json_line(next_record(reading.next, bytes_of, reading.looked_up()))
    yield json_line(summary_record(summary, producible))
