"""What a model does with positions: its ropes, which layer uses which, and the trained length.

The numbers come from the engine's own reading of the config (`rust/core/src/config/`), so that every view
shows the frequencies that the forward pass uses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy.typing as npt

    from ropechat.engine.engine import Engine

    Array = npt.NDArray[np.float64]

FULL, SLIDING, NO_ROTATION, EMBEDDING = "full", "sliding", "nope", "embedding"
_STATED = ("theta", "rotary_dim", "interleaved", "inv_freq", "attention_factor", "rope_type")


@dataclass(frozen=True)
class RopeLayer:
    """Layers with the same frequencies and the same window.

    layer_type: "full", "sliding", "nope" (no rotation), or "embedding" (the token embedding is rotated once,
    before layer 0). inv_freq: radians per position of each pair, after scaling, f64 [rotary_dim / 2]; 0 for a
    pair that does not rotate. base_inv_freq: before scaling. attention_factor: multiplies cos and sin.
    rotary_dim: how many leading dimensions of a head rotate. interleaved: a pair is (2i, 2i + 1), else
    (i, i + rotary_dim / 2). window: how many positions a query sees, None: all. parameters: the keys of the
    rope type.
    """

    layer_type: str
    layers: tuple[int, ...]
    inv_freq: Array
    base_inv_freq: Array
    attention_factor: float = 1.0
    rotary_dim: int = 0
    interleaved: bool = False
    window: int | None = None
    rope_type: str = "default"
    theta: float = math.nan
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rope(self) -> bool:
        """Whether there are rotated dimensions."""
        return len(self.inv_freq) > 0

    @property
    def original_length(self) -> int | None:
        """The length before the extension that the rope type makes, if it states one."""
        return self.parameters.get("original_max_position_embeddings")


@dataclass(frozen=True)
class RopeSpec:
    """A model's positions.

    groups: its kinds of layers, that of layer 0 first. position: "none", "learned" or "rotated", what is done
    to the token embedding. trained_length: tokens. query_scaling: (beta, length) of a factor that grows with
    the query's position, or None. attention_scales: another factor of the scores, per layer. length: the
    tokens that the frequencies are for, 0: within the trained length.
    """

    groups: tuple[RopeLayer, ...]
    position: str
    trained_length: int
    head_dim: int
    num_heads: int
    hidden_size: int
    num_layers: int
    attention_multiplier: float
    query_scaling: tuple[float, int] | None
    attention_scales: tuple[float, ...]
    model_type: str
    length: int

    def of_layer(self, layer: int) -> RopeLayer:
        """The group of a layer. Raises IndexError."""
        return next((group for group in self.groups if layer in group.layers), None) or _no_layer(layer)

    def only(self, layer: int) -> RopeSpec:
        """The spec with the group of one layer only. Raises IndexError."""
        return replace(self, groups=(self.of_layer(layer),))

    @property
    def rotating(self) -> tuple[RopeLayer, ...]:
        """The groups that rotate something."""
        return tuple(group for group in self.groups if group.rope)

    @property
    def depends_on_length(self) -> bool:
        """Whether the frequencies change with the length of the whole sequence."""
        return any(group.rope_type in ("dynamic", "longrope") for group in self.groups)

    def scale(self, layer: int) -> float:
        """The factor of the attention scores of a layer."""
        return self.attention_multiplier * self.attention_scales[layer]


def _no_layer(layer: int) -> RopeLayer:
    raise IndexError(f"layer {layer}")


def default_inv_freq(theta: float, rotary_dim: int) -> Array:
    """theta^(-2i / rotary_dim) of every pair i, radians per position (Su et al. 2021, RoFormer, eq. 15)."""
    return np.float64(theta) ** (-2.0 * np.arange(rotary_dim // 2) / rotary_dim)


def rope_spec(model: str | Path | Engine, length: int = 0) -> RopeSpec:
    """The positions of a loaded model, or of a model folder, config.json or .gguf file (no weights are read).

    length: tokens of the whole sequence, which dynamic NTK and longrope depend on; 0: within the trained one.
    Raises as `Engine.check`.
    """
    return spec_of(_facts(model, length), length)


def spec_of(facts: Mapping[str, Any], length: int = 0) -> RopeSpec:
    """The positions in what `Engine.rope_spec` returned for texts of `length` tokens."""
    ropes = facts["ropes"]
    groups: list[RopeLayer] = []
    if facts["position"] == "rotated":
        groups.append(_group(EMBEDDING, (), ropes[0], None))
    members: dict[tuple[int | None, int | None], list[int]] = {}
    for index, layer in enumerate(facts["layers"]):
        members.setdefault((layer["rope"], layer["window"]), []).append(index)
    for (rope, window), layers in members.items():
        kind = NO_ROTATION if rope is None else FULL if window is None else SLIDING
        groups.append(_group(kind, tuple(layers), None if rope is None else ropes[rope], window))
    return RopeSpec(
        groups=tuple(groups),
        position=facts["position"],
        trained_length=facts["max_position_embeddings"],
        head_dim=facts["head_dim"],
        num_heads=facts["num_attention_heads"],
        hidden_size=facts["hidden_size"],
        num_layers=facts["num_hidden_layers"],
        attention_multiplier=facts["attention_multiplier"],
        query_scaling=None if facts["query_scaling"] is None else tuple(facts["query_scaling"]),
        attention_scales=tuple(layer["attention_scale"] for layer in facts["layers"]),
        model_type=facts["model_type"],
        length=length,
    )


def _facts(model: str | Path | Engine, length: int) -> Mapping[str, Any]:
    from ropechat.engine import native
    from ropechat.engine.engine import Engine

    if isinstance(model, Engine):
        return model.rope_spec(length)
    return native.rope_spec(str(model), length)


def _group(
    kind: str, layers: tuple[int, ...], rope: Mapping[str, Any] | None, window: int | None
) -> RopeLayer:
    if rope is None:
        return RopeLayer(kind, layers, np.zeros(0), np.zeros(0), window=window)
    return RopeLayer(
        kind,
        layers,
        np.asarray(rope["inv_freq"], np.float64),
        default_inv_freq(rope["theta"], rope["rotary_dim"]),
        rope["attention_factor"],
        rope["rotary_dim"],
        rope["interleaved"],
        window,
        rope["rope_type"],
        rope["theta"],
        {key: value for key, value in rope.items() if key not in _STATED},
    )
