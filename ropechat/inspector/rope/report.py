"""The report of `ropechat rope`: views by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ropechat.errors import RequestError
from ropechat.inspector.rope import measured, views
from ropechat.inspector.rope.blocks import View
from ropechat.inspector.rope.spec import rope_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ropechat.engine.engine import Engine
    from ropechat.inspector.rope.formulas import Array
    from ropechat.inspector.rope.spec import RopeSpec

CONFIG_VIEWS = ("bands", "map", "matrix", "decay", "kernel", "properties", "compare", "length")
"""Views that read the config only, in their order in a report."""
WEIGHT_VIEWS = ("shift", "split", "usage", "distance")
"""Views of a loaded model and a text."""
SAMPLE = (
    "The rotation of a query by its position, and of a key by its own, leaves only the distance between them "
    "in their product. That is what the model sees of the order of the words in this text."
)
"""The text that is measured when none is given."""


@dataclass(frozen=True)
class ViewOptions:
    """What a report shows: see the options of `ropechat rope`."""

    max_distance: int = 4096
    length: int = 0
    position: int = 10
    seed: int = 0
    layer: int | None = None
    head: int | None = None
    query: int | None = None
    key: int | None = None
    shifts: tuple[int, ...] = (1, 1000, 32_768)


def config_views(model: str | Path | Engine, names: Sequence[str], options: ViewOptions) -> Iterator[View]:
    """Yield the overview and the named views of a config. Raises as `rope_spec`."""
    yield from spec_views(rope_spec(model, options.length), names, options)


def spec_views(spec: RopeSpec, names: Sequence[str], options: ViewOptions) -> Iterator[View]:
    """Yield the overview and the named views of a spec."""
    yield View("model", f"{spec.model_type}, trained length {spec.trained_length}", views.overview(spec))
    makers: dict[str, Callable[[], View]] = {
        "bands": lambda: views.bands(spec),
        "map": lambda: views.rotation_map(spec),
        "matrix": lambda: views.matrix(spec, options.position, options.seed),
        "decay": lambda: views.decay(spec, options.max_distance, options.seed),
        "kernel": lambda: views.kernel(spec, options.max_distance),
        "properties": lambda: views.properties(spec, options.seed),
        "compare": lambda: views.comparison(spec, options.max_distance),
        "length": lambda: views.length_watch(spec, (options.length,) if options.length else ()),
    }
    for name in names:
        if name in makers:
            yield makers[name]()


def weight_views(
    engine: Engine, ids: Sequence[int], names: Sequence[str], options: ViewOptions
) -> Iterator[View]:
    """Yield the named views of a loaded model on a text: WEIGHT_VIEWS, and matrix of one of its queries.

    Raises RequestError and as `Engine.capture`.
    """
    if len(ids) < 2:
        raise RequestError(f"text: must have at least 2 tokens (got {len(ids)})")
    spec = rope_spec(engine, len(ids))
    _check(spec, options)
    layer, head = _rotating_layer(spec, options.layer), options.head or 0
    query = len(ids) - 1 if options.query is None else options.query
    for name in names:
        if name == "shift":
            yield measured.shift_view(engine, ids, spec, options.shifts)
        elif name == "matrix":
            yield views.matrix(
                spec.only(layer), options.position, options.seed, _query(engine, ids, layer, head, query)
            )
        elif name == "split":
            key = most_attended(engine, ids, layer, head, query) if options.key is None else options.key
            yield measured.split_view(engine, ids, layer, head, query, key)
        elif name == "usage":
            yield measured.usage_view(engine, ids, spec)
        elif name == "distance":
            yield measured.distance_view(engine, ids, spec, options.layer, options.head, options.max_distance)


def _check(spec: RopeSpec, options: ViewOptions) -> None:
    for name, value, count in (
        ("layer", options.layer, spec.num_layers),
        ("head", options.head, spec.num_heads),
    ):
        if value is not None and not 0 <= value < count:
            raise RequestError(f"{name}: must be from 0 to {count - 1} (got {value})")


def _rotating_layer(spec: RopeSpec, layer: int | None) -> int:
    """The layer, or the first one that rotates, or the first one."""
    if layer is not None:
        return layer
    return next((group.layers[0] for group in spec.rotating if group.layers), 0)


def _query(engine: Engine, ids: Sequence[int], layer: int, head: int, query: int) -> Array:
    """A head's query, before rotation.  # [head_dim]"""
    _check_query(ids, query)
    rows = engine.capture(list(ids), [layer], [head], what=("q_pre",))["q_pre"]
    return np.asarray(rows[0, 0, query], np.float64)


def _check_query(ids: Sequence[int], query: int) -> None:
    if not 0 <= query < len(ids):
        raise RequestError(f"query: must be from 0 to {len(ids) - 1}, a token of the text (got {query})")


def most_attended(engine: Engine, ids: Sequence[int], layer: int, head: int, query: int) -> int:
    """The token that a query attends to most, other than the first one (the sink) if there is another."""
    _check_query(ids, query)
    row = engine.capture(list(ids), [layer], [head], rows=[query], what=("attn_row",))["attn_row"][0, 0, 0]
    seen = np.asarray(row[: query + 1])
    return 1 + int(seen[1:].argmax()) if query and seen[1:].max() > 0.0 else 0
