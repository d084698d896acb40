"""Models that have the values of one matrix as logits: the way to a weight as the engine reads it.

Token i is embedded as a large number in dimension i; the layer adds nothing. After the final norm the row is
`gain` in that dimension and 0 in the others, so that its logits are `gain` times column i of lm_head, rounded
once.
"""

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from quantized import Stored, write_stored

from ropechat.engine._core import CancelToken, Engine

LARGE = 2.0**20
INNER = 8
"""Sizes of what adds nothing: one head, the MLP."""
SMALLEST, LARGEST = 2.0**-10, 2.0**15
"""Rows whose largest value is between these have scales that f16 holds, as dtype "auto" stores them."""


def config_of(rows: int, columns: int) -> dict[str, Any]:
    """config.json for an lm_head of [rows, columns]."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": columns,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": INNER,
        "vocab_size": rows,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }


def plain_tensors(rows: int, columns: int) -> dict[str, np.ndarray]:
    """All tensors but lm_head, by the names of a checkpoint."""
    embedding = np.zeros((rows, columns), np.float32)
    embedding[np.arange(rows), np.arange(rows) % columns] = LARGE
    layer = "model.layers.0."
    shapes = {"q_proj": (INNER, columns), "k_proj": (INNER, columns), "v_proj": (INNER, columns)}
    zeros = {f"self_attn.{name}": shape for name, shape in (shapes | {"o_proj": (columns, INNER)}).items()}
    zeros |= {
        "mlp.gate_proj": (INNER, columns),
        "mlp.up_proj": (INNER, columns),
        "mlp.down_proj": (columns, INNER),
    }
    tensors = {"model.embed_tokens.weight": embedding, "model.norm.weight": np.ones(columns, np.float32)}
    tensors |= {f"{layer}{name}.weight": np.zeros(shape, np.float32) for name, shape in zeros.items()}
    for norm in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"{layer}{norm}.weight"] = np.ones(columns, np.float32)
    return tensors


def write_folder(
    folder: Path, rows: int, columns: int, parts: dict[str, Stored], quantization: dict[str, Any] | None
) -> Path:
    """A model folder whose lm_head is stored as `parts`, by the end of their names."""
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(rows, columns)
    config |= {"quantization_config": quantization} if quantization else {}
    (folder / "config.json").write_text(json.dumps(config))
    stored: dict[str, Stored] = {
        name: ("F32", list(values.shape), values.tobytes())
        for name, values in plain_tensors(rows, columns).items()
    }
    write_stored(
        folder / "model.safetensors", stored | {f"lm_head{end}": part for end, part in parts.items()}
    )
    return folder


def read_matrix(path: Path, columns: int, dtype: str = "f32") -> np.ndarray:
    """`gain` times the columns of lm_head: the logits of each token.  # float32 [columns, rows]"""
    engine = Engine.load(str(path), dtype=dtype, threads=1, context=columns, speculative="off")
    return engine.logits(list(range(columns)), CancelToken())


@functools.cache
def gain(columns: int) -> np.float32:
    """What the final norm makes of `LARGE`, as the engine computes it: the logits of an lm_head of ones."""
    ones = np.ones((columns, columns), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        parts: dict[str, Stored] = {".weight": ("F32", list(ones.shape), ones.tobytes())}
        logits = read_matrix(write_folder(Path(folder), columns, columns, parts, None), columns)
    assert (logits == logits[0, 0]).all()
    return np.float32(logits[0, 0])


def compare(path: Path, values: np.ndarray, tolerance: float) -> str:
    """What differs between a stored lm_head and its values [rows, columns]; "" for nothing.

    In f32 all bits must be right (but for the sign of a zero); in the types that dtype "auto" computes with,
    each value within `tolerance` times the largest one of its row.
    """
    columns = values.shape[1]
    factor = gain(columns)
    expected = (factor * values).T
    found = read_matrix(path, columns)
    if not np.array_equal(found, expected):
        column, row = (int(i) for i in np.argwhere(found != expected)[0])
        said = f"{found[column, row] / factor!r}, {values[row, column]!r} expected"
        return (
            f"{int((found != expected).sum())} of {found.size} values; the first at [{row}, {column}]: {said}"
        )
    largest = np.abs(expected).max(axis=0)  # [rows]
    ordinary = (largest > SMALLEST * factor) & (largest < LARGEST * factor)
    near = read_matrix(path, columns, "auto")[:, ordinary]
    apart = np.full(expected.shape, 0.0)
    apart[:, ordinary] = np.abs(near - expected[:, ordinary]) / largest[ordinary]
    if not apart.max() <= tolerance:
        column, row = (
            int(i) for i in np.unravel_index(np.nan_to_num(apart, nan=np.inf).argmax(), apart.shape)
        )
        said = f"{values[row, column]!r} expected"
        return f"dtype auto: {apart.max():.3g} of the row's largest value off, at [{row}, {column}]: {said}"
    return ""
