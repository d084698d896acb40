"""Make blocks.gguf and values.safetensors: random blocks of every tensor type, and what `gguf` reads in them.

    python tests/golden/gguf/types/make.py      (needs the package gguf; written with 0.19.0)

Every byte is random but for the f16 scales, which are finite, and MXFP4's exponents, which are not 255. Each
tensor has 6 rows of 512 values; the last two have scales at the ends of f16 (zero, subnormal, largest).
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
}
TYPES = ("F32", "BF16", *HALVES, "MXFP4")


def blocks_of(name: str, rng: np.random.Generator) -> np.ndarray:
    """Random bytes.  # uint8 [ROWS, bytes of a row]"""
    kind = gguf.GGMLQuantizationType[name]
    values, size = gguf.GGML_QUANT_SIZES[kind]
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
    return blocks.reshape(ROWS, -1)


def main() -> None:
    """Write both files."""
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(FOLDER / "blocks.gguf", "types")
    header, body = {}, b""
    for name in TYPES:
        blocks, kind = blocks_of(name, rng), gguf.GGMLQuantizationType[name]
        writer.add_tensor(name, blocks, raw_dtype=kind)
        values = gguf.quants.dequantize(blocks, kind).astype("<f4")
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
