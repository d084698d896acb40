"""Writing GGUF files for tests."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Tensors = dict[str, np.ndarray]
ALIGNMENT = 32


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    """A value with its type before it: u32, i32 below zero, f32, bool, text, or a list of one of them."""
    if isinstance(value, list):
        items = [_value(item) for item in value]
        kind = items[0][:4] if items else struct.pack("<I", 4)
        return struct.pack("<I", 9) + kind + struct.pack("<Q", len(items)) + b"".join(i[4:] for i in items)
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<Ii", 5, value) if value < 0 else struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<I", 8) + _text(value)


def write(path: Path, metadata: Mapping[str, Any], tensors: Tensors) -> Path:
    """Write a file of F32 tensors."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(_text(key) + _value(value) for key, value in metadata.items())
    body = b""
    for name, values in tensors.items():
        sizes = values.shape[::-1]
        head += _text(name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        head += struct.pack("<IQ", 0, len(body))
        data = values.astype("<f4").tobytes()
        body += data + bytes(-len(data) % ALIGNMENT)
    path.write_bytes(head + bytes(-len(head) % ALIGNMENT) + body)
    return path
