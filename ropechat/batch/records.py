"""The records of a run: what a row's completions or its error become."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ropechat.batch.journal import INTERNAL
from ropechat.batch.line import CHAT, LineRequest
from ropechat.batch.reader import BatchRow
from ropechat.engine.scheduler import Completion, ScoredId
from ropechat.errors import RopechatError, UnsureError
from ropechat.sampling.grammar import Grammar

if TYPE_CHECKING:
    from ropechat.inspector.unsure import Unsure

_OWN = ("input", "endpoint", *INTERNAL)
"""Fields of a record that are of its row, not of the answer."""
BytesOf = Callable[[int], bytes]


def token_records(completion: Completion, count: int, bytes_of: BytesOf) -> list[dict[str, Any]]:
    """A completion's tokens: {"id", "token", "bytes", "logprob", "top": [[id, logprob, text], ...]}."""
    tops = completion.top or ((),) * len(completion.ids)
    return [
        token_record(id, logprob, top, count, bytes_of)
        for id, logprob, top in zip(completion.ids, completion.logprobs, tops, strict=True)
    ]


def token_record(
    id: int, logprob: float | None, top: Sequence[tuple[int, float]], count: int, bytes_of: BytesOf
) -> dict[str, Any]:
    """One token, as in `token_records`. count: of the candidates; 0 has no "top"."""
    data = bytes_of(id)
    token: dict[str, Any] = {
        "id": id,
        "token": data.decode("utf-8", "replace"),
        "bytes": list(data),
        "logprob": logprob,
    }
    if count:
        token["top"] = [[other, value, bytes_of(other).decode("utf-8", "replace")] for other, value in top]
    return token


def scored_records(scores: Sequence[ScoredId], count: int, bytes_of: BytesOf) -> list[dict[str, Any]]:
    """The tokens of a prompt likewise; the first one has no context, and None as its logprob."""
    return [token_record(id, logprob, top[:count], count, bytes_of) for id, logprob, _, top in scores]


def answer_of(
    completion: Completion, logprobs: int | None, bytes_of: BytesOf, grammar: Grammar | None
) -> dict[str, Any]:
    """The fields of a record that a completion determines."""
    thought = completion.reasoning_tokens
    answer: dict[str, Any] = {
        "text": completion.text,
        **({"reasoning": completion.reasoning} if thought else {}),
        **({} if grammar is None or not grammar.is_json else {"parsed": grammar.parse(completion.text)}),
        **completion.certainty,
        "finish_reason": completion.finish_reason,
        "usage": {
            "prompt_tokens": completion.prompt_tokens,
            "completion_tokens": completion.completion_tokens,
            **({"reasoning_tokens": thought} if thought else {}),
        },
        "seed": completion.seed,
    }
    if logprobs is not None:
        tokens = token_records(completion, logprobs, bytes_of)
        answer["logprobs"] = tokens[thought:]
        if thought:
            answer["reasoning_logprobs"] = tokens[:thought]
    return answer


def prompt_text(request: LineRequest, bytes_of: BytesOf) -> str:
    """The prompt of a row of /v1/completions, a text or ids, as text."""
    if isinstance(request.content, str):
        return request.content
    ids = [part for part in request.content if isinstance(part, int)]
    return b"".join(map(bytes_of, ids)).decode("utf-8", "replace")


def ok_record(
    row: BatchRow,
    sample: int,
    completions: Sequence[Completion],
    logprobs: int | None,
    bytes_of: BytesOf,
    grammar: Grammar | None = None,
    scores: Sequence[ScoredId] = (),
) -> dict[str, Any]:
    """The record of an answered row. completions: one per turn, with the last one's text.

    grammar: what the answers had to match; of JSON, "parsed" has the value, null if it was cut. scores: of
    the prompt, if that is echoed with logprobs.
    """
    answers = [answer_of(completion, logprobs, bytes_of, grammar) for completion in completions]
    record = {"id": row.id, "index": row.index, "sample": sample, "ok": True, **answers[-1]}
    if row.request is not None and row.request.echo:
        record["text"] = prompt_text(row.request, bytes_of) + record["text"]
    if scores:
        record["logprobs"] = [*scored_records(scores, logprobs or 0, bytes_of), *record["logprobs"]]
    if len(answers) > 1:
        record["usage"] = {
            name: sum(answer["usage"].get(name, 0) for answer in answers)
            for name in {**answers[-1]["usage"], **answers[0]["usage"]}
        }
        record |= {"seed": answers[0]["seed"], "turns": answers}
    return finish_record(record, row, sum(completion.cached_tokens for completion in completions))


def unsure_record(
    record: Mapping[str, Any], row: BatchRow, unsure: "Sequence[Unsure]", below: float
) -> dict[str, Any]:
    """The record of an answer with unsure parts: a failed one that keeps the answer."""
    more = f" and {len(unsure) - 1:,} more" if len(unsure) > 1 else ""
    message = f"{row.place}unsure: below {below:g}: {unsure[0].line}{more}"
    found = {"ok": False, "error": {"class": UnsureError.__name__, "message": message}}
    return {**record, **found, "unsure": [part.record for part in unsure]}


def error_record(row: BatchRow, sample: int, error: RopechatError) -> dict[str, Any]:
    """The record of a failed row."""
    message = str(error)
    record = {
        "id": row.id,
        "index": row.index,
        "sample": sample,
        "ok": False,
        "error": {
            "class": type(error).__name__,
            "message": message if message.startswith(row.place) else f"{row.place}{message}",
        },
    }
    return finish_record(record, row, 0)


def finish_record(record: dict[str, Any], row: BatchRow, cached: int) -> dict[str, Any]:
    """The record with the row's kept fields, and what the journal needs. cached: tokens from the cache."""
    if row.kept is not None:
        record["input"] = dict(row.kept)
    if row.request is not None and row.request.endpoint != CHAT:
        record["endpoint"] = row.request.endpoint
    return {**record, "req": row.request_hash, "cached_tokens": cached}


def copy_record(record: Mapping[str, Any], row: BatchRow) -> dict[str, Any]:
    """The record of a row whose request is that of another row's record. Nothing of it was computed."""
    made = {name: value for name, value in record.items() if name not in _OWN}
    made |= {"id": row.id, "index": row.index}
    if not record["ok"]:
        _, _, message = record["error"]["message"].removeprefix(row.file_place).partition(": ")
        made["error"] = {**record["error"], "message": f"{row.place}{message}"}
    return finish_record(made, row, tokens_of(record)[0])


def samples_of(request: LineRequest | None, samples: int) -> int:
    """How many answers a row gets; a row with an error has one record."""
    if request is None:
        return 1
    return samples if request.samples is None else request.samples


def tokens_of(record: Mapping[str, Any]) -> tuple[int, int, int]:
    """(prompt, cached, new) tokens of a journal's record; of a scored row, the scored ones are new."""
    scored = record.get("scores", [record] if "tokens" in record else [])
    usage = record.get("usage") or {
        "prompt_tokens": 0,
        "completion_tokens": sum(score["tokens"] for score in scored),
    }
    return usage["prompt_tokens"], record.get("cached_tokens", 0), usage["completion_tokens"]
