"""EXAONE 4 in NumPy, f64, from its definition, and computed by the engine.

Source: transformers 5.23, modeling_exaone4.py. Llama's parts are the oracle's (`reference.py`): rotation, MLP
and RMSNorm. What differs stands here: norms after attention and MLP, a norm on every head of q and k,
windows, and layers that do not rotate.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core import generate, load, logits
from gguf_converter import Converter
from models import Tensor, encode, write_safetensors
from reference import Array, Model, mlp, rms_norm, rotary_table, rotate, softmax

SIZES: dict[str, Any] = {
    "model_type": "exaone4",
    "hidden_size": 36,
    "intermediate_size": 50,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "vocab_size": 103,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
SLIDES, STANDS, ROTATES = "windowed", "sees all, does not rotate", "sees all, rotates"
PROPORTIONAL = {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "factor": 2}
CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "published": (
        [SLIDES, SLIDES, STANDS, SLIDES],
        {
            "sliding_window": 9,
            "sliding_window_pattern": "LLLG",
            "layer_types": [f"{kind}_attention" for kind in ("sliding", "sliding", "full", "sliding")],
            "rope_theta": 1e6,
        },
    ),
    "by-number": ([SLIDES, STANDS] * 2, {"sliding_window": 7, "sliding_window_pattern": 2}),
    "no-windows": ([ROTATES] * 3, {"sliding_window": None, "tie_word_embeddings": True}),
    "proportional": ([ROTATES] * 2, {"sliding_window": None, "rope_parameters": PROPORTIONAL}),
}


def exaone4(x: list[int], model: Model, kinds: list[str]) -> Array:
    """The logits of every position.  # [V, T]"""
    X = model.theta["model.embed_tokens.weight"].T[:, x]  # [D, T]
    for i, kind in enumerate(kinds):
        layer = f"model.layers.{i}"
        Y = attention(X, f"{layer}.self_attn", model, kind)
        X = X + rms_norm(Y, f"{layer}.post_attention_layernorm", model)
        X = X + rms_norm(mlp(X, f"{layer}.mlp", model), f"{layer}.post_feedforward_layernorm", model)
    return model.linear("lm_head", rms_norm(X, "model.norm", model))


def attention(X: Array, name: str, model: Model, kind: str) -> Array:
    """Normed heads of q and k, rotated but in layers that stand; a window counts the position itself."""
    T, d = X.shape[1], model.head_dim
    Q, K, V = (model.linear(f"{name}.{part}_proj", X).reshape(-1, d, T) for part in "qkv")
    Q, K = (head_norm(Z, f"{name}.{part}_norm", model) for Z, part in ((Q, "q"), (K, "k")))
    if kind != STANDS:
        rotation = rotary_table(model, T)
        Q, K = rotate(Q, rotation), rotate(K, rotation)
    K, V = (Z.repeat(len(Q) // len(K), axis=0) for Z in (K, V))  # [H, d, T]
    distance = np.arange(T)[None, :] - np.arange(T)[:, None]  # [T keys, T queries]
    window = model.config["sliding_window"] if kind == SLIDES else T
    S = np.where((distance >= 0) & (distance < window), K.transpose(0, 2, 1) @ Q / np.sqrt(d), -np.inf)
    return model.linear(f"{name}.o_proj", (V @ softmax(S, axis=1)).reshape(-1, T))


def head_norm(Z: Array, name: str, model: Model) -> Array:
    """RMSNorm of each head by itself, one weight for all.  # [heads, d, T]"""
    scale = np.sqrt(np.mean(Z * Z, axis=1, keepdims=True) + model.config["rms_norm_eps"])
    return Z / scale * model.theta[f"{name}.weight"][:, None]


def tensors(config: dict[str, Any]) -> list[Tensor]:
    """Random weights that keep the residual stream near 1."""
    D, F, V, d = (config[key] for key in ("hidden_size", "intermediate_size", "vocab_size", "head_dim"))
    H, G = config["num_attention_heads"], config["num_key_value_heads"]
    rng = np.random.default_rng(4)
    shapes: dict[str, list[int]] = {"model.embed_tokens": [V, D], "model.norm": [D]}
    if not config.get("tie_word_embeddings"):
        shapes["lm_head"] = [V, D]
    layer = {f"self_attn.{part}_proj": [heads * d, D] for part, heads in (("q", H), ("k", G), ("v", G))}
    layer |= {"self_attn.o_proj": [D, H * d], "self_attn.q_norm": [d], "self_attn.k_norm": [d]}
    layer |= {"mlp.gate_proj": [F, D], "mlp.up_proj": [F, D], "mlp.down_proj": [D, F]}
    layer |= {f"post_{place}_layernorm": [D] for place in ("attention", "feedforward")}
    for i in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}

    def values(shape: list[int]) -> Array:
        """Of a norm, or of a matrix."""
        if len(shape) == 1:
            return rng.uniform(0.5, 1.5, shape)
        return rng.standard_normal(shape) * 2 / np.sqrt(shape[1])

    return [(f"{name}.weight", shape, encode(values(shape), "f32")) for name, shape in shapes.items()]


def write(directory: Path, config: dict[str, Any]) -> Path:
    (directory / "config.json").write_text(json.dumps(config))
    write_safetensors(directory / "model.safetensors", tensors(config), "f32")
    return directory


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[str]]:
    kinds, own = CASES[request.param]
    return write(tmp_path, SIZES | {"num_hidden_layers": len(kinds)} | own), kinds


def test_the_engine(case: tuple[Path, list[str]], isa: str) -> None:
    """Prefill, and a cache step by step, of more tokens than two windows and two blocks of the cache."""
    directory, kinds = case
    model, engine = Model.load(directory), load(directory)
    ids = np.random.default_rng(7).integers(0, 103, 75).tolist()
    expected = exaone4(ids, model, kinds).T
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(logits(engine, ids), expected, atol=1e-4, rtol=1e-4)
    new, _, _ = generate(engine, ids[:20], 30)
    greedy = exaone4(ids[:20] + new, model, kinds)[:, 19:-1]
    top = np.sort(greedy, axis=0)[-2:]
    clear = top[1] - top[0] > 1e-3
    assert clear.sum() > 20
    assert (greedy.argmax(axis=0) == new)[clear].all()


@pytest.mark.parametrize("name", [name for name in CASES if name != "proportional"])
def test_a_gguf_file_is_the_same_model(name: str, tmp_path: Path) -> None:
    kinds, own = CASES[name]
    directory = write(tmp_path, SIZES | {"num_hidden_layers": len(kinds)} | own)
    file = Converter(directory).write(tmp_path / "model.gguf")
    ids = np.random.default_rng(7).integers(0, 103, 75).tolist()
    assert (logits(load(file), ids) == logits(load(directory), ids)).all()


@pytest.mark.parametrize("kind", [ROTATES, SLIDES])
def test_the_oracle_sees_what_a_layer_does(tmp_path: Path, kind: str) -> None:
    """The check can fail: one layer of another kind is far outside its tolerance."""
    kinds, own = CASES["published"]
    model = Model.load(write(tmp_path, SIZES | {"num_hidden_layers": len(kinds)} | own))
    ids = list(range(40))
    bent = [kind if kind_of == STANDS else kind_of for kind_of in kinds]
    assert np.abs(exaone4(ids, model, kinds) - exaone4(ids, model, bent)).max() > 0.1
