"""What a loaded model does with its frequencies: one score split into pairs, and the use of each pair.

Arrays in, numbers out; `measured.py` gets the arrays from an engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ropechat.inspector.rope.formulas import as_complex

if TYPE_CHECKING:
    from ropechat.inspector.rope.formulas import Array, Complex, Floats
    from ropechat.inspector.rope.spec import RopeLayer


@dataclass(frozen=True)
class Split:
    """One attention score as a sum over pairs.

    terms: z_q conj(z_k), complex [P]. parts: what each pair contributes to the score, f64 [P]. rest: the
    contribution of the dimensions that are not rotated. scale: factor of the score, with the attention factor
    in it.
    """

    inv_freq: Array
    terms: Complex
    parts: Array
    rest: float
    scale: float

    @property
    def total(self) -> float:
        """The score before soft-capping and softmax."""
        return float(self.parts.sum()) + self.rest

    def at(self, distances: Array) -> Array:
        """The score if the key were at these distances instead.  # [n]"""
        angles = np.exp(1j * np.outer(distances, self.inv_freq))
        return np.asarray(self.scale * (angles @ self.terms).real + self.rest, np.float64)


def split_score(query: Floats, key: Floats, distance: int, group: RopeLayer, scale: float) -> Split:
    """Split the score of a query and a key `distance` positions before it.

    query, key: one head's, after the norm of q and k and before the rotation.  # [head_dim]
    scale: the layer's factor of scores. A pair contributes scale alpha^2 (Re w cos(d t) - Im w sin(d t)) with
    w = z_q conj(z_k), t = inv_freq and the attention factor alpha.
    """
    pairs = len(group.inv_freq)
    z_query = as_complex(query, pairs, interleaved=group.interleaved)
    z_key = as_complex(key, pairs, interleaved=group.interleaved)
    terms = z_query * np.conj(z_key)
    sharp = scale * group.attention_factor**2
    parts = sharp * (terms * np.exp(1j * distance * group.inv_freq)).real
    plain = np.asarray(query, np.float64)[2 * pairs :] @ np.asarray(key, np.float64)[2 * pairs :]
    return Split(group.inv_freq, terms, parts, scale * float(plain), sharp)


def pair_usage(queries: Floats, keys: Floats, group: RopeLayer) -> Array:
    """How much of each head's queries and keys lies in each pair: mean |z_q| times mean |z_k|, as shares.

    queries, keys: before the rotation, the key being the one that the query head reads.
    # [heads, tokens, head_dim] each
    After Barbero et al. 2024 (https://arxiv.org/abs/2410.06205), who look at the norms of one model.
    # [heads, P]; all 0 for a head without rotated content
    """
    pairs = len(group.inv_freq)
    of_queries = np.abs(as_complex(queries, pairs, interleaved=group.interleaved)).mean(axis=1)
    of_keys = np.abs(as_complex(keys, pairs, interleaved=group.interleaved)).mean(axis=1)
    product = of_queries * of_keys
    whole = product.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(product, whole, out=np.zeros_like(product), where=whole > 0.0), np.float64)
