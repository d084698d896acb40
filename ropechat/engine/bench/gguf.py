"""GGUF files of real shapes, of random blocks: speed does not depend on the weights' values.

The types of a Q4_K_M file are those of llama.cpp's quantizer (src/llama-quant.cpp), and names and metadata
those of its converter; blocks are ggml's block_q4_K, block_q5_K and block_q6_K (ggml/src/ggml-common.h).
"""

import math
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from ropechat.engine.bench import shapes
from ropechat.engine.bench.shapes import config_of, vocabulary_of

if TYPE_CHECKING:
    import numpy as np

_VALUES = 256  # of a block
_BLOCKS_AT_A_TIME = 1 << 16
_ALIGNMENT = 32
_FILE_TYPE = 15  # Q4_K_M in llama.cpp's llama_ftype


class BlockType(NamedTuple):
    """A tensor type. number: ggml's; spread: the standard deviation of values of random bytes with d = 1."""

    number: int
    bytes: int
    spread: float


# Of uniform integers: a scale of 6 bits times a value of 4 bits (5 bits), less 7.5 (15.5) times a minimum of
# 6 bits; a scale of 8 bits times a value of -32..31.
Q4_K = BlockType(12, 144, 258.0)
Q5_K = BlockType(13, 176, 527.0)
Q6_K = BlockType(14, 210, 1366.0)

# Hugging Face's names below the layer, llama.cpp's below `blk.N.`.
_NAMES = {
    "input_layernorm": "attn_norm",
    "operator_norm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    "conv.in_proj": "shortconv.in_proj",
    "conv.conv": "shortconv.conv",
    "conv.out_proj": "shortconv.out_proj",
    "ffn_norm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
}
_ENDS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "model.embedding_norm.weight": "token_embd_norm.weight",
    "lm_head.weight": "output.weight",
}
_ARCHITECTURES = {"llama": "llama", "qwen3_5_text": "qwen35", "lfm2": "lfm2"}


class Tensor(NamedTuple):
    """A tensor of the file. kind: None for one of `value` in F32; spread: the standard deviation."""

    name: str
    shape: tuple[int, ...]
    kind: BlockType | None = None
    spread: float = 0.0
    value: float = 1.0

    @property
    def bytes(self) -> int:
        count = math.prod(self.shape)
        return 4 * count if self.kind is None else count // _VALUES * self.kind.bytes


def has_more_bits(layer: int, layers: int) -> bool:
    """Whether value and down projections are Q6_K: the first and last eighth, every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _name_of(name: str, family: str) -> str:
    """A Hugging Face tensor's name in GGUF."""
    if name in _ENDS:
        return _ENDS[name]
    _, _, layer, own = name.split(".", 3)
    if own in ("linear_attn.A_log", "linear_attn.dt_bias"):
        return f"blk.{layer}.{'ssm_a' if own.endswith('A_log') else 'ssm_dt.bias'}"
    own = own.removesuffix(".weight")
    if own == "post_attention_layernorm":
        return f"blk.{layer}.{'ffn_norm' if family == 'llama' else 'post_attention_norm'}.weight"
    return f"blk.{layer}.{_NAMES[own]}.weight"


def _kind_of(name: str, finer: bool, tied: bool) -> BlockType:
    """The type of a matrix. finer: the layer has more bits."""
    own = name.rpartition(".weight")[0].rpartition(".")[2]
    if own == "output" or (own == "token_embd" and tied) or (finer and own in ("attn_v", "ffn_down")):
        return Q6_K
    return Q5_K if own == "attn_qkv" else Q4_K


def tensors_of(config: dict[str, Any]) -> Iterator[Tensor]:
    """The tensors of a model of that configuration as Q4_K_M."""
    layers, family = config["num_hidden_layers"], config["model_type"]
    with_values = [n for n, kind in enumerate(_kinds(config)) if kind == "full_attention"]
    for hub_name, shape, spread in shapes.tensors_of(config):
        name = _name_of(hub_name, family)
        if spread == 0.0:
            # A decay rate is -exp(A_log); a convolution of equal weights is a mean.
            mean = 1.0 if len(shape) == 1 else 1.0 / shape[-1]
            value = -math.e if name.endswith(".ssm_a") else mean
            yield Tensor(name, tuple(size for size in shape if size > 1), value=value)
            continue
        layer = int(name.split(".")[1]) if name.startswith("blk.") else 0
        # Values count the layers that have any.
        place = (with_values.index(layer), len(with_values)) if "attn_v" in name else (layer, layers)
        finer = has_more_bits(*place)
        yield Tensor(name, shape, _kind_of(name, finer, config["tie_word_embeddings"]), spread)


def _kinds(config: dict[str, Any]) -> list[str]:
    kinds: list[str] = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
    return kinds


