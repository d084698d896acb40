"""GGML types: every type of tensor that the gguf package reads, against its values."""

import tempfile
from functools import partial
from pathlib import Path

import gguf
import numpy as np
from matrix_model import INNER, compare, plain_tensors
from report import Outcome, Report
from runs import Run, attempt

SUBJECT = "ggml"
# Where the f16 numbers of a block lie; in the others every byte is random.
HALVES = {
    "F16": (0,),
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    "Q1_0": (0,),
    "IQ1_S": (0,),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ2_S": (0,),
    "IQ3_XXS": (0,),
    "IQ3_S": (0,),
}
TOLERANCE = 0.012
"""Of dtype "auto", in the largest value of a row: its activations are rounded to bytes."""
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "input_layernorm.weight": "blk.0.attn_norm.weight",
    "post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
    "self_attn.q_proj.weight": "blk.0.attn_q.weight",
    "self_attn.k_proj.weight": "blk.0.attn_k.weight",
    "self_attn.v_proj.weight": "blk.0.attn_v.weight",
    "self_attn.o_proj.weight": "blk.0.attn_output.weight",
    "mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
    "mlp.up_proj.weight": "blk.0.ffn_up.weight",
    "mlp.down_proj.weight": "blk.0.ffn_down.weight",
}


def run(run: Run, report: Report) -> None:
    for kind in gguf.GGML_QUANT_SIZES:
        if run.wants(kind.name):
            _check(kind, run, report)
            report.done(SUBJECT, kind.name)


def _check(kind: gguf.GGMLQuantizationType, run: Run, report: Report) -> None:
    for index in range(run.count):
        rng = run.generator(SUBJECT, kind.name, index)
        shape = _shape(kind, rng)
        try:
            blocks = _blocks(kind, shape, rng)
            values = gguf.quants.dequantize(blocks, kind).astype(np.float32).reshape(shape)
        except NotImplementedError as error:
            report.add(SUBJECT, kind.name, Outcome.SKIPPED, f"gguf: {error}", run.count - index)
            return
        with tempfile.TemporaryDirectory() as folder:
            path = _write(Path(folder) / "model.gguf", kind, blocks, shape)
            attempt(
                report,
                SUBJECT,
                kind.name,
                partial(compare, path, values, TOLERANCE),
                seed=run.seed,
                index=index,
            )


def _shape(kind: gguf.GGMLQuantizationType, rng: np.random.Generator) -> tuple[int, int]:
    """Rows and columns: at least as many rows as columns, so that each column has a token."""
    block = gguf.GGML_QUANT_SIZES[kind][0]
    columns = max(block, 32) * int(rng.choice([1, 2, 3] if block <= 32 else [1, 1, 1, 2]))
    return columns + int(rng.integers(0, 40)), columns


def _blocks(kind: gguf.GGMLQuantizationType, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Blocks of random bytes with finite scales, or weights that the package quantizes.  # [rows, bytes]"""
    if rng.random() < 0.3:
        weights = (rng.standard_normal(shape) * 10 ** rng.uniform(-4, 1, (shape[0], 1))).astype(np.float32)
        weights[rng.random(shape[0]) < 0.05] = 0
        try:
            return gguf.quants.quantize(weights, kind).view(np.uint8).reshape(shape[0], -1)
        except NotImplementedError:
            pass  # it only reads this type
    values, size = gguf.GGML_QUANT_SIZES[kind]
    if kind.name in ("F32", "BF16"):
        floats = rng.standard_normal(shape).astype(np.float32).view(np.uint32)
        return (floats if kind.name == "F32" else (floats >> 16).astype(np.uint16)).view(np.uint8)
    blocks = rng.integers(0, 256, (shape[0], shape[1] // values, size), dtype=np.uint8)
    for place in HALVES.get(kind.name, ()):
        scales = (rng.standard_normal(blocks.shape[:2]) * 10 ** rng.uniform(-5, 2)).astype(np.float16)
        blocks[..., place : place + 2] = scales[..., None].view(np.uint8)
    if kind.name == "IQ1_M":  # the bits of its scale are the upper ones of four words
        scales = rng.standard_normal(blocks.shape[:2]).astype(np.float16).view(np.uint16)
        for word in range(4):
            blocks[..., 49 + 2 * word] = blocks[..., 49 + 2 * word] & 15 | (scales >> 4 * word & 15) << 4
    if kind.name == "MXFP4":
        usual = rng.integers(105, 139, blocks.shape[:2])
        blocks[..., 0] = (
            usual if rng.random() < 0.7 else rng.integers(0, 240, blocks.shape[:2])
        )  # products are finite
    return blocks.reshape(shape[0], -1)


def _write(path: Path, kind: gguf.GGMLQuantizationType, blocks: np.ndarray, shape: tuple[int, int]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(4096)
    writer.add_embedding_length(shape[1])
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_key_length(INNER)
    writer.add_value_length(INNER)
    writer.add_rope_dimension_count(INNER)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape[0])
    for name, tensor in plain_tensors(*shape).items():
        writer.add_tensor(NAMES[name.removeprefix("model.layers.0.")], tensor)
    writer.add_tensor("output.weight", blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
