"""The views of a loaded model on a text: shift test, score split, use of pairs, attention by distance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ropechat.errors import RequestError
from ropechat.inspector.rope import formulas
from ropechat.inspector.rope.attention import Split, pair_usage, split_score
from ropechat.inspector.rope.blocks import Curve, Heat, Note, Plot, Table, View
from ropechat.inspector.rope.spec import rope_spec
from ropechat.inspector.rope.views import layer_ranges
from ropechat.util.records import finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropechat.engine.engine import Engine
    from ropechat.inspector.rope.blocks import Block, Cell
    from ropechat.inspector.rope.formulas import Array
    from ropechat.inspector.rope.spec import RopeLayer, RopeSpec

RELATIVE = 1e-4
"""Largest change of a logit at which a shift counts as having no effect: rounding in f32 stays below."""
_CAPTURE_BYTES = 1 << 28
_ROWS = 32
_SPLIT_POINTS = 400


@dataclass(frozen=True)
class ShiftResult:
    """What moving a text to positions shift .. does to its next-token distributions.

    max_logit: the largest change of a logit. max_kl: the largest Kullback-Leibler divergence of a row's
    distribution from the unshifted one, in nats.
    """

    shift: int
    max_logit: float
    max_kl: float

    @property
    def is_relative(self) -> bool:
        """Whether the change is rounding."""
        return self.max_logit <= RELATIVE


@dataclass(frozen=True)
class SplitResult:
    """One attention score in pairs, and the engine's own score. difference: between the sum and that one."""

    layer: int
    head: int
    query: int
    key: int
    split: Split
    logit: float
    weight: float

    @property
    def difference(self) -> float:
        """How far the sum of the parts is from the engine's score."""
        return abs(self.split.total - self.logit)


def shift_test(engine: Engine, ids: Sequence[int], shifts: Sequence[int]) -> list[ShiftResult]:
    """Compare the logits of a text at positions 0 .. with those at positions shift .., for each shift.

    Two arrays [tokens, vocab_size] exist at a time. Raises as `Engine.logits`; learned positions end.
    """
    before = engine.logits(ids)
    found = []
    for shift in shifts:
        after = engine.logits(ids, start_position=shift)
        largest, divergence = 0.0, 0.0
        for start in range(0, len(before), _ROWS):
            one, other = (np.asarray(rows[start : start + _ROWS], np.float64) for rows in (before, after))
            largest = max(largest, float(np.abs(one - other).max()))
            divergence = max(divergence, _divergence(one, other))
        found.append(ShiftResult(shift, largest, divergence))
    return found


def _divergence(one: Array, other: Array) -> float:
    """The largest KL(one || other) of rows of logits, in nats."""

    def log_softmax(rows: Array) -> Array:
        rows = rows - rows.max(axis=1, keepdims=True)
        return np.asarray(rows - np.log(np.exp(rows).sum(axis=1, keepdims=True)))

    p, q = log_softmax(one), log_softmax(other)
    return max(0.0, float((np.exp(p) * (p - q)).sum(axis=1).max()))


def score_split(
    engine: Engine, ids: Sequence[int], layer: int, head: int, query: int, key: int
) -> SplitResult:
    """Split the attention score of token `query` for token `key` into frequency pairs.

    Raises RequestError for a layer, head or token that does not exist, and for a key that the query does not
    see.
    """
    if not 0 <= key <= query < len(ids):
        raise RequestError(
            f"query and key: must be 0 <= key <= query < {len(ids)}, the text's tokens (got {query}, {key})"
        )
    what = ("q_pre", "k_pre", "attn_logit", "attn_row")
    found = engine.capture(list(ids), [layer], [head], rows=[query], what=what)
    logit = float(found["attn_logit"][0, 0, 0, key])
    if not np.isfinite(logit):
        raise RequestError(f"key: outside the window of layer {layer} (query {query}, key {key})")
    group = rope_spec(engine, len(ids)).of_layer(layer)
    scale = float(found["scale"][0]) * float(found["query_scale"][query])
    split = split_score(found["q_pre"][0, 0, query], found["k_pre"][0, 0, key], query - key, group, scale)
    return SplitResult(layer, head, query, key, split, logit, float(found["attn_row"][0, 0, 0, key]))


