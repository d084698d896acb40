"""The formulas of the RoPE view, beside independent calculations and the numbers of published configs."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from golden_cases import GOLDEN
from reference import read_safetensors
from rope_configs import spec_of

from ropechat.inspector.rope import compare, formulas, shapes
from ropechat.inspector.rope.spec import RopeLayer, default_inv_freq, rope_spec

FAR = None
"""No zero of B up to 60,000."""

PUBLISHED = {
    "llama-7b": (64, 5.4e4, 18, (0.31, 0.12, 0.12), 1707, 11),
    "smollm2-135m": (32, 4.4e5, 13, (0.46, 0.26, 0.19), 3616, 5),
    "qwen3-0.6b": (64, 5.1e6, 33, (0.50, 0.33, 0.33), 27115, 5),
    "qwen3-4b-2507": (64, 2.5e7, 37, (0.61, 0.31, 0.25), FAR, 5),
    "llama-3.2-1b": (32, 6.7e7, 17, (0.50, 0.45, 0.36), FAR, 5),
    "gemma-3-1b, window 512": (128, 5.9e4, 37, (0.32, None, None), 2653, 24),
    "gemma-3-1b, full": (128, 5.6e6, 67, (0.50, None, None), FAR, 17),
    "gemma 4 global: proportional": (256, 188, 0, (0.53, 0.58, 0.59), FAR, 12),
    "qwen 3.5 full: partial": (32, 3.8e7, 19, (0.59, 0.44, 0.18), 45826, None),
}
"""Pairs, longest wavelength, pairs with a wavelength above 4096, U/U(0) at 64, 1024, 32768, first zero of B,
falling until: two digits, calculated apart from this code (design notes, chapter 4)."""

TAU = {
    "llama-7b": 0.91,
    "smollm2-135m": 0.86,
    "qwen3-0.6b": 0.92,
    "qwen3-4b-2507": 0.88,
    "llama-3.2-1b": 0.67,
    "gemma-3-1b, window 512": 0.97,
    "gemma-3-1b, full": 0.96,
    "gemma 4 global: proportional": 0.23,
}
"""On a grid of 60 distances which those notes do not state: hence the width of the tolerance."""


def group_of(name: str, folder: Path) -> RopeLayer:
    if name.startswith("gemma 4"):
        parameters = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
        return spec_of(folder, head_dim=512, rope_theta=None, rope_parameters=parameters).groups[0]
    if name.startswith("qwen 3.5"):
        keys = {"model_type": "glm", "partial_rotary_factor": 0.25, "head_dim": 256, "rope_theta": 1e7}
        return spec_of(folder, num_key_value_heads=1, **keys).groups[0]
    shape, _, kind = name.partition(", ")
    groups = rope_spec(shapes.config_path(shape)).groups
    return next(group for group in groups if not kind or (kind == "full") == (group.window is None))


@pytest.mark.parametrize("name", PUBLISHED)
def test_numbers_of_published_configs(name: str, tmp_path: Path) -> None:
    pairs, longest, slow, bounds, zero, falling = PUBLISHED[name]
    group = group_of(name, tmp_path)
    props = formulas.properties(group.inv_freq, 4096)
    assert props.pairs == pairs
    assert props.longest == pytest.approx(longest, rel=0.02)
    assert props.unturned == slow
    top = formulas.decay_bound(group.inv_freq, np.zeros(1))[0]
    assert top == pytest.approx((pairs + 1) / 2)
    for distance, bound in zip((64.0, 1024.0, 32768.0), bounds, strict=True):
        found = formulas.decay_bound(group.inv_freq, np.array([distance]))[0] / top
        assert bound is None or found == pytest.approx(bound, abs=0.006)
    assert props.first_zero == zero
    assert falling is None or props.falling_until == falling
    if name in TAU:
        assert props.tau == pytest.approx(TAU[name], abs=0.05)
    if name.startswith("gemma 4"):
        assert props.still == 192


def test_the_matrix_is_the_element_wise_form() -> None:
    seed = 4
    random = np.random.default_rng(seed)
    for interleaved, factor, position in itertools.product((False, True), (1.0, 1.3), (0, 1, 4097, 131_072)):
        inv_freq = default_inv_freq(10_000.0, 32)
        x = random.standard_normal(32)
        by_matrix = formulas.rotation_matrix(position, inv_freq, interleaved=interleaved, factor=factor) @ x
        fast = formulas.rotate(x, position, inv_freq, interleaved=interleaved, factor=factor)
        assert np.abs(by_matrix - fast).max() < 1e-14, f"seed {seed}"
        norm = factor * np.linalg.norm(x)
        assert np.linalg.norm(fast) == pytest.approx(norm, rel=1e-12)


@pytest.mark.parametrize(
    ("tensor", "size", "first", "interleaved"),
    [("rot.half.q", 16, 3, False), ("rot.roformer.q", 16, 0, True), ("rot.gptj_partial6.q", 6, 3, True)],
)
def test_rotation_is_that_of_transformers(tensor: str, size: int, first: int, interleaved: bool) -> None:
    golden = read_safetensors(GOLDEN / "rope_units" / "rope.safetensors")
    inv_freq = default_inv_freq(10_000.0, size)
    rows = [
        formulas.rotate(row, first + at, inv_freq, interleaved=interleaved)
        for at, row in enumerate(golden["rot.q"])
    ]
    assert np.abs(np.stack(rows) - golden[tensor]).max() < 2e-5


def test_the_kernel_is_the_inner_product_of_sinusoidal_embeddings() -> None:
    inv_freq = default_inv_freq(10_000.0, 64)

    def embedding(position: int) -> np.ndarray:
        return np.concatenate([np.sin(position * inv_freq), np.cos(position * inv_freq)])

    for m, n in ((0, 0), (5, 3), (900, 17)):
        product = embedding(m) @ embedding(n) / len(inv_freq)
        assert formulas.kernel(inv_freq, np.array([float(m - n)]))[0] == pytest.approx(product, abs=1e-12)
    distances = np.array([0.0, 7.0, 300.0])
    assert compare.sinusoidal_kernel(64, distances) == pytest.approx(formulas.kernel(inv_freq, distances))


def test_roformers_bound_holds_and_is_loose() -> None:
    seed = 11
    random = np.random.default_rng(seed)
    inv_freq = default_inv_freq(10_000.0, 64)
    for distance in (1, 17, 1000):
        many = random.standard_normal((50, 32)) + 1j * random.standard_normal((50, 32))
        scores, bounds = formulas.score_bound(many, inv_freq, distance)
        assert (scores <= bounds).all(), f"seed {seed}"
        terms, score, bound = many[7], scores[7], bounds[7]
        direct = abs(sum(term * np.exp(1j * distance * t) for term, t in zip(terms, inv_freq, strict=True)))
        assert score == pytest.approx(direct)
        sums = list(itertools.accumulate(np.exp(1j * distance * inv_freq)))
        steps = [abs(b - a) for a, b in itertools.pairwise([*terms, 0.0])]
        assert bound == pytest.approx(max(steps) * sum(map(abs, sums)))
        assert bound > 5 * score


def test_kendalls_tau_counts_pairs() -> None:
    seed = 3
    random = np.random.default_rng(seed)
    a, b = random.permutation(20).astype(float), random.permutation(20).astype(float)
    signs = [math.copysign(1, (a[j] - a[i]) * (b[j] - b[i])) for i, j in itertools.combinations(range(20), 2)]
    assert formulas.kendall_tau(a, b) == pytest.approx(sum(signs) / len(signs)), f"seed {seed}"
    assert formulas.kendall_tau(a, a) == 1.0
    assert formulas.kendall_tau(a, -a) == -1.0


def test_asymmetry() -> None:
    inv_freq, distances = default_inv_freq(10_000.0, 8), np.arange(1.0, 50.0)
    assert formulas.asymmetry(np.ones(4, complex), inv_freq, distances) == 0.0
    assert formulas.asymmetry(1j * np.ones(4), inv_freq, distances) == 1.0
    assert formulas.asymmetry(np.zeros(4, complex), inv_freq, distances) == 0.0


def test_unseen_pairs() -> None:
    inv_freq = np.array([1.0, 2 * np.pi / 1000, 2 * np.pi / 1001, 0.0])
    assert formulas.unseen_pairs(inv_freq, 1000, 1000).tolist() == [False] * 4
    assert formulas.unseen_pairs(inv_freq, 1000, 1001).tolist() == [False, False, True, False]
    slowed = inv_freq / 4
    assert formulas.unseen_pairs(slowed, 1000, 4000, inv_freq).tolist() == [False] * 4
    assert formulas.unseen_pairs(slowed, 1000, 4001, inv_freq).tolist() == [False, False, True, False]


def test_buckets_of_other_schemes() -> None:
    at = np.array([0.0, 1, 15, 16, 20, 21, 64, 113, 127, 128, 5000])
    assert compare.t5_buckets(at).tolist() == [0, 1, 15, 16, 17, 18, 26, 31, 31, 31, 31]
    assert compare.shaw_index(np.array([0.0, 16, 17])).tolist() == [0, 16, 16]
    at = np.array([0.0, 127, 128, 129, 511, 512, 9000])
    assert compare.deberta_buckets(at).tolist() == [0, 127, 128, 129, 255, 255, 255]
    assert compare.alibi_slopes(8).tolist() == [2.0**-power for power in range(1, 9)]
    twelve = compare.alibi_slopes(12)
    assert twelve[:8].tolist() == compare.alibi_slopes(8).tolist()
    assert twelve[8:] == pytest.approx([2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5])
