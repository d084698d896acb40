"""Quantized safetensors layouts: random matrices, stored as other libraries store them, against their values.

compressed-tensors and bitsandbytes write and read their own layouts here, and transformers reads fp8 and
mxfp4. GPTQ and AWQ are packed by `tests/support/quantized.py`, their definition: their libraries need
a compiler and a GPU.
"""

import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import bitsandbytes.backends.default.ops
import bitsandbytes.functional as bnb
import numpy as np
import quantized
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from golden_cases import GOLDEN
from matrix_model import compare, write_folder
from quantized import Stored, read_stored, write_stored
from report import Report
from runs import Run, attempt
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from ropechat.engine._core import CancelToken, Engine

SUBJECT = "layouts"
TOLERANCE = 0.012
"""Of dtype "auto", in the largest value of a row: types without kernels are computed in another one."""
DTYPES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.int32: "I32",
    torch.int64: "I64",
}
Rng = np.random.Generator


class Case(NamedTuple):
    """A matrix. parts: by the end of their names. values: [rows, columns]."""

    parts: dict[str, Stored]
    config: dict[str, Any]
    values: np.ndarray


def run(run: Run, report: Report) -> None:
    for kind, make in LAYOUTS.items():
        if not run.wants(kind):
            continue
        for index in range(run.count):
            case = make(run.generator(SUBJECT, kind, index))
            attempt(
                report, SUBJECT, kind, partial(_check, case), seed=run.seed, index=index, config=case.config
            )
        report.done(SUBJECT, kind)
    if run.wants("mxfp4"):
        for index in range(run.count):
            rng = run.generator(SUBJECT, "mxfp4", index)
            attempt(report, SUBJECT, "mxfp4", partial(_check_mxfp4, rng), seed=run.seed, index=index)
        report.done(SUBJECT, "mxfp4")


def _check(case: Case) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = write_folder(Path(folder), *case.values.shape, case.parts, case.config)
        return compare(path, case.values, TOLERANCE)


def _stored(tensor: torch.Tensor) -> Stored:
    data = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return DTYPES[tensor.dtype], list(tensor.shape), data


