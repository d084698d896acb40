"""Models of real shapes with random weights: speed does not depend on the weights' values."""

import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, BinaryIO

Tensor = tuple[str, tuple[int, ...], float]  # name, shape, standard deviation (0: all ones)

_BLOCK = 1 << 20  # values generated at a time
_LONGEST_TOKEN = 8  # characters

SHAPES: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
    },
    "qwen2.5-0.5b": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
        "rope_theta": 1000000.0,
    },
    "llama-3.2-1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
    },
    "llama-3.2-3b": {
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
    },
    "llama-3.1-8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
    },
    "qwen3.5-0.8b": {
        "model_type": "qwen3_5_text",
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "layer_types": [*["linear_attention"] * 3, "full_attention"] * 6,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "rope_theta": 10000000.0,
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-6,
    },
    "lfm2-1.2b": {
        "model_type": "lfm2",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "block_auto_adjust_ff_dim": False,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "layer_types": ["full_attention" if n in (2, 5, 8, 10, 12, 14) else "conv" for n in range(16)],
        "conv_L_cache": 3,
        "vocab_size": 65536,
        "max_position_embeddings": 128000,
        "rope_theta": 1000000.0,
        "norm_eps": 1e-5,
    },
    "stories15m": {
        "hidden_size": 288,
        "intermediate_size": 768,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "head_dim": 48,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,  # the original 256 is too short for the measurements
        "rope_theta": 10000.0,
    },
}


_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "mlp_bias": False,
}


def config_of(shape: str) -> dict[str, Any]:
    """The config.json of a shape, without RoPE scaling: plain llama, where the shape names no model_type."""
    own = SHAPES[shape]
    family = {} if "model_type" in own else _LLAMA
    return {"tie_word_embeddings": True, **family, **own, "hidden_act": "silu", "torch_dtype": "bfloat16"}


def _matrix(name: str, rows: int, columns: int, gain: float = 1.0) -> Tensor:
    return f"{name}.weight", (rows, columns), gain / math.sqrt(columns)


def _ones(name: str, *shape: int) -> Tensor:
    return name, shape, 0.0


def _attention(config: dict[str, Any], output: str, queries: int = 1) -> Iterator[Tensor]:
    """q, k, v and the output. queries: rows of q per row of queries."""
    hidden, heads, dim = config["hidden_size"], config["num_attention_heads"], config["head_dim"]
    kv = config["num_key_value_heads"] * dim
    yield _matrix("self_attn.q_proj", queries * heads * dim, hidden)
    yield _matrix("self_attn.k_proj", kv, hidden)
    yield _matrix("self_attn.v_proj", kv, hidden)
    yield _matrix(f"self_attn.{output}", hidden, heads * dim)


def _mlp(config: dict[str, Any], gate: str, up: str, down: str) -> Iterator[Tensor]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    yield _matrix(gate, inner, hidden)
    yield _matrix(up, inner, hidden)
    yield _matrix(down, hidden, inner)