def usage(engine: Engine, ids: Sequence[int], spec: RopeSpec) -> list[tuple[RopeLayer, Array]]:
    """The share of each pair in each layer and head, per rotating group.  # [layers, heads, P] each"""
    size = 8 * spec.num_heads * len(ids) * int(engine.facts["widest_head_dim"])
    at_once = max(1, _CAPTURE_BYTES // size)
    found = []
    for group in spec.rotating:
        shares = []
        for start in range(0, len(group.layers), at_once):
            layers = group.layers[start : start + at_once]
            arrays = engine.capture(list(ids), layers, what=("q_pre", "k_pre"))
            shares += [
                pair_usage(queries, keys, group)
                for queries, keys in zip(arrays["q_pre"], arrays["k_pre"], strict=True)
            ]
        if shares:
            found.append((group, np.stack(shares)))
    return found


def shift_view(engine: Engine, ids: Sequence[int], spec: RopeSpec, shifts: Sequence[int]) -> View:
    """V6, on the loaded model: does it see only distances?"""
    results = shift_test(engine, ids, shifts)
    rows = tuple((one.shift, one.max_logit, one.max_kl, one.is_relative) for one in results)
    columns = ("shift", "max |logit change|", "max KL (nats)", f"relative (<= {RELATIVE:g})")
    yes = all(one.is_relative for one in results)
    words = (
        f"Relative: {'yes' if yes else 'no'}, {_why(spec, yes)} ({len(ids)} tokens, {engine.facts['dtype']})."
    )
    return View(
        "shift",
        "V6 Shift test: the same text, moved to later positions",
        (Note(words), Table("shifts", columns, rows)),
    )


def _why(spec: RopeSpec, relative: bool) -> str:
    if relative:
        return "the logits differ by rounding only" if spec.rotating else "positions are not used"
    if spec.position == "learned":
        return "because positions are learned vectors"
    if spec.position == "rotated":
        return "because the token embedding itself is rotated, not query and key"
    if spec.query_scaling is not None:
        return "because queries are scaled by their position"
    if spec.depends_on_length:
        return "because the frequencies depend on the length"
    return "because the logits differ by more than f32 rounding usually does; compare with --dtype f32"


def split_view(engine: Engine, ids: Sequence[int], layer: int, head: int, query: int, key: int) -> View:
    """V7: which frequencies made this attention score."""
    result = score_split(engine, ids, layer, head, query, key)
    split, distance = result.split, query - key
    waves = formulas.wavelengths(split.inv_freq)
    order = np.argsort(-np.abs(split.parts))
    rows: list[tuple[Cell, ...]] = [
        (int(pair), finite(float(waves[pair])), float(abs(split.terms[pair])),
         float(np.angle(split.terms[pair] * np.exp(1j * distance * split.inv_freq[pair]))),
         float(split.parts[pair]))
        for pair in order
    ]  # fmt: skip
    names = [token_name(engine, ids[at]) for at in (query, key)]
    sums = Table(
        "sum",
        ("what", "value"),
        (
            ("sum over pairs", float(split.parts.sum())),
            ("dimensions that are not rotated", split.rest),
            ("together", split.total),
            ("the engine's score", result.logit),
            ("difference", result.difference),
            ("attention weight", result.weight),
        ),
    )
    pairs = np.arange(len(split.parts), dtype=np.float64)
    distances = np.unique(np.round(np.geomspace(1, max(4096, 2 * distance), _SPLIT_POINTS))) - 1
    words = f"Layer {layer}, head {head}: query {query} ({names[0]}) for key {key} ({names[1]}), "
    words += f"{distance} before it."
    blocks: list[Block] = [Note(words), sums]
    if len(pairs):
        blocks += [
            Plot("part of each pair", "pair", "part of the score", (Curve("part", pairs, split.parts),)),
            Table(
                "pairs, largest first",
                ("pair", "wavelength", "|z_q||z_k|", "angle", "part of the score"),
                tuple(rows),
                thin=True,
            ),
            Plot(
                "score with the key at other positions",
                "distance + 1",
                "score",
                (
                    Curve("score", distances + 1, split.at(distances)),
                    Curve("here", np.array([distance + 1.0] * 2), np.sort([split.total, split.rest])),
                ),
                x_log=True,
            ),
        ]
    return View("split", "V7 One attention score as a sum over frequencies", tuple(blocks))


def token_name(engine: Engine, id: int) -> str:
    """A token as visible text, or its id."""
    from ropechat.util.text import visible

    return (visible(engine.tokenizer.token_bytes(id)) if engine.tokenizer.present else "") or f"#{id}"


def usage_view(engine: Engine, ids: Sequence[int], spec: RopeSpec) -> View:
    """V8: which pairs the heads of each layer use on this text."""
    blocks: list[Block] = []
    for group, shares in usage(engine, ids, spec):
        by_layer = shares.mean(axis=1)
        if len(spec.rotating) > 1:
            blocks.append(Note(f"Layers {layer_ranges(group.layers)}:"))
        pairs = np.arange(by_layer.shape[1], dtype=np.float64)
        layers = np.array(group.layers, np.float64)
        top = float(by_layer.max()) or 1.0
        blocks.append(Heat("share of a pair", "pair", "layer", pairs, layers, by_layer, 0.0, top))
        waves = formulas.wavelengths(group.inv_freq)
        local, slow = waves < formulas.LOCAL, waves > spec.trained_length
        rows: list[tuple[Cell, ...]] = []
        for at, layer in enumerate(group.layers):
            for head in range(shares.shape[1]):
                share = shares[at, head]
                rows.append(
                    (layer, head, float(share[local].sum()), float(share[slow].sum()), int(share.argmax()),
                     float(share.max()))
                )  # fmt: skip
        columns = ("layer", "head", "in local pairs", "in pairs that never turn", "largest pair", "its share")
        blocks.append(Table("heads", columns, tuple(rows), thin=True))
    if not blocks:
        blocks.append(Note("No query or key is rotated in this model."))
    return View(
        "usage", f"V8 Use of the pairs: mean |z_q| x mean |z_k| over {len(ids)} tokens", tuple(blocks)
    )


def distance_view(
    engine: Engine, ids: Sequence[int], spec: RopeSpec, layer: int | None, head: int | None, max_distance: int
) -> View:
    """V9: how attention falls with distance, with sink, previous token and the bound of V4."""
    longest = min(max_distance, len(ids) - 1)
    found = engine.attention_by_distance(ids, None if layer is None else [layer], max_distance=longest)
    layers, mean = [int(one) for one in found["layers"]], found["mean"]
    distances = np.arange(1.0, mean.shape[2])
    curves: list[Curve] = []
    if head is not None:
        curves += [
            Curve(f"layer {one}, head {head}", distances, mean[at, head, 1:]) for at, one in enumerate(layers)
        ]
    else:
        chosen = sorted({layers[0], layers[len(layers) // 2], layers[-1]})
        for one in chosen:
            curves.append(
                Curve(f"layer {one}, mean of heads", distances, mean[layers.index(one)].mean(axis=0)[1:])
            )
    if spec.rotating and len(distances):
        group = next((one for one in spec.rotating if layers[0] in one.layers), spec.rotating[0])
        bound = formulas.decay_bound(group.inv_freq, distances) / ((len(group.inv_freq) + 1) / 2)
        top = max((float(curve.y.max()) for curve in curves), default=1.0)
        curves.append(Curve("bound U/U(0) of V4, scaled", distances, bound * top))
    rows: list[tuple[Cell, ...]] = []
    for at, one in enumerate(layers):
        window = spec.of_layer(one).window
        for number in range(mean.shape[1]) if head is None else (head,):
            numbers = [finite(float(found[name][at, number])) for name in ("sink", "previous", "distance")]
            rows.append((one, number, *numbers, finite(float(found["learned_sink"][at, number])), window))
    columns = ("layer", "head", "first token", "previous token", "mean distance", "learned sink", "window")
    blocks: list[Block] = []
    if len(distances):
        blocks.append(
            Plot("weight by distance", "distance", "mean attention weight", tuple(curves), x_log=True)
        )
    blocks.append(Table("heads", columns, tuple(rows), thin=True))
    blocks.append(
        Note("A weight at distance d is the mean over the tokens that have one: few for the largest d.")
    )
    return View("distance", f"V9 Attention by distance over {len(ids)} tokens", tuple(blocks))
