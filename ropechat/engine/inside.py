"""Looks inside the model: the prediction of each layer, captured queries and keys, attention by distance."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

from ropechat.engine.convert import to_distribution
from ropechat.engine.validation import MAX_ARRAY_BYTES
from ropechat.errors import MemoryLimitError, RequestError
from ropechat.trace import LensRow
from ropechat.util.text import limit_words

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from ropechat.engine import _core
    from ropechat.engine.native import Request

CAPTURES = ("q_pre", "k_pre", "attn_logit", "attn_row")
"""The arrays that `capture` offers."""


def _indices(given: Iterable[int] | None, count: int, name: str) -> list[int]:
    """Each number once, in order; None: all below `count`. Raises RequestError."""
    if given is None:
        return list(range(count))
    try:
        found = sorted({operator.index(index) for index in given})
    except TypeError:
        raise RequestError(
            f"{name}: must be whole numbers from 0 to {count - 1} (got {given!r:.60})"
        ) from None
    if not found or not 0 <= found[0] <= found[-1] < count:
        wrong = next((index for index in found if not 0 <= index < count), "none")
        raise RequestError(f"{name}: must be from 0 to {count - 1} (got {wrong})")
    return found


def layer_indices(layers: Iterable[int] | None, facts: Mapping[str, Any]) -> list[int]:
    """The requested layers, each once and in order; None: all. Raises RequestError."""
    return _indices(layers, facts["num_hidden_layers"], "layers")


def lens(
    request: Request, reading: _core.Reading, layers: Sequence[int], top_k: int, look_up: Sequence[int]
) -> Iterator[LensRow]:
    """Yield what each layer predicts, by position and layer. Raises CancelledError."""
    while rows := request.core.lens(reading, layers, request.token, top_k=top_k, look_up=look_up):
        for found in rows:
            row, asked = to_distribution(found.row, found.position - 1), tuple(found.looked_up)
            yield LensRow(found.position, found.layer, found.rank, found.logprob, row.entropy, row.top, asked)


def capture(
    request: Request,
    ids: Sequence[int],
    facts: Mapping[str, Any],
    layers: Iterable[int] | None,
    heads: Iterable[int] | None,
    rows: Iterable[int] | None,
    what: Collection[str],
    start_position: int,
) -> dict[str, Any]:
    """See `Engine.capture`."""
    import numpy as np

    wanted = {what} if isinstance(what, str) else set(what)
    if not wanted or not wanted <= set(CAPTURES):
        raise RequestError(
            f"what: must be some of {', '.join(CAPTURES)} (got {sorted(wanted - {*CAPTURES})})"
        )
    if start_position < 0:
        raise RequestError(f"start_position: must be at least 0 (got {start_position})")
    of_layers = layer_indices(layers, facts)
    of_heads = _indices(heads, facts["num_attention_heads"], "heads")
    of_rows = _indices(rows, len(ids), "rows")
    width = sum(facts["widest_head_dim"] if name in ("q_pre", "k_pre") else len(of_rows) for name in wanted)
    _validate_bytes(4 * len(of_layers) * len(of_heads) * len(ids) * width, "fewer layers, heads, rows or ids")
    found = request.core.capture(
        ids, of_layers, of_heads, of_rows, request.token, what=sorted(wanted), start_position=start_position
    )
    spec = request.core.rope_spec(start_position + len(ids))
    of_spec = [spec["layers"][layer] for layer in of_layers]
    ropes = [None if layer["rope"] is None else spec["ropes"][layer["rope"]] for layer in of_spec]
    positions = np.arange(start_position, start_position + len(ids))
    return found | {
        **{name: np.array(found[name]) for name in ("layers", "heads", "rows")},
        "positions": positions,
        "scale": np.array([spec["attention_multiplier"] * layer["attention_scale"] for layer in of_spec]),
        "attention_factor": np.array([1.0 if rope is None else rope["attention_factor"] for rope in ropes]),
        "query_scale": np.array([_query_scale(spec["query_scaling"], int(at)) for at in positions]),
        "softcap": spec["attn_logit_softcapping"],
        "window": [layer["window"] for layer in of_spec],
        "rope": [layer["rope"] for layer in of_spec],
        "notes": _notes(spec, of_layers),
    }


def _query_scale(scaling: tuple[float, int] | None, position: int) -> float:
    """The factor of a query at a position (`llama_4_scaling_beta`); 1 for other models."""
    return 1.0 if scaling is None else 1.0 + scaling[0] * math.log1p(position // scaling[1])


def _notes(spec: Mapping[str, Any], layers: Sequence[int]) -> list[str]:
    """Notes on parts of the model's attention that the arrays lack or show differently."""
    notes = []
    if spec["attention"] == "mla":
        notes.append("MLA: q_pre and k_pre are what is multiplied: the rotated part, then that of the latent")
    if spec["sinks"]:
        notes.append("learned sinks: a row of attn_row sums to 1 minus the weight of its head's sink")
    if spec["attn_logit_softcapping"] is not None:
        notes.append("softcap: attn_logit is the score before the cap; attn_row is computed after it")
    if windowed := [layer for layer in layers if spec["layers"][layer]["window"] is not None]:
        notes.append(f"windows: in layers {windowed} a token sees the last `window` tokens only")
    if unrotated := [layer for layer in layers if spec["layers"][layer]["rope"] is None]:
        notes.append(
            f"no rotation: layers {unrotated} use q_pre and k_pre as they are ({spec['position']} positions)"
        )
    return notes


def attention_by_distance(
    request: Request,
    ids: Sequence[int],
    facts: Mapping[str, Any],
    layers: Iterable[int] | None,
    max_distance: int | None,
) -> dict[str, Any]:
    """See `Engine.attention_by_distance`."""
    import numpy as np

    of_layers = layer_indices(layers, facts)
    if max_distance is not None and max_distance < 0:
        raise RequestError(f"max_distance: must be at least 0 (got {max_distance})")
    distances = len(ids) if max_distance is None else min(len(ids), max_distance + 1)
    _validate_bytes(8 * len(of_layers) * facts["num_attention_heads"] * distances, "a smaller max_distance")
    found = request.core.attention_by_distance(ids, of_layers, distances, request.token)
    return found | {"layers": np.array(found["layers"])}


def _validate_bytes(needed: int, remedy: str) -> None:
    """Validate the size of a result. Raises MemoryLimitError."""
    if needed > MAX_ARRAY_BYTES:
        raise MemoryLimitError(f"arrays: {limit_words(MAX_ARRAY_BYTES, needed)}; use {remedy}")
