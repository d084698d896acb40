"""Where each head attends: a table for a terminal, and JSON lines, schema `ropechat.attention/1`.

sink: mean weight of the first token; previous: of the token before; distance: mean distance in tokens. All
are means over the tokens of the text. JSON: line 1 describes the text; one line per head follows, where
`mean[d]` is the mean weight of the token d places before.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ropechat.inspector.table import bar
from ropechat.util.json_lines import finite

SCHEMA = "ropechat.attention/1"
_BAR = 12


def records(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a record per layer and head. found: the result of `Engine.attention_by_distance`."""
    for place, layer in enumerate(found["layers"].tolist()):
        for head in range(found["sink"].shape[1]):
            names = ("sink", "previous", "distance", "learned_sink")
            numbers = {name: finite(float(found[name][place, head])) for name in names}
            mean = [finite(value) for value in found["mean"][place, head].tolist()]
            yield {"layer": layer, "head": head, **numbers, "mean": mean}


def render(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the table; a column for learned sinks where the model has them."""
    learned = bool(found["learned_sink"].any())
    yield (
        "layer  head    sink"
        + " " * (_BAR + 2)
        + "previous"
        + " " * (_BAR + 2)
        + "distance"
        + ("  learned sink" if learned else "")
    )
    for one in records(found):
        parts = [f"{one['layer']:5}", f"{one['head']:4}", _share(one["sink"]), _share(one["previous"])]
        parts += ["       –" if one["distance"] is None else f"{one['distance']:8.1f}"]
        parts += [f"{one['learned_sink'] or 0.0:12.1%}"] if learned else []
        yield "  ".join(parts)


def _share(value: float | None) -> str:
    if value is None:
        return f"{'–':>6}  {' ' * _BAR}"
    return f"{value:6.1%}  {bar(value, _BAR)}"


def lines(found: Mapping[str, Any], meta: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the file, without line endings. meta: what line 1 says of the text and the model."""
    for record in ({"schema": SCHEMA, **meta}, *records(found)):
        yield json.dumps(record, ensure_ascii=False, allow_nan=False)