def _shape(rng: Rng, unit: int, *, rows: int = 1) -> tuple[int, int]:
    """Rows and columns, multiples of `rows` and `unit`; at least as many rows as columns."""
    columns = unit * int(rng.integers(1, max(2, 1 + 256 // unit)))
    return -(-(columns + int(rng.integers(0, 40))) // rows) * rows, columns


def _weights(rng: Rng, shape: tuple[int, int]) -> torch.Tensor:
    return torch.from_numpy((rng.standard_normal(shape) * 10 ** rng.uniform(-2, 1)).astype(np.float32))


# ---- compressed-tensors


def _scheme(rng: Rng, number: str, bits: int, strategies: tuple[str, ...]) -> dict[str, Any]:
    strategy = str(rng.choice(strategies))
    scheme: dict[str, Any] = {"num_bits": bits, "type": number, "strategy": strategy}
    scheme["symmetric"] = number == "float" or bool(rng.random() < 0.5)
    if strategy == "group":
        scheme["group_size"] = int(rng.choice([16, 32, 64, 128]))
    if strategy == "block":
        scheme["block_structure"] = [int(rng.choice([8, 32, 128])), int(rng.choice([16, 64, 128]))]
    return scheme


def _compressed(
    layout: str, number: str, bits: tuple[int, ...], strategies: tuple[str, ...], *, more: bool = False
) -> Callable[[Rng], Case]:
    """A matrix that compressed-tensors compresses. more: beside another scheme, for other modules."""

    def make(rng: Rng) -> Case:
        made = _scheme(rng, number, int(rng.choice(bits)), strategies)
        args = QuantizationArgs(**made)
        shape = _shape(rng, made.get("group_size") or int(rng.choice([2, 10, 32])))
        state: dict[str, torch.Tensor] = {"weight": _weights(rng, shape)}
        scales = _scale_shape(made, shape)
        spread = state["weight"].abs().max() / (448 if number == "float" else 2 ** (args.num_bits - 1))
        dtype = (torch.float32, torch.float16, torch.bfloat16)[int(rng.integers(3))]
        # Not those that fit best: every scale in a file is possible.
        state["weight_scale"] = (spread * torch.from_numpy(rng.uniform(0.5, 2, scales))).to(dtype)
        if not args.symmetric:
            half = 2 ** (args.num_bits - 1)
            state["weight_zero_point"] = torch.from_numpy(rng.integers(-half, half, scales, dtype=np.int8))
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        library = BaseCompressor.get_value_from_registry(layout)
        packed = library.compress(state, scheme)
        exact = {name: part.float() if "scale" in name else part for name, part in packed.items()}
        values = library.decompress(exact, scheme)["weight"].float().numpy()
        groups = {"group_0": scheme}
        if more:
            other = _scheme(rng, number, int(rng.choice(bits)), strategies)
            scheme_of_others = QuantizationScheme(
                targets=["re:.*self_attn.*"], weights=QuantizationArgs(**other)
            )
            groups = {"group_0": scheme_of_others, "group_1": scheme}
        config = QuantizationConfig(config_groups=groups, format=layout, ignore=[]).to_dict()
        config = json.loads(json.dumps(config, default=str)) | {"quant_method": "compressed-tensors"}
        parts = {f".{name}": _stored(part) for name, part in packed.items()}
        return Case(parts, config, values)

    return make


def _scale_shape(scheme: dict[str, Any], shape: tuple[int, int]) -> tuple[int, ...]:
    rows, columns = shape
    match scheme["strategy"]:
        case "tensor":
            return (1,)
        case "channel":
            return rows, 1
        case "group":
            return rows, columns // scheme["group_size"]
        case _:
            high, wide = scheme["block_structure"]
            return -(-rows // high), -(-columns // wide)


# ---- bitsandbytes


def _four_bits(kind: str) -> Callable[[Rng], Case]:
    def make(rng: Rng) -> Case:
        block, double = int(rng.choice([32, 64, 128, 256, 512, 4096])), bool(rng.random() < 0.5)
        weights = _weights(rng, _shape(rng, 2)).to((torch.float32, torch.bfloat16)[int(rng.integers(2))])
        packed, state = bnb.quantize_4bit(
            weights, blocksize=block, quant_type=kind, compress_statistics=double
        )
        parts = {".weight": _stored(packed)}
        parts |= {f".weight.{name}": _stored(part) for name, part in state.as_dict(packed=True).items()}
        values = _read_four_bits(packed, state).numpy()
        config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}
        return Case(parts, config | {"bnb_4bit_use_double_quant": double}, values)

    return make


def _read_four_bits(packed: torch.Tensor, state: bnb.QuantState) -> torch.Tensor:
    """By the library's code for any device: that for CPUs (0.50.2) is wrong if rows end within blocks."""
    absmax = state.absmax
    if state.nested:
        absmax = bnb.dequantize_blockwise(absmax, state.state2) + state.offset
    compute = bitsandbytes.backends.default.ops._dequantize_4bit_compute
    return compute(
        packed.reshape(-1), absmax.float(), state.code, state.blocksize, state.shape, torch.float32
    )


def _int8(rng: Rng) -> Case:
    packed, largest, _ = bnb.int8_vectorwise_quant(_weights(rng, _shape(rng, 2)).half())
    parts = {".weight": _stored(packed), ".SCB": _stored(largest)}
    values = bnb.int8_vectorwise_dequant(packed, largest).numpy()
    return Case(parts, {"quant_method": "bitsandbytes", "load_in_8bit": True}, values)


# ---- fp8, as transformers reads it


def _fp8(rng: Rng) -> Case:
    blocks = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    block = [int(rng.choice([8, 32, 64, 128])), int(rng.choice([16, 32, 64, 128]))]
    rows = max(blocks[0] * block[0], -(-blocks[1] * block[1] // block[0]) * block[0])
    shape = rows, blocks[1] * block[1]
    one = rng.random() < 0.3
    kind = (torch.float8_e4m3fn, torch.float8_e5m2)[int(rng.integers(2))]
    weights = _weights(rng, shape).clamp(-400, 400).to(kind)
    scales = torch.from_numpy(rng.uniform(1e-3, 1, (1, 1) if one else (rows // block[0], blocks[1])))
    scales = scales.to((torch.float32, torch.bfloat16, torch.float8_e8m0fnu)[int(rng.integers(3))])
    values = Fp8Dequantize(None)._dequantize_one(weights, scales, output_dtype=torch.float32).numpy()
    stored = scales.reshape(()) if one and rng.random() < 0.5 else scales
    parts = {".weight": _stored(weights), ".weight_scale_inv": _stored(stored)}
    config = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": None if one else block,
    }
    return Case(parts, config, values)


# ---- GPTQ and AWQ, by their definition


def _gptq(rng: Rng) -> Case:
    bits, group = int(rng.choice([2, 3, 4, 8])), int(rng.choice([-1, 32, 64, 128]))
    made = {"v2": bool(rng.random() < 0.4), "act": bool(rng.random() < 0.4), "sym": bool(rng.random() < 0.4)}
    shape = _shape(rng, 32, rows=32)
    parts, values = quantized.gptq(bits, group, **made)(rng, *shape)
    version = "gptq_v2" if made["v2"] else "gptq"
    config = quantized.gptq_config(bits, group, version, desc_act=made["act"], sym=made["sym"])
    return Case(parts, config, values.astype(np.float32))


def _awq(rng: Rng) -> Case:
    group = int(rng.choice([32, 64, 128]))
    parts, values = quantized.awq(group)(rng, *_shape(rng, group, rows=8))
    return Case(parts, quantized.AWQ | {"group_size": group}, values.astype(np.float32))


# ---- mxfp4, as transformers reads the experts of gpt-oss


def _check_mxfp4(rng: Rng) -> str:
    """Random experts in mxfp4, and the same model with their values as floats: the same logits."""
    source = GOLDEN / "gpt_oss_mxfp4"
    config = json.loads((source / "config.json").read_text())
    own, plain = {}, {}
    tensors = read_stored(source / "model.safetensors")
    for name, (dtype, shape, data) in tensors.items():
        if name.endswith("_scales"):
            continue
        if not name.endswith("_blocks"):
            own[name] = plain[name] = dtype, shape, data
            continue
        blocks = torch.from_numpy(rng.integers(0, 256, shape, dtype=np.uint8))
        exponents = torch.from_numpy(rng.integers(118, 126, shape[:-1], dtype=np.uint8))
        values = convert_moe_packed_tensors(blocks, exponents, dtype=torch.float32)
        own[name], own[name.replace("_blocks", "_scales")] = _stored(blocks), _stored(exponents)
        plain[name.removesuffix("_blocks")] = _stored(values)
    ids = rng.integers(0, config["vocab_size"], 24).tolist()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for tensors in (own, plain):
            (path := Path(folder) / str(len(found))).mkdir()
            write_stored(path / "model.safetensors", tensors)
            (path / "config.json").write_text(json.dumps(config))
            config.pop("quantization_config", None)
            found.append(Engine.load(str(path), dtype="f32", threads=1).logits(ids, CancelToken()))
    same = np.array_equal(*found) and bool(np.isfinite(found[0]).all())
    return "" if same else f"logits {np.abs(found[0] - found[1]).max():.3g} apart"


LAYOUTS: dict[str, Callable[[Rng], Case]] = {
    "ct_pack": _compressed("pack-quantized", "int", (2, 4, 8), ("group", "channel", "tensor")),
    "ct_pack_other_bits": _compressed("pack-quantized", "int", (3, 5, 6, 7), ("group", "channel")),
    "ct_pack_two_schemes": _compressed("pack-quantized", "int", (4, 8), ("group", "channel"), more=True),
    "ct_int8": _compressed("int-quantized", "int", (8,), ("group", "channel", "tensor")),
    "ct_float8": _compressed("float-quantized", "float", (8,), ("channel", "tensor", "block")),
    "ct_float8_groups": _compressed("float-quantized", "float", (8,), ("group",)),
    "ct_naive_int8": _compressed("naive-quantized", "int", (8,), ("group", "channel", "tensor", "block")),
    "bnb_nf4": _four_bits("nf4"),
    "bnb_fp4": _four_bits("fp4"),
    "bnb_int8": _int8,
    "fp8": _fp8,
    "gptq": _gptq,
    "awq": _awq,
}
