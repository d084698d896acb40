"""What a model was not sure of in an answer: its choice, fields of its JSON, or else words."""

import codecs
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from ropechat.engine.certainty import Answer
from ropechat.inspector.by_word import Words, line_of, record, unsure
from ropechat.trace import TokenScore
from ropechat.util.text import one_line


class Unsure(NamedTuple):
    """A part of an answer with a small probability. record: what is written of it; line: what is said."""

    record: dict[str, Any]
    line: str


def unsure_parts(
    answer: Answer,
    certainty: Mapping[str, Any],
    below: float,
    bytes_of: Callable[[int], bytes],
    stop_ids: Collection[int],
) -> list[Unsure]:
    """The parts of an answer with a smaller probability than `below`.

    certainty: what `Engine.certainty` says of it. If that has fields, these are judged, and if it has choices
    the answer as a whole; else words, by the raw probabilities of their tokens.
    """
    if certainty.get("fields"):
        return [
            _part(value["confidence"], field=name)
            for name, value in certainty["fields"].items()
            if value["confidence"] < below
        ]
    if certainty.get("confidence") is not None:
        return [_part(certainty["confidence"], text=answer.text)] if certainty["confidence"] < below else []
    words = Words("", {"text": answer.text})
    found = (word for token in _tokens(answer, bytes_of, stop_ids) for word in words.add(token))
    return [Unsure(record(span), line_of(span)) for span in unsure(found, below)]


def _part(prob: float, **what: str) -> Unsure:
    ((_, named),) = what.items()
    return Unsure({**what, "prob": prob}, f"{100 * prob:.3g}%: {one_line(named)}")


def _tokens(
    answer: Answer, bytes_of: Callable[[int], bytes], stop_ids: Collection[int]
) -> Iterator[TokenScore]:
    """Yield the tokens of an answer; one that ends it, or that a stop string cut, has the role "special"."""
    decoder, size = codecs.getincrementaldecoder("utf-8")("replace"), len(answer.text.encode())
    start = 0
    for index, (id, logprob) in enumerate(zip(answer.ids, answer.logprobs, strict=True)):
        data = b"" if id in stop_ids else bytes_of(id)
        text = decoder.decode(data, final=index == len(answer.ids) - 1)
        end = min(size, start + len(text.encode()))
        role = "special" if id in stop_ids or start >= size else "text"
        yield TokenScore(index, id, data, text, (start, end), role, logprob, None, None, None)
        start = end
