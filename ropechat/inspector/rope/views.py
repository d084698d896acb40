"""The views that need no weights: from a RopeSpec to blocks. `measured.py` has those of a loaded model."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ropechat.inspector.rope import compare, formulas
from ropechat.inspector.rope.blocks import Curve, Heat, Note, Plot, Table, View
from ropechat.inspector.rope.spec import EMBEDDING, NO_ROTATION, default_inv_freq
from ropechat.util.records import finite

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropechat.inspector.rope.blocks import Block, Cell
    from ropechat.inspector.rope.formulas import Array, Complex, Floats
    from ropechat.inspector.rope.spec import RopeLayer, RopeSpec

_POINTS = 400
"""Points of a curve over distances."""
_MAP_ROWS = 128
"""Positions of the rotation map: each one, since fast pairs would alias."""
_DRAWS = 200
_BOUND_AT = (1, 8, 64, 512, 4096, 32768)
_SHIFTS = (1, 1000, 131_072)


def layer_ranges(layers: tuple[int, ...]) -> str:
    """Layer numbers with runs joined, and regular steps named: "0-3, 5", "0, 2, 4, ... 22"."""
    if not layers:
        return "–"
    steps = {b - a for a, b in itertools.pairwise(layers)}
    if len(layers) > 4 and len(steps) == 1 and (step := steps.pop()) > 1:
        return f"{layers[0]}, {layers[0] + step}, … {layers[-1]}"
    runs: list[list[int]] = []
    for layer in layers:
        if runs and runs[-1][1] == layer - 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def group_name(group: RopeLayer) -> str:
    """A short name of a kind of layers."""
    kinds = {"full": "full attention", "sliding": f"window {group.window}", "embedding": "token embedding"}
    if group.layer_type == NO_ROTATION:
        window = "" if group.window is None else f", window {group.window}"
        return f"not rotated{window}"
    return kinds[group.layer_type]


def overview(spec: RopeSpec) -> tuple[Block, ...]:
    """Which layers rotate what: the head of every report."""
    rows: list[tuple[Cell, ...]] = []
    scaled: list[Block] = []
    for group in spec.groups:
        width = spec.hidden_size if group.layer_type == EMBEDDING else spec.head_dim
        rows.append(
            (
                layer_ranges(group.layers),
                group_name(group),
                group.theta if group.rope else None,
                group.rope_type if group.rope else None,
                f"{group.rotary_dim} of {width} dims",
                ("interleaved" if group.interleaved else "halves") if group.rope else None,
                group.attention_factor if group.rope else None,
            )
        )
        parameters = ", ".join(f"{key} {_short(value)}" for key, value in group.parameters.items())
        if parameters:
            scaled.append(Note(f"{group.rope_type}, layers {layer_ranges(group.layers)}: {parameters}."))
    columns = ("layers", "kind", "theta", "type", "rotated", "pairs are", "factor")
    notes: list[Block] = [Table("ropes", columns, tuple(rows)), *scaled]
    if spec.position == "learned":
        notes.append(
            Note(f"Positions are learned vectors, added to the embedding; at most {spec.trained_length}.")
        )
    if not spec.rotating and spec.position != "learned":
        notes.append(Note("Nothing is rotated in this model."))
    if spec.query_scaling is not None:
        beta, length = spec.query_scaling
        notes.append(
            Note(
                f"Queries grow with their position: q (1 + {beta:g} ln(1 + floor(m / {length}))). "
                "Scores then depend on m itself, not only on the distance."
            )
        )
    if spec.depends_on_length:
        notes.append(
            Note(
                "The frequencies depend on the length of the whole text, so scores are relative only within "
                f"one text. Shown: {spec.length or 'within the trained length'}"
                f"{' tokens' if spec.length else ''}; see --length."
            )
        )
    return tuple(notes)


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _rotating(name: str, title: str, spec: RopeSpec, blocks: Callable[[RopeLayer], list[Block]]) -> View:
    """A view with the blocks of each rotating group, under the group's name if there are several."""
    found: list[Block] = []
    for group in spec.rotating:
        if len(spec.rotating) == 1:
            found += blocks(group)
            continue
        found.append(Note(f"Layers {layer_ranges(group.layers)} ({group_name(group)}):"))
        for block in blocks(group):
            found.append(
                block
                if isinstance(block, Note)
                else replace(block, name=f"{block.name}, {group_name(group)}")
            )
    return View(name, title, tuple(found) or (Note("Nothing is rotated in this model."),))


