"""The fields of each format: what OpenAI, vLLM, llama.cpp, Ollama, lm-evaluation-harness and batch write.

Sources: OpenAI's API reference (chat and completions objects, chunks, responses), vLLM's `prompt_logprobs`,
the README of llama.cpp's server (`completion_probabilities`), Ollama's API reference, and the samples that
lm-evaluation-harness writes with --log_samples.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple, TypeGuard

from ropechat.inspector.others.answer import (
    PROMPT,
    Candidate,
    Token,
    bytes_of,
    id_of,
    log_of_share,
    natural_log,
    spelled,
)
from ropechat.util.fields import Field
from ropechat.util.text import replace_surrogates


class Part(NamedTuple):
    """What a record has of an answer, all of it or a chunk. key: which answer of the record.

    label: for a reader, "" for the only one. finished: whether no more of it follows. facts: as `Trace.meta`.
    """

    key: str
    label: str
    tokens: list[Token]
    finished: bool
    facts: dict[str, Any]


class Found(NamedTuple):
    """A record. stream: records with the same one are chunks of the same answers. asked: what gives logprobs.

    labelled: whether the labels tell answers of all records apart.
    """

    stream: str
    parts: list[Part]
    asked: str
    labelled: bool = False


class Format(NamedTuple):
    """A format. has: whether a record is of it."""

    program: str
    has: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Field], Found]


# ---- OpenAI's API, which vLLM, llama.cpp and others serve too


def _listed(tokens: Field) -> list[Token]:
    """Tokens as objects, of chats, responses and Ollama."""
    return list(map(_object, tokens.optional_items()))


def _object(token: Field) -> Token:
    """A token with token, logprob, bytes and top_logprobs."""
    return Token(
        spelled(token.of("token"), token.of("bytes")),
        natural_log(token.of("logprob")),
        tuple(_candidates(token.of("top_logprobs"))),
        id_of(token.of("id")),
    )


def _candidates(tops: Field) -> Iterator[Candidate]:
    for one in tops.optional_items():
        logprob = natural_log(one.of("logprob"))
        if logprob is not None:
            yield Candidate(spelled(one.of("token"), one.of("bytes")), logprob, id_of(one.of("id")))


def _parallel(logprobs: Field) -> list[Token]:
    """Tokens as lists of texts, logprobs and candidates by text: of completions."""
    texts, values = logprobs.of("tokens").items(), logprobs.of("token_logprobs").items()
    tops = logprobs.of("top_logprobs").optional_items()
    for other, name in ((values, "token_logprobs"), (tops, "top_logprobs")):
        if len(other) != len(texts) and (other or name == "token_logprobs"):
            raise logprobs.of(name).fail(f"a list of {len(texts)}, as `tokens` has")
    return [
        Token(
            spelled(text),
            natural_log(value),
            () if top is None else tuple(_by_text(top)),
            may_be_extra=True,
        )
        for text, value, top in zip_longest(texts, values, tops)
    ]


def _by_text(top: Field) -> Iterator[Candidate]:
    for name in [] if top.value is None else top.names():
        logprob = natural_log(top.of(name))
        if logprob is not None:
            yield Candidate(bytes_of(name), logprob)


def _openai(record: Field) -> Found:
    parts = []
    choices = record.of("choices").items()
    for place, choice in enumerate(choices):
        index = choice.of("index").count() if choice.of("index").value is not None else place
        before = choice.of("prompt_logprobs")
        before = record.of("prompt_logprobs") if before.value is None else before
        ids = choice.of("prompt_token_ids")
        ids = record.of("prompt_token_ids") if ids.value is None else ids
        tokens = [] if before.value is None else _prompt(before, ids)
        logprobs = choice.of("logprobs")
        if logprobs.value is not None:
            content = logprobs.of("content")
            content = logprobs.of("refusal") if content.value is None else content
            answer = _listed(content) if logprobs.of("tokens").value is None else _parallel(logprobs)
            tokens = [one._replace(role=PROMPT) for one in tokens] if answer else tokens
            tokens += answer
        label = f"choice {index}" if index or len(choices) > 1 else ""
        finished = choice.of("finish_reason").value is not None or choice.of("message").value is not None
        program = "vLLM" if before.value is not None else "OpenAI"
        parts.append(Part(str(index), label, tokens, finished, _facts(record, program)))
    text = record.of("object").value == "text_completion"
    asked = "logprobs: 5" if text else "logprobs: true, top_logprobs: 5"
    return Found(f"openai {record.of('id').value!r:.200}", parts, asked)


def _facts(record: Field, program: str, **more: Any) -> dict[str, Any]:
    return {"model": _shown(record.of("model")), "engine": program, **more}


def _shown(name: Field) -> str | None:
    """A name or number of a record, for labels; None for null."""
    return None if name.value is None else replace_surrogates(f"{name.value!s:.80}")


def _prompt(places: Field, ids: Field) -> list[Token]:
    """vLLM's prompt_logprobs: for each token of the prompt its best candidates and itself, by id.

    The token itself is the first of them, unless prompt_token_ids names it.
    """
    known = [one.count(required=True) for one in ids.optional_items()]
    items = places.items()
    if known and len(known) != len(items):
        raise ids.fail(f"a list of {len(items)}, as `prompt_logprobs` has")
    found, in_order = [], bool(known)
    spellings = dict[int, bytes]()
    for at, place in enumerate(items):
        if place.value is None:
            found.append(Token(b"", None, (), known[at] if known else None))
            continue
        top, ranks = [], dict[int, int | None]()
        for name in place.names():
            id, one = _id_of_name(place, name), place.of(name)
            logprob, rank = natural_log(one.of("logprob")), one.of("rank")
            ranks[id] = None if rank.value is None else rank.count()
            text = one.of("decoded_token")
            spellings[id] = b"" if text.value is None else spelled(text)
            top.append((id, logprob))
        own = known[at] if known else top[0][0] if top else -1
        if own not in ranks:
            raise place.fail(f"an object with the token itself, {own}" if known else "an object with a token")
        in_order = in_order or len(top) == 1 or ranks[own] != 1
        best = tuple(Candidate(spellings[id], value, id) for id, value in top if value is not None)
        logprob = dict(top)[own]
        found.append(Token(spellings[own], logprob, best, own, ranks[own]))
    if len(items) > 2 and not in_order:  # each is the likeliest: the candidates were sorted on the way
        raise places.fail("in vLLM's order, each token before its candidates; ask for return_token_ids: true")
    return [
        one._replace(data=spellings.get(one.id or 0, b"")) if one.logprob is None and not one.top else one
        for one in found
        if one.id is not None
    ]


def _id_of_name(place: Field, name: str) -> int:
    if not (name.isascii() and name.isdecimal()) or len(name) > 15:
        raise place.fail(f"an object with token ids as names, not {name!r:.40}")
    return int(name)


def _responses(record: Field) -> Found:
    tokens = []
    for item in record.of("output").items():
        for part in item.of("content").optional_items() if item.of("type").value == "message" else ():
            tokens += _listed(part.of("logprobs"))
    asked = 'include: ["message.output_text.logprobs"]'
    return Found("", [Part("0", "", tokens, True, _facts(record, "OpenAI"))], asked)


# ---- llama.cpp's server, Ollama


def _llama_cpp(record: Field) -> Found:
    tokens, sampled = [], False
    for one in record.of("completion_probabilities").optional_items():
        if one.of("probs").value is not None:  # before December 2024, after the sampler
            text = one.of("content")
            top = [
                Candidate(spelled(each.of("tok_str")), log_of_share(each.of("prob")))
                for each in one.of("probs").items()
            ]
            own = next((each.logprob for each in top if each.data == spelled(text)), None)
            tokens.append(Token(spelled(text), own, tuple(top)))
            sampled = True
        elif one.of("prob").value is not None:  # post_sampling_probs
            top = [
                Candidate(
                    spelled(each.of("token"), each.of("bytes")),
                    log_of_share(each.of("prob")),
                    id_of(each.of("id")),
                )
                for each in one.of("top_probs").optional_items()
            ]
            data = spelled(one.of("token"), one.of("bytes"))
            tokens.append(Token(data, log_of_share(one.of("prob")), tuple(top), id_of(one.of("id"))))
            sampled = True
        else:
            tokens.append(_object(one))
    index = record.of("index").count()
    facts = _facts(record, "llama.cpp", stage="sampled" if sampled else "raw")
    finished = record.of("stop").value is not False
    return Found(
        "llama.cpp",
        [Part(str(index), f"prompt {index}" if index else "", tokens, finished, facts)],
        "n_probs: 5",
    )


def _ollama(record: Field) -> Found:
    part = Part(
        "0",
        "",
        _listed(record.of("logprobs")),
        record.of("done").value is not False,
        _facts(record, "Ollama"),
    )
    return Found("ollama", [part], "logprobs: true, top_logprobs: 5")


# ---- samples of lm-evaluation-harness, records of ropechat batch


def _lm_eval(record: Field) -> Found:
    """A part for each request of a document, whose answer is one token: the harness keeps sums only."""
    arguments, responses = record.of("arguments"), record.of("resps").items()
    if isinstance(arguments.value, dict):
        requests = [
            [arguments.of(name).of(part) for part in arguments.of(name).names()] for name in arguments.names()
        ]
    else:
        requests = [one.items() for one in arguments.items()]
    if len(requests) != len(responses):
        raise arguments.fail(f"as many requests as `resps` has, {len(responses)}")
    parts, target = [], _shown(record.of("target")) or ""
    of = {
        "doc": _shown(record.of("doc_id")),
        "target": int(target) if target.isascii() and target.isdecimal() and len(target) < 5 else None,
    }
    for index, (request, response) in enumerate(zip(requests, responses, strict=True)):
        first = next(iter(response.items()), response)
        value, greedy = [*(first.items() if isinstance(first.value, list) else [first]), None, None][:2]
        tokens = []
        if request and _is_number(value):
            text = request[-1].text()
            rank = 1 if greedy is not None and str(greedy.value) in ("True", "1", "1.0") else None
            tokens = [Token(text.encode(), natural_log(value), rank=rank)]
        given = request[0].text() if len(request) > 1 and tokens else ""
        facts = _facts(record, "lm-evaluation-harness", given=given, **of)
        label = f"doc {of['doc']}, choice {index}"
        parts.append(Part(str(index), label, tokens, True, facts))
    return Found("", parts, "a task of loglikelihoods, not of generated texts", labelled=True)


def _is_number(value: Field | None) -> TypeGuard[Field]:
    """Whether a response is a logprob, which the harness writes as text, and no answer in words."""
    if value is None or not isinstance(value.value, str):
        return value is not None
    try:
        float(value.value)
    except ValueError:
        return False
    return True


def _batch(record: Field) -> Found:
    tokens = [
        Token(
            spelled(one.of("token"), one.of("bytes")),
            natural_log(one.of("logprob")),
            tuple(
                Candidate(spelled(text), logprob, id_of(id))
                for id, value, text in map(_triple, one.of("top").optional_items())
                if (logprob := natural_log(value)) is not None
            ),
            id_of(one.of("id")),
        )
        for one in record.of("logprobs").optional_items()
    ]
    label = _shown(record.of("id")) or ""
    return Found(
        "", [Part("0", label, tokens, True, _facts(record, "ropechat batch"))], "--logprobs 5", labelled=True
    )


def _triple(top: Field) -> list[Field]:
    if len(found := top.items()) != 3:
        raise top.fail("a list of an id, a logprob and a text")
    return found


FORMATS = (
    Format("OpenAI", lambda record: isinstance(record.get("choices"), list), _openai),
    Format("OpenAI", lambda record: record.get("object") == "response" and "output" in record, _responses),
    Format("lm-evaluation-harness", lambda record: "resps" in record and "arguments" in record, _lm_eval),
    Format("ropechat batch", lambda record: {"ok", "index", "sample"} <= record.keys(), _batch),
    Format(
        "llama.cpp",
        lambda record: "completion_probabilities" in record or {"content", "stop"} <= record.keys(),
        _llama_cpp,
    ),
    Format(
        "Ollama", lambda record: "done" in record and bool(record.keys() & {"response", "message"}), _ollama
    ),
)