def metadata_of(config: dict[str, Any]) -> dict[str, Any]:
    """The metadata, with a vocabulary of random words."""
    tokens, merges = vocabulary_of(config["vocab_size"])
    architecture = _ARCHITECTURES[config["model_type"]]
    keys = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps") or config["norm_eps"],
        "rope.freq_base": config["rope_theta"],
        "rope.dimension_count": int(config["head_dim"] * config.get("partial_rotary_factor", 1)),
        "vocab_size": config["vocab_size"],
        **_own_keys(config),
    }
    return {
        "general.architecture": architecture,
        "general.file_type": _FILE_TYPE,
        **{f"{architecture}.{key}": value for key, value in keys.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(tokens),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }


def _own_keys(config: dict[str, Any]) -> dict[str, Any]:
    """Keys of models with recurrent layers."""
    match config["model_type"]:
        case "qwen3_5_text":
            heads, pairs = config["linear_num_value_heads"], config["head_dim"] // 8
            return {
                "rope.dimension_sections": [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3, 0],
                "ssm.conv_kernel": config["linear_conv_kernel_dim"],
                "ssm.state_size": config["linear_key_head_dim"],
                "ssm.group_count": config["linear_num_key_heads"],
                "ssm.time_step_rank": heads,
                "ssm.inner_size": heads * config["linear_value_head_dim"],
                "full_attention_interval": config["full_attention_interval"],
            }
        case "lfm2":
            kv = config["num_key_value_heads"]
            return {
                "attention.head_count_kv": [kv * (kind == "full_attention") for kind in _kinds(config)],
                "shortconv.l_cache": config["conv_L_cache"],
            }
        case _:
            return {}


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> tuple[int, bytes]:
    """The number of a metadata value's type, and its bytes."""
    match value:
        case list():
            items = [_value(item) for item in value]
            kind = 5 if items[0][0] == 4 else items[0][0]  # llama.cpp takes token types as i32 only
            return 9, struct.pack("<IQ", kind, len(items)) + b"".join(data for _, data in items)
        case int():
            return 4, struct.pack("<I", value)
        case float():
            return 6, struct.pack("<f", value)
        case _:
            return 8, _text(value)


def _header(metadata: dict[str, Any], tensors: list[Tensor]) -> bytes:
    """Everything before the tensors' data."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        number, data = _value(value)
        parts += [_text(key), struct.pack("<I", number), data]
    offset = 0
    for tensor in tensors:
        sizes = tensor.shape[::-1]
        number = 0 if tensor.kind is None else tensor.kind.number
        parts += [_text(tensor.name), struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)]
        parts.append(struct.pack("<IQ", number, offset))
        offset += tensor.bytes + -tensor.bytes % _ALIGNMENT
    header = b"".join(parts)
    return header + bytes(-len(header) % _ALIGNMENT)


def random_blocks(kind: BlockType, count: int, spread: float, rng: "np.random.Generator") -> "np.ndarray":
    """Random blocks, whose values have a mean of about 0 and this standard deviation.  # [count, bytes]"""
    import numpy as np

    words: np.ndarray = rng.bit_generator.random_raw(-(-count * kind.bytes // 8))
    blocks = words.view(np.uint8)[: count * kind.bytes].reshape(count, kind.bytes)
    d = spread / kind.spread
    least = {Q4_K: 7.5, Q5_K: 15.5}.get(kind)
    halves = np.array([d] if least is None else [d, least * d], "<f2").view(np.uint8)
    at = kind.bytes - len(halves) if least is None else 0
    blocks[:, at : at + len(halves)] = halves
    return blocks


def _write_tensor(file: BinaryIO, tensor: Tensor, rng: "np.random.Generator") -> None:
    import numpy as np

    if tensor.kind is None:
        file.write(np.full(tensor.shape, tensor.value, "<f4").tobytes())
    else:
        count = math.prod(tensor.shape) // _VALUES
        for start in range(0, count, _BLOCKS_AT_A_TIME):
            some = min(_BLOCKS_AT_A_TIME, count - start)
            file.write(random_blocks(tensor.kind, some, tensor.spread, rng).data)
    file.write(bytes(-tensor.bytes % _ALIGNMENT))


def write_gguf(path: Path, config: dict[str, Any], progress: Callable[[str], None]) -> None:
    """Write a Q4_K_M file, with a few megabytes in memory at a time."""
    import numpy as np

    tensors = list(tensors_of(config))
    rng = np.random.Generator(np.random.SFC64(0))
    size, done = sum(tensor.bytes for tensor in tensors), 0
    with path.open("wb") as file:
        file.write(_header(metadata_of(config), tensors))
        for tensor in tensors:
            progress(f"{done / 1e6:.0f} of {size / 1e6:.0f} MB")
            _write_tensor(file, tensor, rng)
            done += tensor.bytes


def has_whole_blocks(config: dict[str, Any]) -> bool:
    """Whether all rows of matrices are whole blocks of 256 values."""
    return all(tensor.shape[-1] % _VALUES == 0 for tensor in tensors_of(config) if tensor.kind is not None)


def make_gguf(shape: str, folder: Path, progress: Callable[[str], None] = lambda text: None) -> Path:
    """The Q4_K_M file of a shape in `folder`, created if missing. Interruption leaves no partial file."""
    path = folder / f"{shape}-q4_k_m.gguf"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    try:
        write_gguf(part, config_of(shape), lambda done: progress(f"creating {path}: {done}, once"))
        part.rename(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return path