def _grid(longest: int) -> Array:
    """Distances 1 .. longest, evenly in the logarithm, each once."""
    return np.unique(np.round(np.geomspace(1.0, max(longest, 2), _POINTS)))


def bands(spec: RopeSpec) -> View:
    """V1: the wavelength of each pair before and after scaling, and which distances it can distinguish."""
    trained = spec.trained_length

    def kind(wave: float) -> str:
        if not np.isfinite(wave):
            return "not rotated"
        return "local" if wave < formulas.LOCAL else "middle" if wave <= trained else "never turns fully"

    def blocks(group: RopeLayer) -> list[Block]:
        before, after = formulas.wavelengths(group.base_inv_freq), formulas.wavelengths(group.inv_freq)
        ends = [map(finite, waves.tolist()) for waves in (before, after)]
        kinds = [kind(wave) for wave in after]
        columns = ("pair", "inv_freq", "wavelength before", "wavelength", "slowed by", "turns", "band")
        rows = tuple(
            (pair, float(group.inv_freq[pair]), b, a, None if a is None or b is None else a / b,
             float(trained * group.inv_freq[pair] / (2 * np.pi)), kinds[pair])
            for pair, (b, a) in enumerate(zip(*ends, strict=True))
        )  # fmt: skip
        names = ("local", "middle", "never turns fully", "not rotated")
        counts = Table(
            "bands",
            ("band", "wavelength", "pairs", "what it tells"),
            tuple(
                (name, reach, kinds.count(name), what)
                for name, reach, what in zip(
                    names,
                    (f"< {formulas.LOCAL}", f"{formulas.LOCAL} to {trained}", f"> {trained}", "–"),
                    ("which neighbour", "how far", "hardly moves: content", "content only"),
                    strict=True,
                )
            ),
        )
        pairs = np.arange(len(after), dtype=np.float64)
        shown = np.isfinite(after)
        curves = [Curve("wavelength", pairs[shown], after[shown])]
        if not np.allclose(before, after):
            curves.insert(0, Curve("before scaling", pairs, before))
        curves.append(Curve(f"trained length {trained}", pairs, np.full(len(pairs), float(trained))))
        plot = Plot("wavelengths", "pair", "positions per turn", tuple(curves), y_log=True)
        return [plot, counts, Table("pairs", columns, rows, thin=True)]

    return _rotating("bands", "V1 Bands: positions per full turn of each pair", spec, blocks)


def rotation_map(spec: RopeSpec) -> View:
    """V2: cos of the angle of each pair at each position."""

    def blocks(group: RopeLayer) -> list[Block]:
        rows = np.arange(_MAP_ROWS, dtype=np.float64)
        pairs = np.arange(len(group.inv_freq), dtype=np.float64)
        values = formulas.rotation_map(group.inv_freq, rows)
        return [Heat("cos(position x inv_freq)", "pair", "position", pairs, rows, values, -1.0, 1.0)]

    return _rotating("map", "V2 Rotation map: fast pairs left, slow ones right", spec, blocks)