def _llama_layer(config: dict[str, Any], _kind: str) -> Iterator[Tensor]:
    yield _ones("input_layernorm.weight", config["hidden_size"])
    yield from _attention(config, "o_proj")
    yield _ones("post_attention_layernorm.weight", config["hidden_size"])
    yield from _mlp(config, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


def _qwen3_5_layer(config: dict[str, Any], kind: str) -> Iterator[Tensor]:
    hidden, dim = config["hidden_size"], config["head_dim"]
    heads, width = config["linear_num_value_heads"], config["linear_value_head_dim"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values, channels = heads * width, 2 * keys + heads * width
    yield _ones("input_layernorm.weight", hidden)
    if kind == "full_attention":
        yield from _attention(config, "o_proj", queries=2)
        yield _ones("self_attn.q_norm.weight", dim)
        yield _ones("self_attn.k_norm.weight", dim)
    else:
        yield _matrix("linear_attn.in_proj_qkv", channels, hidden)
        yield _matrix("linear_attn.in_proj_z", values, hidden)
        yield _matrix("linear_attn.in_proj_b", heads, hidden)
        yield _matrix("linear_attn.in_proj_a", heads, hidden)
        yield _ones("linear_attn.conv1d.weight", channels, 1, config["linear_conv_kernel_dim"])
        yield _ones("linear_attn.A_log", heads)
        yield _ones("linear_attn.dt_bias", heads)
        yield _ones("linear_attn.norm.weight", width)
        yield _matrix("linear_attn.out_proj", hidden, values)
    yield _ones("post_attention_layernorm.weight", hidden)
    yield from _mlp(config, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


def _lfm2_layer(config: dict[str, Any], kind: str) -> Iterator[Tensor]:
    hidden, dim = config["hidden_size"], config["head_dim"]
    yield _ones("operator_norm.weight", hidden)
    if kind == "full_attention":
        yield from _attention(config, "out_proj")
        yield _ones("self_attn.q_layernorm.weight", dim)
        yield _ones("self_attn.k_layernorm.weight", dim)
    else:
        yield _matrix("conv.in_proj", 3 * hidden, hidden)
        yield _ones("conv.conv.weight", hidden, 1, config["conv_L_cache"])
        yield _matrix("conv.out_proj", hidden, hidden)
    yield _ones("ffn_norm.weight", hidden)
    yield from _mlp(config, "feed_forward.w1", "feed_forward.w3", "feed_forward.w2")


_LAYERS = {"llama": _llama_layer, "qwen3_5_text": _qwen3_5_layer, "lfm2": _lfm2_layer}


def tensors_of(config: dict[str, Any]) -> Iterator[Tensor]:
    """Names, shapes and standard deviations that keep the residual stream near 1."""
    hidden, layers, family = config["hidden_size"], config["num_hidden_layers"], config["model_type"]
    kinds = config.get("layer_types") or ["full_attention"] * layers
    yield _matrix("model.embed_tokens", config["vocab_size"], hidden, 3.0)
    for index, kind in enumerate(kinds):
        for name, shape, spread in _LAYERS[family](config, kind):
            yield f"model.layers.{index}.{name}", shape, spread
    yield _ones(f"model.{'embedding_norm' if family == 'lfm2' else 'norm'}.weight", hidden)
    if not config["tie_word_embeddings"]:
        yield _matrix("lm_head", config["vocab_size"], hidden, 3.0)


def _write_values(file: BinaryIO, count: int, spread: float, rng: Any) -> None:
    """Write `count` bf16 values, a block at a time."""
    import numpy as np

    for start in range(0, count, _BLOCK):
        size = min(_BLOCK, count - start)
        if spread:
            values = rng.standard_normal(size, dtype=np.float32) * np.float32(spread)
        else:
            values = np.ones(size, np.float32)
        file.write((values.view(np.uint32) >> 16).astype("<u2").tobytes())


def header_of(config: dict[str, Any]) -> tuple[bytes, int]:
    """The first bytes of model.safetensors in bf16, and how many bytes of weights follow."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape, _ in tensors_of(config):
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, end


def write_weights(path: Path, config: dict[str, Any]) -> None:
    """Write model.safetensors in bf16, with at most one block in memory."""
    import numpy as np

    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(header_of(config)[0])
        for _, shape, spread in tensors_of(config):
            _write_values(file, math.prod(shape), spread, rng)


def byte_alphabet() -> list[str]:
    """The character of each byte in byte-level vocabularies."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    extra = iter(range(0x100, 0x200))
    return [chr(byte) if byte in plain else chr(next(extra)) for byte in range(256)]


def vocabulary_of(vocab_size: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens and merges of a byte-level BPE vocabulary of a given size, with random pairs as words."""
    random, tokens, merges = Random(0), byte_alphabet(), []
    known, parts = set(tokens), list(tokens)
    while len(tokens) < vocab_size:
        left, right = random.choices(parts, k=2)
        if left + right not in known:
            known.add(left + right)
            tokens.append(left + right)
            merges.append((left, right))
            if len(left + right) <= _LONGEST_TOKEN // 2:
                parts.append(left + right)
    return tokens, merges


def tokenizer_of(vocab_size: int) -> dict[str, Any]:
    """The content of tokenizer.json."""
    tokens, merges = vocabulary_of(vocab_size)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "vocab": {token: id for id, token in enumerate(tokens)},
            "merges": merges,
        },
    }


def make(shape: str, folder: Path, progress: Callable[[str], None] = lambda text: None) -> Path:
    """The model's folder below `folder`, created if missing. Interruption leaves no partial folder."""
    directory, config = folder / shape, config_of(shape)
    if _config_in(directory) == config:
        return directory
    size = 2 * sum(math.prod(tensor[1]) for tensor in tensors_of(config))
    progress(f"creating {directory} ({size / 1e6:.0f} MB), once")
    folder.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=folder, prefix=f"{shape}."))
    try:
        (part / "config.json").write_text(json.dumps(config, indent=2), "utf-8")
        (part / "tokenizer.json").write_text(json.dumps(tokenizer_of(config["vocab_size"])), "utf-8")
        write_weights(part / "model.safetensors", config)
        shutil.rmtree(directory, ignore_errors=True)
        part.rename(directory)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return directory


def _config_in(directory: Path) -> Any:
    try:
        return json.loads((directory / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
