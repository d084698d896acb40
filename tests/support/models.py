"""Random-weight llama directories of any shape, written as Hugging Face writes them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Tensor = tuple[str, list[int], bytes]  # name, shape, little-endian bytes

TINY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 300,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
}
"""A config.json of a model that takes no time."""

NAMES = {"f32": ("F32", "float32"), "f16": ("F16", "float16"), "bf16": ("BF16", "bfloat16")}


def encode(values: np.ndarray, dtype: str) -> bytes:
    """f32 values in a storage type; bf16 rounds to nearest, ties to even."""
    values = np.ascontiguousarray(values, "<f4")
    if dtype == "f32":
        return values.tobytes()
    if dtype == "f16":
        return values.astype("<f2").tobytes()
    bits = values.view("<u4")
    return ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype("<u2").tobytes()


def llama_tensors(config: dict[str, Any], dtype: str, seed: int) -> Iterator[Tensor]:
    """Weights that keep the residual stream near 1 and the logits' spread near 3, so that mistakes show."""
    D, F, V = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    H, G, d = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    rng = np.random.default_rng(seed)

    def matrix(name: str, rows: int, columns: int, gain: float, bias: bool = False) -> Iterator[Tensor]:
        W = rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(gain / np.sqrt(columns))
        yield f"{name}.weight", [rows, columns], encode(W, dtype)
        if bias:
            b = rng.standard_normal(rows, dtype=np.float32) * np.float32(0.3)
            yield f"{name}.bias", [rows], encode(b, dtype)

    def norm(name: str) -> Tensor:
        return f"{name}.weight", [D], encode(rng.uniform(0.5, 1.5, D), dtype)

    yield from matrix("model.embed_tokens", V, D, 3.0 if config["tie_word_embeddings"] else np.sqrt(D))
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        yield norm(f"{layer}.input_layernorm")
        for name, rows in (("q", H * d), ("k", G * d), ("v", G * d)):
            yield from matrix(f"{layer}.self_attn.{name}_proj", rows, D, 1.2, config["attention_bias"])
        yield from matrix(f"{layer}.self_attn.o_proj", D, H * d, 0.7, config["attention_bias"])
        yield norm(f"{layer}.post_attention_layernorm")
        for name in ("gate", "up"):
            yield from matrix(f"{layer}.mlp.{name}_proj", F, D, 1.2, config["mlp_bias"])
        yield from matrix(f"{layer}.mlp.down_proj", D, F, 0.7, config["mlp_bias"])
    yield norm("model.norm")
    if not config["tie_word_embeddings"]:
        yield from matrix("lm_head", V, D, 3.0)


def write_safetensors(path: Path, tensors: list[Tensor], dtype: str) -> None:
    """One file: the length of the header, the header as JSON, the tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape, data in tensors:
        begin, end = end, end + len(data)
        header[name] = {"dtype": NAMES[dtype][0], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(data for _, _, data in tensors)


def write_llama(
    directory: Path, *, dtype: str = "f32", shards: int = 1, seed: int = 0, **changes: Any
) -> Path:
    """A model directory; `changes` are keys of config.json (None: the key is absent).

    By default an odd little model: sizes that fill no vector register, one key/value head.

    Args:
        dtype: storage type of every tensor: f32, f16 or bf16.
        shards: how many files the tensors are dealt to; more than one adds the index.
        seed: of the weights.

    Returns: `directory`.
    """
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 36,
        "intermediate_size": 172,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 12,
        "vocab_size": 105,
        "max_position_embeddings": 512,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": NAMES[dtype][1],
    } | changes
    config = {key: value for key, value in config.items() if value is not None}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    tensors = list(llama_tensors(config, dtype, seed))
    if shards == 1:
        write_safetensors(directory / "model.safetensors", tensors, dtype)
        return directory
    index: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        write_safetensors(directory / file, tensors[shard::shards], dtype)
        index |= {name: file for name, _, _ in tensors[shard::shards]}
    total = sum(len(data) for _, _, data in tensors)
    body = {"metadata": {"total_size": total}, "weight_map": index}
    (directory / "model.safetensors.index.json").write_text(json.dumps(body, indent=2))
    return directory