def matrix(spec: RopeSpec, position: int, seed: int, query: Array | None = None) -> View:
    """V3: the rotation matrix beside the element-wise form, for a given query or a drawn one.

    query: one head's, before rotation.  # [head_dim]
    """

    def blocks(group: RopeLayer) -> list[Block]:
        size = group.rotary_dim
        x = np.random.default_rng(seed).standard_normal(size) if query is None else query[:size]
        interleaved, factor = group.interleaved, group.attention_factor

        def rotate(x: Floats, *, interleaved: bool) -> Array:
            rotated = formulas.rotate(x, position, group.inv_freq, interleaved=interleaved, factor=factor)
            return np.asarray(rotated, np.float64)

        by_matrix = (
            formulas.rotation_matrix(position, group.inv_freq, interleaved=interleaved, factor=factor) @ x
        )
        fast = rotate(x, interleaved=interleaved)
        single = rotate(x.astype(np.float32), interleaved=interleaved)
        other = rotate(x, interleaved=not interleaved)
        first, second = formulas.pair_dims(size, interleaved=group.interleaved)
        rows = tuple(
            (int(pair), f"{a}, {b}", float(x[a]), float(x[b]), float(by_matrix[a]), float(by_matrix[b]),
             float(fast[a]), float(fast[b]))
            for pair, (a, b) in enumerate(zip(first, second, strict=True))
        )  # fmt: skip
        columns = (
            "pair",
            "dims",
            "x first",
            "x second",
            "R x first",
            "R x second",
            "fast first",
            "fast second",
        )
        differences = Table(
            "differences",
            ("what", "largest difference"),
            (
                ("matrix and element-wise form, f64", float(np.abs(by_matrix - fast).max())),
                ("matrix in f64 and element-wise form in f32", float(np.abs(by_matrix - single).max())),
                ("this layout of pairs and the other one", float(np.abs(fast - other).max())),
            ),
        )
        cell = "cos m t, -sin m t; sin m t, cos m t"
        source = f"q drawn with seed {seed}" if query is None else "a query of the text"
        words = (
            f"Position m = {position}, {source}. R has the blocks [{cell}] for t = inv_freq; the engine "
            "computes x cos + rotate_half(x) sin instead."
        )
        return [Note(words), differences, Table("rotated", columns, rows, thin=True)]

    return _rotating("matrix", "V3 Matrix and element-wise form", spec, blocks)


def _draw_terms(group: RopeLayer, seed: int, count: int) -> Complex:
    """z_q conj(z_k) of drawn queries and keys.  # complex [count, P]"""
    random = np.random.default_rng(seed)
    pairs = len(group.inv_freq)
    parts = random.standard_normal((4, count, pairs))
    return np.asarray((parts[0] + 1j * parts[1]) * (parts[2] - 1j * parts[3]), np.complex128)


def decay(spec: RopeSpec, max_distance: int, seed: int) -> View:
    """V4: RoFormer's relative upper bound with this model's frequencies, and how loose it is."""

    def blocks(group: RopeLayer) -> list[Block]:
        grid, top = _grid(max_distance), (len(group.inv_freq) + 1) / 2
        own = Curve("this model", grid, formulas.decay_bound(group.inv_freq, grid) / top)
        plain = default_inv_freq(10_000.0, group.rotary_dim)
        other = Curve("theta 10,000", grid, formulas.decay_bound(plain, grid) / top)
        same = np.allclose(plain, group.inv_freq)
        terms = _draw_terms(group, seed, _DRAWS)
        rows: list[tuple[Cell, ...]] = []
        for distance in _BOUND_AT:
            scores, bounds = formulas.score_bound(terms, group.inv_freq, distance)
            relative = float(formulas.decay_bound(group.inv_freq, np.array([float(distance)]))[0]) / top
            true, bound = float(scores.mean()), float(bounds.mean())
            held = int((scores <= bounds).sum())
            rows.append((distance, relative, true, bound, bound / true, held))
        columns = ("distance", "U/U(0)", "mean |score|", "mean bound", "bound / score", f"held, of {_DRAWS}")
        words = (
            "|score| is at most max |h(i+1) - h(i)| x sum |S|, with the products h of query and key, "
            f"and U is the mean of |S|. This bound is loose: for {_DRAWS} drawn q and k (seed {seed}) it is "
            "far above the score, and the score itself does not decay."
        )
        plot = Plot("U/U(0)", "distance", "U/U(0)", (own,) if same else (own, other), x_log=True)
        return [plot, Note(words), Table("bound and score", columns, tuple(rows))]

    return _rotating("decay", "V4 Decay bound: U(distance) / U(0)", spec, blocks)


