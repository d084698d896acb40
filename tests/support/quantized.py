"""Quantized checkpoints of every layout, packed here, beside the same weights as numbers."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from models import llama_tensors, write_llama

Stored = tuple[str, list[int], bytes]  # the file's name of the type, shape, little-endian bytes
Packed = tuple[dict[str, Stored], np.ndarray]  # the parts by the end of their name; the values [out, in]
Pack = Callable[[np.random.Generator, int, int], Packed]

SHAPE = {"hidden_size": 128, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2}
SHAPE |= {"head_dim": 32, "vocab_size": 64, "num_hidden_layers": 1}
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def _stored(dtype: str, values: np.ndarray) -> Stored:
    return dtype, list(values.shape), np.ascontiguousarray(values).tobytes()


def _words(fields: np.ndarray, bits: int) -> np.ndarray:
    """Each row as a stream of bits, the lowest first, in words of 32.  # [rows, n] to [rows, words]"""
    stream = (fields[:, :, None] >> np.arange(bits)) & 1
    stream = stream.reshape(len(fields), -1)
    stream = np.pad(stream, ((0, 0), (0, -stream.shape[1] % 32))).reshape(len(fields), -1, 32)
    return (stream.astype("<u8") << np.arange(32, dtype="<u8")).sum(axis=2).astype("<u4").view("<i4")


def _scales(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.uniform(0.5, 1.5, shape) * 0.02).astype("<f2")


def _spread(values: np.ndarray, index: np.ndarray) -> np.ndarray:
    """A value per row and group for each column.  # [out, groups] to [out, in]"""
    return values[:, index]


