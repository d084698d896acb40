"""A scored text as records, one per token: as JSON lines, schema `ropechat.trace/1`, and as CSV.

JSON lines: line 1 describes the text; one line per token follows; then the distribution after the last token
(`"next": true`) and the sums (`"summary": true`). A file with several texts has these lines for each, with
`file` in line 1. Logprobs and entropies are raw (temperature 1, no filter), in nats; fields whose names end
in `_bits`, and `bits`, are in bits. `varentropy`, the variance of the log probability over the vocabulary, is
in nats^2, `varentropy_bits2` in bits^2; both are null without candidates (`top_k` 0). `i` counts the tokens
that the model read, from 0, a BOS token and a context included. `token` and `top_text` are for display;
`bytes` and `id` are exact. `span` is a byte range of `text` in line 1: the given text or, for a chat, the
rendered prompt. `role` is text, template (written by the chat template), special or bos; in a conversation
also system, user and assistant. `roles` in line 1 are those that the sums cover. `ctx` is the number of
tokens that a token was scored under; `drafted` marks the accepted drafts of speculative decoding, which
depend on measured times; a long text is scored in windows of `window` tokens, each `stride` further. `tokens`
is null for a long text that is still being read. `beyond_trained_length` counts the tokens at positions
beyond `trained_length`. With strings that are looked up, tokens and the `next` line have `lookup`: {string:
{"ids", "first_logprob", "rank", "logprob"}} of the string in this place; rank and first_logprob are of its
first token, logprob of all of them (null: of several, and not asked for). With sampler settings line 1 has
`sampling`, tokens have `sampler` and the last line has `producible`, see `stages`. Readers must check the
major version in `schema` and ignore fields that they do not know.

CSV (RFC 4180, UTF-8, a header line), for spreadsheets and data frames: a row per token, with the columns
COLUMNS and `file`. No cell has a line break: texts of tokens are marks there (a space is ·), `bytes` are hex.
Then top1_id, top1_token, top1_logprob and so on for each candidate; lookup1_string, lookup1_first_logprob,
lookup1_rank, lookup1_logprob and so on for each string that is looked up, and then a last row with the role
"next" for the place after the text; with stages of the sampler SAMPLER, and for each stage, such as top_p,
top_p_kept, top_p_mass and top_p_entropy; also top_n_sigma_value and xtc_value.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ropechat.inspector.look_up import Found
from ropechat.inspector.made_up_ids import real
from ropechat.inspector.scored_text import LN2, ScoredText, Summary
from ropechat.inspector.stages import Producible, sampler_record, settings_record
from ropechat.trace import SUMMED, TokenDistribution, TokenScore, Totals
from ropechat.util.records import ByteValues, Csv, TokenText, cell, cells, finite, json_line

SCHEMA = "ropechat.trace/1"
COLUMNS = (
    *("file", "i", "id", "token", "bytes", "start", "end", "role"),
    *("logprob", "surprisal_bits", "rank", "entropy", "entropy_bits", "varentropy", "varentropy_bits2"),
)
SAMPLER = ("cut", "sampler_rank", "sampler_p", "interval_start", "interval_end", "u")
"""The stage that cut the token, its rank after bias and penalties, its probability at the draw, and so on."""
_CANDIDATE = ("id", "token", "logprob")
_STRING = ("string", "first_logprob", "rank", "logprob")
_STAGE = ("kept", "mass", "entropy")
_WITH_VALUE = ("top_n_sigma", "xtc")
_FACTS = ("model", "revision", "dtype", "kv_dtype", "isa", "engine")
_LENGTHS = ("tokens", "trained_length", "beyond_trained_length", "window", "stride")
BytesOf = Callable[[int], bytes]


def meta_record(name: str, meta: Mapping[str, Any]) -> dict[str, Any]:
    """The record of the first line. name: of the file, "" for none."""
    text = meta.get("text")
    data = None if text is None else text.encode("utf-8", "replace")
    return {
        "schema": SCHEMA,
        **({"file": name} if name else {}),
        **{fact: meta.get(fact) for fact in _FACTS},
        "vocab": meta.get("vocab_size"),
        "top_k": meta.get("top_k"),
        "bos": meta.get("bos"),
        "log_base": "e",
        "stage": meta.get("stage") or "raw",
        **{fact: meta.get(fact) for fact in _LENGTHS},
        "roles": list(meta.get("roles") or SUMMED),
        **({"messages": meta["messages"]} if "messages" in meta else {}),
        **settings_record(meta.get("sampling")),
        "text_sha256": None if data is None else hashlib.sha256(data).hexdigest(),
        "text": text,
    }


def token_record(token: TokenScore, bytes_of: BytesOf, found: Sequence[Found] = ()) -> dict[str, Any]:
    """The record of a token. found: the strings that were looked up in its place."""
    logprob, entropy = finite(token.logprob), finite(token.entropy)
    return {
        "i": token.index,
        "id": real(token.id),
        "token": TokenText(token.bytes),
        "bytes": ByteValues(token.bytes),
        "span": token.span,
        "role": token.role,
        "ctx": token.context,
        "logprob": logprob,
        "rank": token.rank,
        "entropy": entropy,
        **({"drafted": True} if token.drafted else {}),
        "surprisal_bits": None if logprob is None else -logprob / LN2,
        "entropy_bits": _bits(entropy),
        **_varentropy(token.row),
        **_top(token.row, bytes_of),
        **_looked_up(found),
        **sampler_record(token),
    }


def next_record(row: TokenDistribution, bytes_of: BytesOf, found: Sequence[Found] = ()) -> dict[str, Any]:
    """The record of the distribution after the last token, with the strings that were looked up."""
    entropy = finite(row.entropy)
    more = {**_varentropy(row), **_top(row, bytes_of), **_looked_up(found)}
    return {"next": True, "entropy": entropy, "entropy_bits": _bits(entropy), **more}


def summary_record(summary: Summary, producible: Producible) -> dict[str, Any]:
    """The record of the last line."""
    return {
        "summary": True,
        "tokens": summary.counted.tokens,
        **_sums(summary.counted),
        "by_role": {role: _sums(sums) for role, sums in summary.by_role.items()},
        **(producible.record() if producible.scored else {}),
    }


def _varentropy(row: TokenDistribution | None) -> dict[str, float | None]:
    found = None if row is None else finite(row.varentropy)
    return {"varentropy": found, "varentropy_bits2": None if found is None else found / LN2**2}


def _top(row: TokenDistribution | None, bytes_of: BytesOf) -> dict[str, Any]:
    if row is None:
        return {"top": None, "top_text": None, "top_mass": None}
    return {
        "top": [[real(id), finite(logprob)] for id, logprob in row.top],
        "top_text": [TokenText(bytes_of(id)) for id, _ in row.top],
        "top_mass": finite(row.top_mass),
    }


def _looked_up(found: Sequence[Found]) -> dict[str, Any]:
    """The key `lookup`; {} without strings."""
    numbers = {
        one.text: {
            "ids": one.ids,
            "first_logprob": finite(one.first),
            "rank": one.rank,
            "logprob": finite(one.logprob),
        }
        for one in found
    }
    return {"lookup": numbers} if found else {}


def _bits(nats: float | None) -> float | None:
    return None if nats is None else nats / LN2


def _sums(sums: Totals) -> dict[str, Any]:
    bits, per_byte = sums.nll / LN2, sums.bits_per_byte
    return {"scored": sums.scored, "nll": sums.nll, "bits": bits, "ppl": sums.ppl, "bits_per_byte": per_byte}


def json_lines(text: ScoredText) -> Iterator[str]:
    """Yield the lines of a text, with newlines."""
    yield json_line(meta_record(text.name, text.meta))
    for token in text:
        yield json_line(token_record(token, text.bytes_of, text.found))
    if text.next is not None:
        yield json_line(next_record(text.next, text.bytes_of, text.looked_up()))
    yield json_line(summary_record(text.summary, text.producible))


def csv_lines(texts: Iterable[ScoredText], top_k: int, strings: int = 0) -> Iterator[str]:
    """Yield the lines, with line ends. top_k: candidates per token. strings: looked up in each place."""
    tops = [f"top{place}_{name}" for place in range(1, top_k + 1) for name in _CANDIDATE]
    tops += [f"lookup{place}_{name}" for place in range(1, strings + 1) for name in _STRING]
    out: Csv | None = None
    waiting: list[dict[str, Any]] = []
    for text in texts:
        for token in text:
            row = {"file": text.name, **_row(token_record(token, text.bytes_of, text.found), top_k)}
            waiting.append(row)
            if out is None and token.outcome is None and token.logprob is None:
                continue  # a token with a score has stages if any token has
            if out is None:
                stages = [
                    f"{stage.name}_{name}"
                    for stage in token.stages
                    for name in (*_STAGE, *(("value",) if stage.name in _WITH_VALUE else ()))
                ]
                out = Csv([*COLUMNS, *tops, *(SAMPLER if token.outcome is not None else ()), *stages])
                yield out.head
            yield from map(out.line, waiting)
            waiting.clear()
        if out is None:
            out = Csv([*COLUMNS, *tops])
            yield out.head
            yield from map(out.line, waiting)
            waiting.clear()
        if strings and text.next is not None:
            row = _row(next_record(text.next, text.bytes_of, text.looked_up()), 0)
            yield out.line({**row, "file": text.name, "i": text.next.position + 1, "role": "next"})


def _row(record: dict[str, Any], top_k: int) -> dict[str, Any]:
    """The cells of a record."""
    sampler = record.pop("sampler", None)
    row, lookup = cells(record), record.get("lookup", {})
    candidates = zip(record["top"][:top_k], record["top_text"], strict=False) if record["top"] else ()
    for place, ((id, logprob), text) in enumerate(candidates, 1):
        row[f"top{place}_id"], row[f"top{place}_token"], row[f"top{place}_logprob"] = id, cell(text), logprob
    for place, (text, numbers) in enumerate(lookup.items(), 1):
        row |= _numbered(f"lookup{place}", {"string": TokenText(text.encode()), **numbers})
    if sampler is not None:
        row |= {"cut": sampler["cut"], "sampler_rank": sampler["rank"], "sampler_p": sampler["p"]}
        row |= dict(zip(SAMPLER[3:5], sampler["interval"] or (), strict=False)) | {"u": sampler["u"]}
        for stage in sampler["stages"]:
            row |= _numbered(stage["name"], stage)
    return row


def _numbered(name: str, values: dict[str, Any]) -> dict[str, Any]:
    return cells({name: values})
