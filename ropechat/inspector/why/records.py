"""What parts of a context do to an answer, as records: JSON, JSON lines and CSV, schema `ropechat.why/1`.

JSON lines: line 1 describes the question; one line per part follows, each part before those within it; then
the sums (`"summary": true`). JSON: one object with these fields, and the parts in the list `parts`. `bits` of
a part: what the answer's surprisal grows by when the part is left out (`mode` leave_out), replaced by
`replace` (replace), or what it saves when all else is left out (only); null where nothing was scored. Spans
are byte ranges of `text`, the context. A part with `skipped` has finer parts, none of which was scored. CSV
has the columns COLUMNS. Readers must check the major version in `schema` and ignore fields that they do not
know.
"""

from collections.abc import Iterator
from typing import Any

from ropechat.inspector.why.parts import Part, Span
from ropechat.inspector.why.result import PartScore, Why
from ropechat.util.records import Csv, cells, finite, json_line

SCHEMA = "ropechat.why/1"
COLUMNS = (
    *("part", "parent", "depth", "level", "units", "name", "start", "end"),
    *("tokens", "bits", "divided", "skipped", "text"),
)
_FACTS = ("model", "revision", "dtype", "kv_dtype", "isa", "engine")


def level_name(why: Why, part: Part) -> str:
    """The level of a part; of whole texts message, file or text."""
    if part.level != "text":
        return part.level
    return "message" if why.context.messages else "file" if why.context.texts[0].name else "text"


def part_name(why: Why, part: Part) -> str:
    """`level_name`; of several units with their number."""
    name, count = level_name(why, part), len(part.units)
    return name if count == 1 else f"{count} {name}s"


def mode(why: Why) -> str:
    """What was done with the parts: leave_out, replace or only."""
    return "only" if why.asked.only else "leave_out" if why.asked.replace is None else "replace"


def _bytes(text: str, span: Span) -> tuple[int, int]:
    start = len(text[: span[0]].encode("utf-8", "replace"))
    return start, start + len(text[slice(*span)].encode("utf-8", "replace"))


def head(why: Why) -> dict[str, Any]:
    """The record of the question."""
    texts = [{"name": one.name, "span": _bytes(why.text, one.span)} for one in why.context.texts]
    replaced = {} if why.asked.replace is None else {"replace": why.asked.replace}
    asked = why.trace.tokens[slice(*why.inside)]
    return {
        "schema": SCHEMA,
        **{fact: why.trace.meta.get(fact) for fact in _FACTS},
        "mode": mode(why),
        **replaced,
        "by": why.asked.by,
        "answer": why.answer,
        "asked": "".join(token.text for token in asked),
        "asked_tokens": len(asked),
        "tokens": why.total,
        "bits": finite(why.bits),
        "bits_without": finite(why.without),
        "question": why.context.question,
        "texts": texts,
        "text": why.text,
    }


def summary(why: Why) -> dict[str, Any]:
    """The record of the sums."""
    skipped = why.skipped
    return {
        "complete": why.complete,
        "scorings": why.scorings,
        "skipped": {"parts": len(skipped), "tokens": sum(one.tokens for one in skipped)},
    }


def part_records(why: Why) -> Iterator[dict[str, Any]]:
    """The record of each part."""
    places = dict[PartScore, int]()
    parents = {child: one for one in why.walk() for child in one.parts}
    for number, one in enumerate(why.walk()):
        places[one] = number
        first = next(text for text in why.context.texts if one.span[0] < text.span[1])
        yield {
            "part": number,
            "parent": places.get(parents[one]) if one in parents else None,
            "depth": one.depth,
            "level": level_name(why, one.part),
            "units": len(one.part.units),
            "name": first.name,
            "span": _bytes(why.text, one.span),
            "tokens": one.tokens,
            "bits": finite(one.bits),
            **({"error": one.error} if one.error else {}),
            "divided": bool(one.parts),
            "skipped": one.skipped,
            "text": why.text[slice(*one.span)],
        }


def json_object(why: Why) -> Iterator[str]:
    """One JSON object on one line."""
    yield json_line({**head(why), **summary(why), "parts": list(part_records(why))})


def json_lines(why: Why) -> Iterator[str]:
    """Yield the lines."""
    yield json_line(head(why))
    yield from map(json_line, part_records(why))
    yield json_line({"summary": True, **summary(why)})


def csv_lines(why: Why) -> Iterator[str]:
    """Yield the lines, with line ends."""
    out = Csv(COLUMNS)
    yield out.head
    for record in part_records(why):
        yield out.line(cells(record))
