"""Formulas of rotary position embeddings, in f64.

P pairs; inv_freq f64 [P] in radians per position; a distance is the query's position minus the key's, >= 0.
Sources: Su et al. 2021 (RoFormer, https://arxiv.org/abs/2104.09864), unless another is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]
    Floats = npt.NDArray[np.floating[Any]]
    Complex = npt.NDArray[np.complex128]

LOCAL = 64
"""Pairs with a shorter wavelength (in positions) distinguish neighbours."""
ZERO_LIMIT = 60_000
"""How far `properties` looks for the first zero of the kernel."""
TAU_POINTS, TAU_DISTANCE = 60, 4096
_BLOCK = 4096


def wavelengths(inv_freq: Array) -> Array:
    """Positions per full turn, 2 pi / inv_freq; infinity where a pair does not rotate.  # [P]"""
    with np.errstate(divide="ignore"):
        return 2.0 * np.pi / np.asarray(inv_freq, np.float64)


def rotation_map(inv_freq: Array, positions: Array) -> Array:
    """cos(position * inv_freq).  # [positions, P]"""
    return np.cos(np.outer(positions, inv_freq))


def pair_dims(rotary_dim: int, *, interleaved: bool) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The first and the second dimension of each pair.  # [P] each"""
    pairs = np.arange(rotary_dim // 2)
    return (2 * pairs, 2 * pairs + 1) if interleaved else (pairs, pairs + rotary_dim // 2)


def rotation_matrix(
    position: float, inv_freq: Array, *, interleaved: bool = False, factor: float = 1.0
) -> Array:
    """The block-diagonal matrix R of eq. 15, with the blocks [[cos, -sin], [sin, cos]].  # [2P, 2P]"""
    first, second = pair_dims(2 * len(inv_freq), interleaved=interleaved)
    cos, sin = np.cos(position * inv_freq) * factor, np.sin(position * inv_freq) * factor
    matrix = np.zeros((2 * len(inv_freq),) * 2)
    matrix[first, first] = matrix[second, second] = cos
    matrix[first, second], matrix[second, first] = -sin, sin
    return matrix


def rotate(
    x: Floats, position: float, inv_freq: Array, *, interleaved: bool = False, factor: float = 1.0
) -> Floats:
    """x * cos + rotate_half(x) * sin (eq. 34), in the type of x; dimensions beyond 2P stay.  # [..., D]

    cos and sin are computed in f64 and rounded once, as the engine does.
    """
    x = np.asarray(x)
    first, second = pair_dims(2 * len(inv_freq), interleaved=interleaved)
    cos = (np.cos(position * inv_freq) * factor).astype(x.dtype)
    sin = (np.sin(position * inv_freq) * factor).astype(x.dtype)
    rotated = x.copy()
    rotated[..., first] = x[..., first] * cos - x[..., second] * sin
    rotated[..., second] = x[..., second] * cos + x[..., first] * sin
    return rotated


def as_complex(x: Floats, pairs: int, *, interleaved: bool = False) -> Complex:
    """The pairs of a vector as complex numbers.  # [..., P]"""
    first, second = pair_dims(2 * pairs, interleaved=interleaved)
    x = np.asarray(x, np.float64)
    return np.asarray(x[..., first] + 1j * x[..., second], np.complex128)


def kernel(inv_freq: Array, distances: Array) -> Array:
    """B = mean over pairs of cos(distance * inv_freq).  # [n]

    What a vector whose pairs are equally long scores with itself at a distance, divided by its squared norm.

    Xu et al. 2024 (https://arxiv.org/abs/2405.14591); two sinusoidal embeddings have the same inner product.
    """
    return np.asarray(np.cos(np.outer(distances, inv_freq)).mean(axis=1), np.float64)


def decay_bound(inv_freq: Array, distances: Array) -> Array:
    """U = mean over j = 1 .. P of |S_j|, S_j the sum of the first j terms exp(i distance inv_freq).  # [n]

    Eq. 37 of RoFormer, which calls it the relative upper bound. U(0) is (P + 1) / 2.
    """
    return np.asarray(np.abs(partial_sums(inv_freq, distances)).mean(axis=1), np.float64)


def partial_sums(inv_freq: Array, distances: Array) -> Complex:
    """S_1 .. S_P of `decay_bound`.  # [n, P]"""
    return np.cumsum(np.exp(1j * np.outer(distances, inv_freq)), axis=1)


def score_bound(terms: Complex, inv_freq: Array, distance: float) -> tuple[Array, Array]:
    """|sum of terms exp(i distance inv_freq)|, and RoFormer's bound of it (section 3.4.3).  # [n] each

    terms: h = z_q conj(z_k) of each pair.  # complex [n, P]
    The bound is max |h_(i+1) - h_i| times the sum of |S_(i+1)|, with h_P = 0 (eq. 35 to 37).
    """
    scores = np.abs(terms @ np.exp(1j * distance * inv_freq))
    steps = np.abs(np.diff(terms, axis=1, append=0.0)).max(axis=1)
    sums = np.abs(partial_sums(inv_freq, np.array([distance]))).sum()
    return np.asarray(scores, np.float64), np.asarray(steps * sums, np.float64)


@dataclass(frozen=True)
class Props:
    """What the kernel says about proximity.

    pairs, still: all of them, and those that do not rotate. local: with a wavelength below LOCAL. unturned:
    rotating pairs that make no full turn within the trained length. longest: the longest wavelength.
    first_zero: the least distance with B < 0, None: not up to ZERO_LIMIT. falling_until: up to this distance
    B falls from each distance to the next. tau: Kendall's tau of -B against the distance, on TAU_POINTS
    distances from 1 to TAU_DISTANCE, evenly spaced in their logarithm and rounded; 1 is monotone.
    """

    pairs: int
    still: int
    local: int
    unturned: int
    longest: float | None
    first_zero: int | None
    falling_until: int
    tau: float


def properties(inv_freq: Array, trained_length: int) -> Props:
    """Measure the kernel's first zero, how long it falls, and how monotone it is."""
    turning = inv_freq[inv_freq > 0.0]
    waves = wavelengths(turning)
    grid = tau_grid()
    return Props(
        len(inv_freq),
        len(inv_freq) - len(turning),
        int((waves < LOCAL).sum()),
        int((waves > trained_length).sum()),
        float(waves.max()) if len(waves) else None,
        first_zero(inv_freq),
        falling_until(inv_freq),
        kendall_tau(grid, -kernel(inv_freq, grid)),
    )


def tau_grid() -> Array:
    """The distances at which tau is taken."""
    return np.unique(np.round(np.geomspace(1.0, TAU_DISTANCE, TAU_POINTS)))


def first_zero(inv_freq: Array, limit: int = ZERO_LIMIT) -> int | None:
    """The least distance at which B < 0; None: not up to `limit`."""
    for start in range(0, limit + 1, _BLOCK):
        values = kernel(inv_freq, np.arange(start, min(start + _BLOCK, limit + 1), dtype=np.float64))
        if (below := np.flatnonzero(values < 0.0)).size:
            return start + int(below[0])
    return None


def falling_until(inv_freq: Array, limit: int = _BLOCK) -> int:
    """The distance up to which B falls at each step, at most `limit`."""
    values = kernel(inv_freq, np.arange(limit + 1, dtype=np.float64))
    rises = np.flatnonzero(np.diff(values) >= 0.0)
    return int(rises[0]) if rises.size else limit


def kendall_tau(a: Array, b: Array) -> float:
    """Kendall's tau: concordant minus discordant pairs of points, divided by all pairs (1938)."""
    one, other = np.triu_indices(len(a), 1)
    return float(np.mean(np.sign((a[other] - a[one]) * (b[other] - b[one]))))


def asymmetry(terms: Complex, inv_freq: Array, distances: Array) -> float:
    """How far a score is from a function of |distance|: the norm of its odd part divided by its norm.

    terms: z_q conj(z_k) of each pair. The odd part is -sum Im(terms) sin(distance inv_freq); 0 for equal
    vectors. 0/0 (a zero vector) is 0.
    """
    angles = np.outer(distances, inv_freq)
    odd = -(np.sin(angles) @ terms.imag)
    even = np.cos(angles) @ terms.real
    whole = float(np.sqrt((odd**2 + even**2).sum()))
    return float(np.sqrt((odd**2).sum())) / whole if whole else 0.0


def unseen_pairs(inv_freq: Array, trained_length: int, length: int, trained: Array | None = None) -> Array:
    """Whether each pair meets angles that training never showed it, at a text of `length` tokens.  # bool [P]

    A pair that turns fully within the trained length has seen every angle. trained: the frequencies that
    training used, when scaling came later.
    """
    trained = inv_freq if trained is None else trained
    reach = trained_length * trained
    return np.asarray((reach < 2.0 * np.pi) & (length * inv_freq > reach))