def gptq(bits: int, group: int, *, v2: bool = False, act: bool = False, sym: bool = False) -> Pack:
    def pack(rng: np.random.Generator, rows: int, columns: int) -> Packed:
        size = columns if group == -1 else group
        index = np.arange(columns) // size
        index = rng.permutation(index) if act else index
        groups = -(-columns // size)
        q = rng.integers(0, 1 << bits, (rows, columns))
        z = rng.integers(0 if v2 else 1, 1 << bits, (rows, groups))
        z = np.full_like(z, 1 << (bits - 1)) if sym else z
        scales = _scales(rng, rows, groups) * np.float16(16 / (1 << bits))
        W = (q - _spread(z, index)).astype("<f4") * _spread(scales, index).astype("<f4")
        stored = z if v2 else (z - 1) % (1 << bits)
        return {
            ".qweight": _stored("I32", _words(q, bits).T),
            ".qzeros": _stored("I32", _words(stored.T, bits)),
            ".scales": _stored("F16", scales.T),
            ".g_idx": _stored("I32", index.astype("<i4")),
        }, W

    return pack


def awq(group: int) -> Pack:
    def in_order(fields: np.ndarray) -> np.ndarray:  # [n, out]
        return fields.reshape(len(fields), -1, 8)[:, :, AWQ_ORDER].reshape(len(fields), -1)

    def pack(rng: np.random.Generator, rows: int, columns: int) -> Packed:
        index = np.arange(columns) // group
        q = rng.integers(0, 16, (rows, columns))
        z = rng.integers(0, 16, (rows, -(-columns // group)))
        scales = _scales(rng, *z.shape)
        W = (q - _spread(z, index)).astype("<f4") * _spread(scales, index).astype("<f4")
        return {
            ".qweight": _stored("I32", _words(in_order(q.T), 4)),
            ".qzeros": _stored("I32", _words(in_order(z.T), 4)),
            ".scales": _stored("F16", scales.T),
        }, W

    return pack


def compressed(
    bits: int, group: int, *, packed: bool = True, sym: bool = True, act: bool = False, scale: str = "F16"
) -> Pack:
    """compressed-tensors; group -1 is one per output, 0 one per tensor."""

    def pack(rng: np.random.Generator, rows: int, columns: int) -> Packed:
        size = group if group > 0 else columns
        index = np.arange(columns) // size
        index = rng.permutation(index) if act else index
        half, groups = 1 << (bits - 1), -(-columns // size)
        q = rng.integers(-half, half, (rows, columns))
        z = np.zeros((rows, groups), int) if sym else rng.integers(-half, half, (rows, groups))
        scales = _scales(rng, rows, groups) * np.float16(16 / (1 << bits))
        if group == 0:
            scales[:], z[:] = scales[0, 0], z[0, 0]
        if scale == "F32":
            scales = scales.astype("<f4") * np.float32(1.1)
        W = (q - _spread(z, index)).astype("<f4") * _spread(scales, index).astype("<f4")
        parts = {".weight_scale": _stored(scale, scales[:1, 0] if group == 0 else scales)}
        if packed:
            parts[".weight_packed"] = _stored("I32", _words(q + half, bits))
            parts[".weight_shape"] = _stored("I64", np.array([rows, columns], "<i8"))
        else:
            parts[".weight"] = _stored("I8", q.astype("i1"))
        if not sym and packed and group != 0:
            parts[".weight_zero_point"] = _stored("I32", _words((z + half).T, bits).T)
        elif not sym:
            parts[".weight_zero_point"] = _stored("I8", (z[:1, 0] if group == 0 else z).astype("i1"))
        if act:
            parts[".weight_g_idx"] = _stored("I32", index.astype("<i4"))
        return parts, W

    return pack


def e4m3(codes: np.ndarray) -> np.ndarray:
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    return np.where(codes & 128, -value, value).astype("<f4")


def fp8(block: tuple[int, int] | None, shape: str = "block", name: str = "_scale_inv") -> Pack:
    """shape: block, channel, or tensor ("scalar" has no dimension)."""

    def pack(rng: np.random.Generator, rows: int, columns: int) -> Packed:
        codes = rng.integers(0, 127, (rows, columns)) + 128 * rng.integers(0, 2, (rows, columns))
        codes = np.where((codes & 127) > 0x60, codes - 0x20, codes)
        high, wide = {"block": block, "channel": (1, columns)}.get(shape) or (rows, columns)
        scales = rng.uniform(0.5, 1.5, (-(-rows // high), -(-columns // wide))).astype("<f4") * np.float32(
            0.01
        )
        W = e4m3(codes) * scales.repeat(high, 0)[:rows].repeat(wide, 1)[:, :columns]
        kept = scales.reshape({"tensor": (1,), "scalar": ()}.get(shape, scales.shape))
        return {
            ".weight": _stored("F8_E4M3", codes.astype("u1")),
            f".weight{name}": ("F32", list(kept.shape), kept.tobytes()),
            ".input_scale": _stored("F32", np.ones(1, "<f4")),
        }, W

    return pack


def bitsandbytes(kind: str, block: int, *, double: bool = False) -> Pack:
    def pack(rng: np.random.Generator, rows: int, columns: int) -> Packed:
        q = rng.integers(0, 16, rows * columns)
        table = np.sort(rng.uniform(-1, 1, 16)).astype("<f4")
        blocks = -(-q.size // block)
        state: dict[str, Any] = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16"}
        state["shape"] = [rows, columns]
        parts = {
            ".weight": _stored("U8", ((q[::2] << 4) | q[1::2]).astype("u1")[:, None]),
            ".weight.quant_map": _stored("F32", table),
        }
        absmax = rng.uniform(0.1, 0.3, blocks).astype("<f4")
        if double:
            codes, nested = rng.integers(0, 256, blocks), np.linspace(-1, 1, 256).astype("<f4")
            sizes, offset = rng.uniform(0.05, 0.1, -(-blocks // 256)).astype("<f4"), np.float32(0.2)
            absmax = nested[codes] * sizes.repeat(256)[:blocks] + offset
            parts[".weight.absmax"] = _stored("U8", codes.astype("u1"))
            parts[".weight.nested_absmax"] = _stored("F32", sizes)
            parts[".weight.nested_quant_map"] = _stored("F32", nested)
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": float(offset)}
        else:
            parts[".weight.absmax"] = _stored("F32", absmax)
        text = np.frombuffer(json.dumps(state).encode(), "u1")
        parts[f".weight.quant_state.bitsandbytes__{kind}"] = _stored("U8", text)
        W = table[q] * absmax.repeat(block)[: q.size]
        return parts, W.reshape(rows, columns)

    return pack


def int8_rows(rng: np.random.Generator, rows: int, columns: int) -> Packed:
    """bitsandbytes, LLM.int8."""
    q, largest = rng.integers(-127, 128, (rows, columns)), rng.uniform(0.1, 0.3, rows).astype("<f4")
    W = q.astype("<f4") * largest[:, None] * np.float32(1 / 127)
    return {".weight": _stored("I8", q.astype("i1")), ".SCB": _stored("F32", largest)}, W


def ct_config(bits: int, group: int, *, sym: bool = True, kind: str = "int", **other: Any) -> dict[str, Any]:
    strategy = {0: "tensor", -1: "channel"}.get(group, "group")
    weights = {"num_bits": bits, "type": kind, "symmetric": sym, "strategy": strategy, "dynamic": False}
    weights |= {"group_size": group if group > 0 else None} | other.pop("weights", {})
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]} | other


def gptq_config(bits: int, group: int, version: str = "gptq", **other: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "checkpoint_format": version} | other


@dataclass(frozen=True)
class Layout:
    """How to write a checkpoint.

    kept: the type in which its matrices are computed by default. skipped: modules that stay numbers.
    """

    pack: Pack
    config: dict[str, Any]
    kept: str
    skipped: tuple[str, ...] = field(default=())


AWQ = {"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm"}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True}

LAYOUTS = {
    "gptq_4_group_128_sym": Layout(gptq(4, 128, sym=True), gptq_config(4, 128, sym=True), "q4_0"),
    "gptq_4_group_128": Layout(gptq(4, 128), gptq_config(4, 128), "q4_1"),
    "gptq_4_group_64_short": Layout(gptq(4, 64), gptq_config(4, 64), "q4_1"),
    "gptq_4_one_group": Layout(gptq(4, -1), gptq_config(4, -1), "q4_1"),
    "gptq_v2_8": Layout(gptq(8, 32, v2=True), gptq_config(8, 32, "gptq_v2"), "f16"),
    "gptq_8_sym": Layout(gptq(8, 32, sym=True), gptq_config(8, 32), "q8_0"),
    "gptq_3": Layout(gptq(3, 32), gptq_config(3, 32), "q4_0"),
    "gptq_2_act": Layout(gptq(2, 32, act=True), gptq_config(2, 32, desc_act=True), "f16"),
    "awq_128": Layout(awq(128), AWQ | {"group_size": 128}, "q4_1"),
    "awq_32_skipped": Layout(
        awq(32),
        AWQ | {"group_size": 32, "modules_to_not_convert": ["k_proj", "mlp"]},
        "f32",
        ("self_attn.k_proj", "mlp."),
    ),
    "ct_4_zero_points": Layout(compressed(4, 32, sym=False), ct_config(4, 32, sym=False), "q4_1"),
    "ct_4_channel_zero_points": Layout(compressed(4, -1, sym=False), ct_config(4, -1, sym=False), "q4_1"),
    "ct_4_actorder": Layout(
        compressed(4, 32, act=True), ct_config(4, 32, weights={"actorder": "group"}), "f16"
    ),
    "ct_8_packed_channel": Layout(compressed(8, -1), ct_config(8, -1), "q8_0"),
    "ct_8_packed_group": Layout(compressed(8, 32, sym=False), ct_config(8, 32, sym=False), "f16"),
    "ct_8_bytes_group": Layout(compressed(8, 32, packed=False), ct_config(8, 32), "q8_0"),
    "ct_8_bytes_f32": Layout(compressed(8, -1, packed=False, scale="F32"), ct_config(8, -1), "f16"),
    "ct_8_bytes_tensor": Layout(compressed(8, 0, packed=False, sym=False), ct_config(8, 0, sym=False), "f16"),
    "ct_2": Layout(compressed(2, 32), ct_config(2, 32), "q4_0"),
    "ct_fp8_tensor": Layout(fp8(None, "tensor", "_scale"), ct_config(8, 0, kind="float"), "f16"),
    "ct_fp8_block": Layout(
        fp8((64, 96), name="_scale"),
        ct_config(8, 0, kind="float", weights={"strategy": "block", "block_structure": [64, 96]}),
        "f16",
    ),
    "fp8_scalar": Layout(fp8(None, "scalar"), FP8 | {"weight_block_size": None}, "f16"),
    "fp8_channel": Layout(fp8(None, "channel", "_scale"), {"quant_method": "fbgemm_fp8"}, "f16"),
    "fp8_block": Layout(fp8((128, 128)), FP8 | {"weight_block_size": [128, 128]}, "f16"),
    "bnb_nf4_double": Layout(bitsandbytes("nf4", 64, double=True), BNB, "f16"),
    "bnb_fp4": Layout(bitsandbytes("fp4", 128), BNB, "f16"),
    "bnb_int8": Layout(int8_rows, {"quant_method": "bitsandbytes", "load_in_8bit": True}, "f16"),
}


def read_stored(path: Path) -> dict[str, Stored]:
    """Every tensor of a safetensors file as it lies there."""
    data = path.read_bytes()
    body = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:body])
    header.pop("__metadata__", None)
    return {
        name: (entry["dtype"], entry["shape"], data[slice(*(body + at for at in entry["data_offsets"]))])
        for name, entry in header.items()
    }


def write_stored(path: Path, tensors: dict[str, Stored]) -> None:
    header, end = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        begin, end = end, end + len(data)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(data for _, _, data in tensors.values())


def write_quantized(folder: Path, layout: Layout, *, seed: int = 0, **changes: Any) -> tuple[Path, Path]:
    """A quantized llama, and the same one in f32; returns both folders."""
    rng = np.random.default_rng(seed)
    plain = write_llama(folder / "plain", seed=seed, **(SHAPE | changes))
    config = json.loads((plain / "config.json").read_text())
    quantized = folder / "quantized"
    quantized.mkdir()
    own, same = {}, {}
    for name, shape, data in llama_tensors(config, "f32", seed):
        module = name.removesuffix(".weight")
        is_matrix = "_proj" in name and len(shape) == 2
        if not is_matrix or any(skipped in name for skipped in layout.skipped):
            own[name] = same[name] = ("F32", shape, data)
            continue
        parts, W = layout.pack(rng, *shape)
        own |= {module + end: part for end, part in parts.items()}
        same[name] = _stored("F32", W.astype("<f4"))
    write_stored(quantized / "model.safetensors", own)
    write_stored(plain / "model.safetensors", same)
    (quantized / "config.json").write_text(json.dumps(config | {"quantization_config": layout.config}))
    return quantized, plain


def quantize_copy(
    source: Path, folder: Path, layout: Layout, *, names: str, seed: int = 0
) -> tuple[Path, Path]:
    """A model with random quantized matrices where `names` (a regex) finds them, and the same in f32."""
    rng = np.random.default_rng(seed)
    folders = folder / "quantized", folder / "plain"
    config = json.loads((source / "config.json").read_text())
    own, same = {}, {}
    for name, part in read_stored(source / "model.safetensors").items():
        if len(part[1]) == 2 and re.search(names, name):
            parts, W = layout.pack(rng, *part[1])
            own |= {name.removesuffix(".weight") + end: part for end, part in parts.items()}
            same[name] = _stored("F32", W.astype("<f4"))
        else:
            own[name] = same[name] = part
    for target, tensors, more in zip(
        folders, (own, same), ({"quantization_config": layout.config}, {}), strict=True
    ):
        target.mkdir()
        write_stored(target / "model.safetensors", tensors)
        (target / "config.json").write_text(json.dumps(config | more))
    return folders