def kernel(spec: RopeSpec, max_distance: int) -> View:
    """V5: the score of two equal vectors at each distance."""

    def blocks(group: RopeLayer) -> list[Block]:
        grid = _grid(max_distance)
        zero = formulas.first_zero(group.inv_freq)
        until = f"above zero up to {formulas.ZERO_LIMIT}" if zero is None else f"below zero first at {zero}"
        words = (
            f"B is {until}. Two sinusoidal embeddings with these frequencies have the same inner product: "
            "PE(m).PE(n) = P B(m - n)."
        )
        zeros = Curve("zero", grid[[0, -1]], np.zeros(2))
        curve = Curve("B", grid, formulas.kernel(group.inv_freq, grid))
        return [Plot("B", "distance", "B", (curve, zeros), x_log=True), Note(words)]

    return _rotating("kernel", "V5 Kernel: mean of cos(distance x inv_freq)", spec, blocks)


def properties(spec: RopeSpec, seed: int) -> View:
    """V6: the proximity properties as numbers."""

    def blocks(group: RopeLayer) -> list[Block]:
        props = formulas.properties(group.inv_freq, spec.trained_length)
        top = (len(group.inv_freq) + 1) / 2
        bound = formulas.decay_bound(group.inv_freq, np.array([64.0, 1024.0, 32768.0])) / top
        terms = _draw_terms(group, seed, _DRAWS)
        distances = np.arange(1.0, 1025.0)
        asym = float(np.mean([formulas.asymmetry(one, group.inv_freq, distances) for one in terms]))
        rows: tuple[tuple[Cell, ...], ...] = (
            ("pairs", props.pairs),
            ("pairs that do not rotate", props.still),
            (f"pairs with a wavelength below {formulas.LOCAL}", props.local),
            (f"pairs that make no full turn in {spec.trained_length}", props.unturned),
            ("pairs with a wavelength above 4096", _longer(group.inv_freq, 4096.0)),
            ("longest wavelength", props.longest),
            ("U/U(0) at 64", float(bound[0])),
            ("U/U(0) at 1024", float(bound[1])),
            ("U/U(0) at 32768", float(bound[2])),
            (f"B below zero first at (–: not up to {formulas.ZERO_LIMIT})", props.first_zero),
            ("B falls at each step until", props.falling_until),
            ("Kendall's tau of -B and the distance", props.tau),
            ("asymmetry of B", 0.0),
            (f"asymmetry of drawn q and k (mean of {_DRAWS})", asym),
            *(
                (f"change of a score by a shift of {shift}", _shift_error(group, seed, shift))
                for shift in _SHIFTS
            ),
        )
        words = (
            "Translation: positions (m + s, n + s) give the score of (m, n); measured in f32 on drawn "
            "vectors of norm 1. Symmetry: B(-d) = B(d) exactly, but a score of different vectors has an odd "
            f"part. Monotone: tau 1 is a steady fall over {formulas.TAU_POINTS} distances up to "
            f"{formulas.TAU_DISTANCE}."
        )
        return [Table("properties", ("property", "value"), rows), Note(words)]

    return _rotating("properties", "V6 Proximity properties", spec, blocks)


def _longer(inv_freq: Array, limit: float) -> int:
    waves = formulas.wavelengths(inv_freq)
    return int((np.isfinite(waves) & (waves > limit)).sum())


def _shift_error(group: RopeLayer, seed: int, shift: int) -> float:
    """The largest change of a score of two drawn unit vectors, rotated in f32, when both positions move."""
    random = np.random.default_rng(seed)
    q, k = random.standard_normal((2, group.rotary_dim))
    q, k = (q / np.linalg.norm(q)).astype(np.float32), (k / np.linalg.norm(k)).astype(np.float32)

    def score(m: int, n: int) -> float:
        one = formulas.rotate(q, m, group.inv_freq, interleaved=group.interleaved)
        other = formulas.rotate(k, n, group.inv_freq, interleaved=group.interleaved)
        return float(np.dot(one.astype(np.float64), other.astype(np.float64)))

    return max(
        abs(score(n + d + shift, n + shift) - score(n + d, n)) for n in (0, 7) for d in (0, 1, 5, 33, 200)
    )


