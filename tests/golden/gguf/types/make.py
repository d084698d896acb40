"""Make blocks.gguf and values.safetensors: random blocks of every tensor type, and what `gguf` reads in them.

Also grids.bin of the kernels, lists out of that package.

    python tests/golden/gguf/types/make.py      (needs the package gguf; written with 0.19.0)

Every byte is random but for the f16 scales, which are finite, and MXFP4's exponents, which are not 255. Each
tensor has 6 rows of 512 values, those of few bits 2; the last two (last one) have scales at the ends of f16
(zero, subnormal, largest). The package knows the size of Q1_0, but not its values, and nothing of Q2_0: both
are computed here.
"""

import json
import struct
from pathlib import Path

import gguf
import numpy as np

FOLDER = Path(__file__).parent
ROWS, COLUMNS = 6, 512
EXTREMES = np.array([0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xFBFF, 0x0400, 0x3C00], "<u2")
# Where the f16 scales of a block lie.
HALVES = {
    "F16": [0],
    "Q8_0": [0],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
    "TQ1_0": [52],
    "TQ2_0": [64],
    "Q2_0": [0],
    "Q1_0": [0],
    "IQ1_S": [0],
    "IQ1_M": [],
    "IQ2_XXS": [0],
    "IQ2_XS": [0],
    "IQ2_S": [0],
    "IQ3_XXS": [0],
    "IQ3_S": [0],
}
TYPES = ("F32", "BF16", *HALVES, "MXFP4")
FEW_BITS = ("TQ1_0", "TQ2_0", "Q2_0", "Q1_0", *(name for name in HALVES if name[:3] in ("IQ1", "IQ2", "IQ3")))
Q2_0 = 42
"""The number of a type that the package does not name; 64 values in 18 bytes."""
gguf.GGML_QUANT_SIZES[Q2_0] = (64, 18)  # type: ignore[index]


def number_of(name: str) -> int:
    return Q2_0 if name == "Q2_0" else gguf.GGMLQuantizationType[name]


def values_of(name: str, blocks: np.ndarray) -> np.ndarray:
    """What the blocks mean.  # f32 [rows, COLUMNS]"""
    if name not in ("Q1_0", "Q2_0"):
        return gguf.quants.dequantize(blocks, number_of(name)).astype("<f4")
    blocks = blocks.reshape(-1, 18)
    d = blocks[:, :2].copy().view("<f2").astype("<f4")
    if name == "Q1_0":
        integers = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype("<f4") * 2 - 1
    else:
        integers = blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
        integers = integers.reshape(len(blocks), -1) - np.float32(1)
    return (d * integers).reshape(-1, COLUMNS)


def blocks_of(name: str, rng: np.random.Generator) -> np.ndarray:
    """Random bytes.  # uint8 [ROWS, bytes of a row]"""
    values, size = gguf.GGML_QUANT_SIZES[number_of(name)]
    if name in ("F32", "BF16"):
        floats = rng.standard_normal((ROWS, COLUMNS)).astype("<f4").view("<u4")
        return (floats if name == "F32" else (floats >> 16).astype("<u2")).view(np.uint8)
    blocks = rng.integers(0, 256, (ROWS, COLUMNS // values, size), dtype=np.uint8)
    for place in HALVES.get(name, []):
        scales = rng.standard_normal((ROWS, COLUMNS // values)).astype("<f2").view("<u2")
        scales[4:] = rng.choice(EXTREMES, scales[4:].shape)
        blocks[..., place : place + 2] = scales[..., None].view(np.uint8)
    if name == "MXFP4":
        blocks[..., 0] = rng.integers(0, 255, blocks.shape[:2])
        blocks[4, :4, 0] = (0, 1, 2, 254)
    if name == "IQ1_M":  # the bits of its scale are the upper ones of four words
        scale = np.where(np.arange(ROWS)[:, None] < 4, 0x3C51, rng.choice(EXTREMES, blocks.shape[:2]))
        for word in range(4):
            high = blocks[..., 49 + 2 * word]
            high[:] = high & 0x0F | (scale >> (4 * word) & 0x0F) << 4
    return (blocks[3:5] if name in FEW_BITS else blocks).reshape(2 if name in FEW_BITS else ROWS, -1)


def write_grids() -> None:
    """The lists of groups of IQ1, IQ2 and IQ3, as `rust/kernels/src/quant/ggml/iq.rs` reads them."""
    words = []
    for name in ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"):
        kind = getattr(gguf.quants, name)
        kind.init_grid()
        groups = np.asarray(kind.grid).reshape(kind.grid_shape)
        levels = np.searchsorted(kind.grid_map, groups).astype(np.uint32)
        width = 2 if len(kind.grid_map) == 3 else 3
        words.append((levels << width * np.arange(groups.shape[1], dtype=np.uint32)).sum(1).astype("<u2"))
    ggml = FOLDER.parents[3] / "rust" / "kernels" / "src" / "quant" / "ggml"
    (ggml / "grids.bin").write_bytes(np.concatenate(words).tobytes())


def main() -> None:
    """Write both files, and the lists."""
    write_grids()
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(FOLDER / "blocks.gguf", "types")
    header, body = {}, b""
    for name in TYPES:
        blocks, kind = blocks_of(name, rng), number_of(name)
        writer.add_tensor(name, blocks, raw_dtype=kind)
        values = values_of(name, blocks)
        header[name] = {
            "dtype": "F32",
            "shape": list(values.shape),
            "data_offsets": [len(body), len(body) + values.nbytes],
        }
        body += values.tobytes()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    text = json.dumps(header).encode()
    (FOLDER / "values.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)


if __name__ == "__main__":
    main()
