"""DTransformerRoPE, the pseudo-code that this project starts from: in NumPy, and computed by the engine."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core import add, drain, load, logits
from golden_cases import DTRANSFORMER, PROMPTS
from reference import Array, read_safetensors, softmax

ATOL = 1e-4  # golden.json: tolerance


def dtransformer_rope(x: list[int], theta: dict[str, Array], config: dict[str, Any]) -> Array:
    """P <- DTransformerRoPE(x | theta), X. Zhan, "Pseudo code for Roformer" (2024); logits instead of P.

    Returns [N_V, length(x)]. x: token ids; theta: W_e, W_u, gamma, beta and per layer W_q, W_k, W_v, W_o,
    W_mlp1, W_mlp2 with their biases, gamma1, beta1, gamma2, beta2. H heads are blocks of rows.
    """
    H, d_head, first = config["H"], config["d_head"], config["first_position"]
    # for t in [length]: e_t <- R_e(t) W_e[:, x[t]]
    X = np.stack([rotated(theta["W_e"][:, id], first + t) for t, id in enumerate(x)], axis=1)  # [d_e, length]
    hidden = np.tri(len(x), dtype=bool).T  # Mask[t', t] = [t' <= t]
    for layer in range(config["L"]):
        W = {name.removeprefix(f"layers.{layer}."): value for name, value in theta.items()}
        # Z <- layer_norm(X | gamma1, beta1); X <- X + MHAttention(Z | W_l, Mask)
        Z = layer_norm(X, W["gamma1"], W["beta1"], config["eps"])
        Q, K, V = (
            (W[f"W_{name}"] @ Z + W[f"b_{name}"][:, None]).reshape(H, d_head, -1) for name in "qkv"
        )  # [H, d_head, length]
        S = K.transpose(0, 2, 1) @ Q / math.sqrt(d_head)  # [H, length, length]
        Y = V @ softmax(np.where(hidden, S, -np.inf), axis=1)
        X = X + W["W_o"] @ Y.reshape(H * d_head, -1) + W["b_o"][:, None]
        # Z <- layer_norm(X | gamma2, beta2); X <- X + W_mlp2 GELU(W_mlp1 Z + b_mlp1) + b_mlp2
        Z = layer_norm(X, W["gamma2"], W["beta2"], config["eps"])
        X = X + W["W_mlp2"] @ gelu(W["W_mlp1"] @ Z + W["b_mlp1"][:, None]) + W["b_mlp2"][:, None]
    # for t: e <- layer_norm(e | gamma, beta); P <- softmax(W_u X)
    return theta["W_u"] @ layer_norm(X, theta["gamma"], theta["beta"], config["eps"])


def rotated(e: Array, t: int) -> Array:
    """R_e(t) e: the pair (2i-1, 2i) turns by t theta_i, theta_i = 10000^(-2(i-1)/d_e).  # [d_e]"""
    angles = t * 10000.0 ** (-np.arange(0, len(e), 2) / len(e))
    a, b = e[0::2], e[1::2]
    turned = a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)
    return np.stack(turned, axis=1).reshape(-1)


def layer_norm(X: Array, gamma: Array, beta: Array, eps: float) -> Array:
    scaled = (X - X.mean(axis=0)) / np.sqrt(X.var(axis=0) + eps)
    return scaled * gamma[:, None] + beta[:, None]


def gelu(X: Array) -> Array:
    return X * 0.5 * (1 + np.vectorize(math.erf)(X / math.sqrt(2)))


@pytest.fixture(params=[1, 0], ids=["from1", "from0"])
def first_position(request: pytest.FixtureRequest) -> int:
    origin: int = request.param
    return origin


@pytest.fixture
def directory(first_position: int, tmp_path: Path) -> Path:
    """The case with its tokens numbered from 1 (the text) or from 0."""
    shutil.copy(DTRANSFORMER / "model.safetensors", tmp_path)
    config = json.loads((DTRANSFORMER / "config.json").read_text()) | {"first_position": first_position}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_pseudo_code(directory: Path, first_position: int, prompt: str) -> None:
    golden = read_safetensors(DTRANSFORMER / "golden.safetensors")
    theta = {
        name: W.astype(np.float64) for name, W in read_safetensors(directory / "model.safetensors").items()
    }
    config = json.loads((directory / "config.json").read_text())
    found = dtransformer_rope(golden[f"input_ids.{prompt}"].tolist(), theta, config)
    np.testing.assert_allclose(found, golden[f"logits.{prompt}.from{first_position}"], atol=ATOL, rtol=0)
    P = softmax(found, axis=0)
    np.testing.assert_allclose(P, golden[f"P.{prompt}.from{first_position}"], atol=1e-5, rtol=0)


def test_the_engine(directory: Path, first_position: int, isa: str) -> None:
    golden, engine = read_safetensors(DTRANSFORMER / "golden.safetensors"), load(directory, context=256)
    for prompt in PROMPTS:
        found = logits(engine, golden[f"input_ids.{prompt}"].tolist())
        np.testing.assert_allclose(
            found.T, golden[f"logits.{prompt}.from{first_position}"], atol=ATOL, rtol=1e-5
        )
    expected = golden[f"greedy.from{first_position}.output_ids"].tolist()
    sequence = add(engine, golden["input_ids.p33"].tolist(), max_tokens=len(expected))
    events = [event for event in drain(engine, [sequence]) if event.kind == "token"]
    assert [event.id for event in events] == expected