def comparison(spec: RopeSpec, max_distance: int) -> View:
    """V10: the other ways of telling positions, on the same axes."""
    grid = _grid(max_distance)
    curves = [
        Curve(
            f"RoPE, {group_name(group)}" if len(spec.rotating) > 1 else "RoPE",
            grid,
            formulas.kernel(group.inv_freq, grid),
        )
        for group in spec.rotating
    ]
    curves.append(
        Curve("sinusoidal, Transformer-XL", grid, compare.sinusoidal_kernel(spec.hidden_size, grid))
    )
    slopes = compare.alibi_slopes(spec.num_heads)
    steepest, flattest = float(slopes.max()), float(slopes.min())
    for name, slope in (("steepest", steepest), ("flattest", flattest)):
        curves.append(Curve(f"ALiBi {name}, exp(bias)", grid, np.exp(compare.alibi_bias(slope, grid))))
    steps = (
        Curve("T5", grid, compare.t5_buckets(grid) / (compare.T5_BUCKETS - 1)),
        Curve("Shaw", grid, compare.shaw_index(grid) / compare.SHAW_CLIP),
        Curve("DeBERTa", grid, compare.deberta_buckets(grid) / (compare.DEBERTA_BUCKETS - 1)),
    )
    others = compare.schemes(spec)
    made = tuple((one.name, one.kind, one.added, one.parameters, one.source) for one in others)
    seen = tuple((one.name, one.sees, one.extrapolates) for one in others)
    words = (
        f"ALiBi's heads have slopes from {flattest:.3g} to {steepest:.3g}. T5, Shaw and DeBERTa learn a "
        "value per index: where the lower plot is flat, distances are not distinguished. Learned positions "
        "have no curve: their relation is in the weights."
    )
    return View(
        "compare",
        "V10 RoPE beside other position schemes",
        (
            Plot("what distance does to a score", "distance", "1 at distance 0", tuple(curves), x_log=True),
            Plot("index of a distance, as a share of the last", "distance", "index", steps, x_log=True),
            Note(words),
            Table("schemes", ("scheme", "kind", "added to", "parameters", "source"), made),
            Table("what they see", ("scheme", "sees", "beyond the trained length"), seen),
        ),
    )


def length_watch(spec: RopeSpec, lengths: tuple[int, ...] = ()) -> View:
    """V11: how many pairs meet angles that training never showed, at growing lengths."""
    trained = spec.trained_length

    def blocks(group: RopeLayer) -> list[Block]:
        original = group.original_length
        rows: list[tuple[Cell, ...]] = []
        for length in sorted(
            {trained // 2, trained, trained + 1, 2 * trained, 4 * trained, 16 * trained, *lengths}
        ):
            unseen = formulas.unseen_pairs(group.inv_freq, trained, length)
            early = (
                None
                if original is None
                else int(formulas.unseen_pairs(group.inv_freq, original, length, group.base_inv_freq).sum())
            )
            first = int(np.flatnonzero(unseen)[0]) if unseen.any() else None
            rows.append((length, length / trained, int(unseen.sum()), float(unseen.mean()), first, early))
        columns = ("length", "x trained", "new angles in pairs", "share", "from pair", "if untuned")
        words = (
            f"Trained length {trained}. A pair that turns fully within it has seen every angle; the others "
        )
        words += "meet new ones beyond it."
        if original is not None:
            words += f" If untuned: had training ended at {original}, before {group.rope_type} scaling."
        return [Note(words), Table("lengths", columns, tuple(rows))]

    return _rotating("length", "V11 Length watch: angles that training never showed", spec, blocks)
