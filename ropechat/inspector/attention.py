"""Where each head attends: a table for a terminal, and JSON lines, schema `ropechat.attention/1`.

sink: mean weight of the first token; previous: of the token before; distance: mean distance in tokens. All
are means over the tokens of the text. JSON: line 1 describes the text; one line per head follows, where
`mean[d]` is the mean weight of the token d places before.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ropechat.util.records import Column, Table, bar, json_line, number

SCHEMA = "ropechat.attention/1"
_BAR = 12


def records(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a record per layer and head. found: the result of `Engine.attention_by_distance`."""
    for place, layer in enumerate(found["layers"].tolist()):
        for head in range(found["sink"].shape[1]):
            names = ("sink", "previous", "distance", "learned_sink")
            numbers = {name: float(found[name][place, head]) for name in names}
            yield {"layer": layer, "head": head, **numbers, "mean": found["mean"][place, head].tolist()}


def table(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the table, with line ends; a column for learned sinks where the model has them."""
    learned = Column("learned sink", 12, lambda one: number(one["learned_sink"], ".1%"))
    out = Table(
        Column("layer", 5, lambda one: str(one["layer"])),
        Column("head", 4, lambda one: str(one["head"])),
        *_share("sink"),
        *_share("previous"),
        Column("distance", 8, lambda one: number(one["distance"], ".1f")),
        learned if found["learned_sink"].any() else None,
    )
    yield f"{out.head}\n"
    yield from (f"{out.line(record)}\n" for record in records(found))


def _share(name: str) -> tuple[Column, Column]:
    """A share as a number, and as a bar."""
    width = max(6, len(name))
    return (
        Column(name, width, lambda one: number(one[name], ".1%")),
        Column("", -_BAR, lambda one: bar(one[name], _BAR)),
    )


def json_lines(found: Mapping[str, Any], meta: Mapping[str, Any]) -> Iterator[str]:
    """Yield the JSON lines. meta: what line 1 says of the text and the model."""
    yield from map(json_line, ({"schema": SCHEMA, **meta}, *records(found)))
