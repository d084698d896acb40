"""Other position encodings, on the same axes as RoPE.

Sources: sinusoidal, Vaswani et al. 2017; learned, Gehring et al. 2017; Shaw et al. 2018 (clipped distances);
Transformer-XL, Dai et al. 2019; T5, Raffel et al. 2020 (buckets); DeBERTa, He et al. 2021 (log buckets of
version 2); ALiBi, Press et al. 2022.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ropechat.inspector.rope.formulas import kernel
from ropechat.inspector.rope.spec import default_inv_freq

if TYPE_CHECKING:
    from ropechat.inspector.rope.formulas import Array
    from ropechat.inspector.rope.spec import RopeSpec

SHAW_CLIP = 16
T5_BUCKETS, T5_LONGEST = 32, 128
DEBERTA_BUCKETS, DEBERTA_LONGEST = 256, 512


@dataclass(frozen=True)
class Scheme:
    """A row of the comparison. parameters: numbers that a model of this shape would learn for it."""

    name: str
    kind: str
    added: str
    sees: str
    parameters: int
    extrapolates: str
    source: str


def sinusoidal_kernel(hidden_size: int, distances: Array) -> Array:
    """PE(m) . PE(n) divided by PE(m) . PE(m): RoPE's kernel with base 10,000 over the whole width.  # [n]"""
    return kernel(default_inv_freq(10_000.0, 2 * (hidden_size // 2)), distances)


def alibi_slopes(heads: int) -> Array:
    """2^(-8h/heads) for h = 1 .. heads; between powers of two, filled up as in the authors' code."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = 2.0 ** (-8.0 * np.arange(1, power + 1) / power)
    more = 2.0 ** (-8.0 * np.arange(1, 2 * power + 1) / (2 * power))
    return np.concatenate([slopes, more[0::2][: heads - power]])


def alibi_bias(slope: float, distances: Array) -> Array:
    """What ALiBi adds to the scores of a head: -slope * distance.  # [n]"""
    return -slope * distances


def t5_buckets(distances: Array, buckets: int = T5_BUCKETS, longest: int = T5_LONGEST) -> Array:
    """The bucket of each distance to an earlier key: half of them exact, then evenly in the logarithm.  # [n]

    A decoder's buckets, as in the authors' code.
    """
    exact = buckets // 2
    with np.errstate(divide="ignore"):
        far = exact + np.floor(np.log(distances / exact) / math.log(longest / exact) * (buckets - exact))
    return np.where(distances < exact, distances, np.minimum(far, buckets - 1))


def shaw_index(distances: Array, clip: int = SHAW_CLIP) -> Array:
    """The index of the learned vector of a distance: min(distance, clip).  # [n]"""
    return np.minimum(distances, clip)


def deberta_buckets(
    distances: Array, buckets: int = DEBERTA_BUCKETS, longest: int = DEBERTA_LONGEST
) -> Array:
    """The bucket of each distance: exact up to half of them, then evenly in the logarithm.  # [n]

    As in the authors' code (`make_log_bucket_position`), and clipped to the last bucket.
    """
    middle = buckets // 2
    with np.errstate(divide="ignore"):
        far = np.ceil(np.log(distances / middle) / math.log((longest - 1) / middle) * (middle - 1)) + middle
    return np.minimum(np.where(distances <= middle, distances, far), buckets - 1)


def schemes(spec: RopeSpec) -> list[Scheme]:
    """RoPE and the others, with the numbers of parameters that a model of this shape would need."""
    width, heads, layers, dim = spec.hidden_size, spec.num_heads, spec.num_layers, spec.head_dim
    length = spec.trained_length
    return [
        Scheme("RoPE", "relative", "q and k, every layer", "m - n", 0, "with scaling", "Su et al. 2021"),
        Scheme("none (NoPE)", "none", "nowhere", "order, by the causal mask", 0, "partly", "Kazemnejad 2023"),
        Scheme(
            "sinusoidal",
            "absolute",
            "embedding",
            "m; PE(m).PE(n) depends on m - n",
            0,
            "badly",
            "Vaswani 2017",
        ),
        Scheme(
            "learned",
            "absolute",
            "embedding",
            "m; needs weights, no relation between positions",
            length * width,
            f"no: ends at {length}",
            "Gehring 2017",
        ),
        Scheme(
            "Shaw",
            "relative",
            "keys and values, every layer",
            f"min(m - n, {SHAW_CLIP})",
            layers * 2 * (SHAW_CLIP + 1) * dim,
            f"flat beyond {SHAW_CLIP}",
            "Shaw et al. 2018",
        ),
        Scheme(
            "Transformer-XL",
            "relative",
            "scores: R(m - n), u, v",
            "m - n, sinusoidal",
            layers * (width * heads * dim + 2 * heads * dim),
            "fairly",
            "Dai et al. 2019",
        ),
        Scheme(
            "T5",
            "relative",
            "scores, one table for all layers",
            f"bucket of m - n, one above {T5_LONGEST}",
            T5_BUCKETS * heads,
            f"flat beyond {T5_LONGEST}",
            "Raffel et al. 2020",
        ),
        Scheme(
            "DeBERTa",
            "relative",
            "scores: c2p and p2c",
            f"bucket of m - n, one above {DEBERTA_LONGEST}",
            2 * DEBERTA_BUCKETS * width,
            f"flat beyond {DEBERTA_LONGEST}",
            "He et al. 2021",
        ),
        Scheme(
            "ALiBi",
            "relative",
            "scores, every layer",
            "-slope (m - n)",
            0,
            "yes, by fading",
            "Press et al. 2022",
        ),
    ]
