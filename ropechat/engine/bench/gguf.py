"""GGUF files of real shapes, of random blocks: speed does not depend on the weights' values.

The types of a Q4_K_M file are those of llama.cpp's quantizer (src/llama-quant.cpp); blocks are ggml's
block_q4_K and block_q6_K (ggml/src/ggml-common.h).
"""

import math
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

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


# Of uniform integers: a scale of 6 bits times a value of 4 bits, less 7.5 times a minimum of 6 bits; a
# scale of 8 bits times a value of -32..31.
Q4_K = BlockType(12, 144, 258.0)
Q6_K = BlockType(14, 210, 1366.0)


class Tensor(NamedTuple):
    """A tensor of the file. kind: None for a norm, which is ones in F32."""

    name: str
    rows: int
    columns: int
    kind: BlockType | None = None
    gain: float = 1.0

    @property
    def bytes(self) -> int:
        if self.kind is None:
            return 4 * self.columns
        return self.rows * self.columns // _VALUES * self.kind.bytes


def has_more_bits(layer: int, layers: int) -> bool:
    """Whether value and down projections are Q6_K: the first and last eighth, every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def tensors_of(config: dict[str, Any]) -> Iterator[Tensor]:
    """The tensors of a llama of that configuration as Q4_K_M."""
    hidden, inner, layers = (config[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    query = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    tied = config["tie_word_embeddings"]
    yield Tensor("token_embd.weight", config["vocab_size"], hidden, Q6_K if tied else Q4_K, 3.0)
    for layer in range(layers):
        name, finer = f"blk.{layer}", Q6_K if has_more_bits(layer, layers) else Q4_K
        yield Tensor(f"{name}.attn_norm.weight", 1, hidden)
        yield Tensor(f"{name}.attn_q.weight", query, hidden, Q4_K)
        yield Tensor(f"{name}.attn_k.weight", kv, hidden, Q4_K)
        yield Tensor(f"{name}.attn_v.weight", kv, hidden, finer)
        yield Tensor(f"{name}.attn_output.weight", hidden, query, Q4_K)
        yield Tensor(f"{name}.ffn_norm.weight", 1, hidden)
        yield Tensor(f"{name}.ffn_gate.weight", inner, hidden, Q4_K)
        yield Tensor(f"{name}.ffn_up.weight", inner, hidden, Q4_K)
        yield Tensor(f"{name}.ffn_down.weight", hidden, inner, finer)
    yield Tensor("output_norm.weight", 1, hidden)
    if not tied:
        yield Tensor("output.weight", config["vocab_size"], hidden, Q6_K, 3.0)


def metadata_of(config: dict[str, Any]) -> dict[str, Any]:
    """The metadata, with a vocabulary of random words."""
    tokens, merges = vocabulary_of(config["vocab_size"])
    return {
        "general.architecture": "llama",
        "general.file_type": _FILE_TYPE,
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.freq_base": config["rope_theta"],
        "llama.rope.dimension_count": config["head_dim"],
        "llama.vocab_size": config["vocab_size"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(tokens),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }


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
        sizes = [tensor.columns] if tensor.kind is None else [tensor.columns, tensor.rows]
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
    halves = np.array([d, 7.5 * d] if kind is Q4_K else [d], "<f2").view(np.uint8)
    at = 0 if kind is Q4_K else kind.bytes - len(halves)
    blocks[:, at : at + len(halves)] = halves
    return blocks


def _write_tensor(file: BinaryIO, tensor: Tensor, rng: "np.random.Generator") -> None:
    import numpy as np

    if tensor.kind is None:
        file.write(np.ones(tensor.columns, "<f4").tobytes())
    else:
        count, spread = tensor.rows * tensor.columns // _VALUES, tensor.gain / math.sqrt(tensor.columns)
        for start in range(0, count, _BLOCKS_AT_A_TIME):
            some = min(_BLOCKS_AT_A_TIME, count - start)
            file.write(random_blocks(tensor.kind, some, spread, rng).data)
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
    """Whether all rows are whole blocks of 256 values."""
    query = config["num_attention_heads"] * config["head_dim"]
    return all(n % _VALUES == 0 for n in (config["hidden_size"], config["intermediate_size"], query))


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
