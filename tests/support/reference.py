"""The oracle: a Llama decoder in plain NumPy, f64, to be read beside the pseudo-code.

It follows DTransformerRoPE of X. Zhan, "Pseudo code for Roformer" (2024), after Phuong and Hutter, "Formal
Algorithms for Transformers" (2022): token ids x in, P in (0,1)^{N_V x length(x)} out, one column per token,
P[:, t] = P(x[t+1] | x[1..t]). Where Llama departs from it (rotation of q and k instead of the embedding,
RMSNorm, the gated MLP) the function says so. RoPE scaling follows transformers 5.23, modeling_rope_utils.py.

Letters: T = length(x), V = vocab_size, D = hidden_size, F = intermediate_size,
         H = num_attention_heads, G = num_key_value_heads, d = head_dim.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8"}


def read_safetensors(path: Path) -> dict[str, Array]:
    """Every tensor of a file; bf16 becomes f32 (it is the upper half of one)."""
    data = path.read_bytes()
    body = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:body]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            values = np.frombuffer(data[body + begin : body + end], DTYPES[entry["dtype"]])
            if entry["dtype"] == "BF16":
                values = (values.astype("<u4") << 16).view("<f4")
            tensors[name] = values.reshape(entry["shape"])
    return tensors


@dataclass(frozen=True)
class Model:
    """config.json as it stands, and theta: the weights under their Hugging Face names, f64."""

    config: dict[str, Any]
    theta: dict[str, Array]

    @classmethod
    def load(cls, directory: Path) -> "Model":
        theta: dict[str, Array] = {}
        for file in sorted(directory.glob("model*.safetensors")):
            theta |= {name: W.astype(np.float64) for name, W in read_safetensors(file).items()}
        head, embedding = "lm_head.weight", "model.embed_tokens.weight"
        config = json.loads((directory / "config.json").read_text())
        if config.get("tie_word_embeddings", False):
            theta[head] = theta[embedding] = theta[embedding if embedding in theta else head]
        return cls(config, theta)

    def linear(self, name: str, X: Array) -> Array:
        """W X + b; b only where the checkpoint has one."""
        Y = self.theta[f"{name}.weight"] @ X  # [out, T]
        bias = self.theta.get(f"{name}.bias")
        return Y if bias is None else Y + bias[:, None]

    @property
    def head_dim(self) -> int:
        D, H = self.config["hidden_size"], self.config["num_attention_heads"]
        return int(self.config.get("head_dim") or D // H)


def probabilities(x: Sequence[int], model: Model) -> Array:
    """P <- DTransformerRoPE(x | theta): column t is the distribution of the token after x[1..t].  # [V, T]"""
    return softmax(forward(x, model), axis=0)


def forward(x: Sequence[int], model: Model, hidden: list[Array] | None = None) -> Array:
    """The logits W_u X; `hidden` collects the residual stream as transformers' hidden_states do.  # [V, T]"""
    config = model.config
    hidden = [] if hidden is None else hidden
    X = model.theta["model.embed_tokens.weight"].T[:, list(x)]  # [D, T]
    rotation = rotary_table(model, len(x))  # 2 x [d/2, T]
    for i in range(config["num_hidden_layers"]):
        hidden.append(X)
        layer = f"model.layers.{i}"
        Z = rms_norm(X, f"{layer}.input_layernorm", model)  # [D, T]
        X = X + attention(Z, f"{layer}.self_attn", model, rotation)
        Z = rms_norm(X, f"{layer}.post_attention_layernorm", model)
        X = X + mlp(Z, f"{layer}.mlp", model)
    X = rms_norm(X, "model.norm", model)  # [D, T]
    hidden.append(X)
    return model.linear("lm_head", X)  # [V, T]


def attention(Z: Array, name: str, model: Model, rotation: tuple[Array, Array]) -> Array:
    """Multi-head causal self-attention: V softmax(K^T Q / sqrt(d)), keys t' <= t.  # [D, T] -> [D, T]"""
    T, d = Z.shape[1], model.head_dim
    Q = rotate(model.linear(f"{name}.q_proj", Z).reshape(-1, d, T), rotation)  # [H, d, T]
    K = rotate(model.linear(f"{name}.k_proj", Z).reshape(-1, d, T), rotation)  # [G, d, T]
    V = model.linear(f"{name}.v_proj", Z).reshape(-1, d, T)  # [G, d, T]
    group = len(Q) // len(K)  # query heads that share one key/value head
    K, V = K.repeat(group, axis=0), V.repeat(group, axis=0)  # [H, d, T]
    S = K.transpose(0, 2, 1) @ Q / np.sqrt(d)  # [H, T keys, T queries]
    S[:, ~np.triu(np.ones((T, T), bool))] = -np.inf  # Mask[t', t] = [t' <= t]
    Y = V @ softmax(S, axis=1)  # [H, d, T]
    return model.linear(f"{name}.o_proj", Y.reshape(-1, T))


def mlp(Z: Array, name: str, model: Model) -> Array:
    """Shazeer 2020, SwiGLU, where the pseudo-code has W_mlp2 GELU(W_mlp1 Z).  # [D, T] -> [D, T]"""
    gate = model.linear(f"{name}.gate_proj", Z)  # [F, T]
    return model.linear(f"{name}.down_proj", silu(gate) * model.linear(f"{name}.up_proj", Z))


def rms_norm(X: Array, name: str, model: Model) -> Array:
    """Zhang and Sennrich 2019: a LayerNorm without mean and offset.  # [D, T] -> [D, T]"""
    scale = np.sqrt(np.mean(X * X, axis=0) + model.config["rms_norm_eps"])  # [T]
    return X / scale * model.theta[f"{name}.weight"][:, None]


def silu(X: Array) -> Array:
    return X / (1 + np.exp(-X))


def softmax(X: Array, axis: int) -> Array:
    E = np.exp(X - X.max(axis=axis, keepdims=True))
    return E / E.sum(axis=axis, keepdims=True)


def rotate(X: Array, rotation: tuple[Array, Array]) -> Array:
    """R_e(t) on column t of each head; Hugging Face's llama pairs dimension i with i + d/2.  # [.., d, T]"""
    cos, sin = rotation  # [d/2, T]
    a, b = np.split(X, 2, axis=-2)  # [.., d/2, T]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-2)


def rotary_table(model: Model, length: int) -> tuple[Array, Array]:
    """cos and sin of the angles t * theta_i, t = 0 .. T-1, times the attention factor.  # 2 x [d/2, T]"""
    frequencies, factor = rotary_frequencies(model.config, model.head_dim, length)
    angles = np.outer(frequencies, np.arange(length))
    return factor * np.cos(angles), factor * np.sin(angles)


def rotary_frequencies(config: dict[str, Any], d: int, length: int) -> tuple[Array, float]:
    """theta_i = base^(-2i/d) as the scaling type changes them, and the attention factor.  # [d/2]"""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    base = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    kind, s = rope.get("rope_type", rope.get("type", "default")), rope.get("factor", 1.0)
    trained = rope.get("original_max_position_embeddings") or config["max_position_embeddings"]
    exponents = np.arange(0, d, 2) / d
    theta = base**-exponents
    if kind == "default":
        return theta, 1.0
    if kind == "linear":  # Chen et al. 2023, position interpolation
        return theta / s, 1.0
    if kind == "proportional":  # the leading pairs turn at the whole head's speeds, the others stand still
        turning = int(rope.get("partial_rotary_factor", 1.0) * d // 2)
        return np.where(np.arange(len(theta)) < turning, theta / s, 0.0), 1.0
    if kind == "dynamic":  # the base grows with the whole length beyond the trained one
        grown = base * (s * max(length, trained) / trained - (s - 1)) ** (d / (d - 2))
        return grown**-exponents, 1.0
    if kind == "llama3":  # turns over the trained length: few are interpolated, many are kept, a ramp between
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        turns = trained * theta / (2 * np.pi)
        keep = np.clip((turns - low) / (high - low), 0, 1)
        return keep * theta + (1 - keep) * theta / s, 1.0
    if kind == "yarn":
        return yarn(theta, rope, base, trained)
    raise ValueError(f"the oracle does not know rope_type {kind!r}")


def yarn(theta: Array, rope: dict[str, Any], base: float, trained: int) -> tuple[Array, float]:
    """Peng et al. 2023: a ramp over dimensions, not turns, and a temperature on q and k.  # [d/2] -> [d/2]"""
    d, s = 2 * len(theta), rope["factor"]

    def dimension(turns: float) -> float:
        """The dimension pair that turns so often over the trained length."""
        return d * np.log(trained / (turns * 2 * np.pi)) / (2 * np.log(base))

    def mscale(weight: float) -> float:
        return 0.1 * weight * np.log(s) + 1 if s > 1 else 1.0

    low, high = dimension(rope.get("beta_fast") or 32), dimension(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = np.floor(low), np.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    interpolate = np.clip((np.arange(d // 2) - low) / ((high - low) or 0.001), 0, 1)
    factor = rope.get("attention_factor")
    if factor is None:
        weights = rope.get("mscale"), rope.get("mscale_all_dim")
        factor = mscale(weights[0]) / mscale(weights[1]) if all(weights) else mscale(1.0)
    return interpolate * theta / s + (1 - interpolate) * theta, factor
