"""A script: damages a sound model in many ways, loads each, and writes what was said to said.json.

Run in a fresh interpreter, so that everything that reaches descriptors 1 and 2 is seen.
"""

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from core import CancelToken, Core, load
from models import write_llama

from ropechat.errors import RopechatError

Damage = Callable[[Path], object]
WEIGHTS = "model.safetensors"


def config(**changes: Any) -> Damage:
    """None removes a key."""

    def damage(directory: Path) -> None:
        file = directory / "config.json"
        values = json.loads(file.read_text()) | changes
        file.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))

    return damage


def weights(change: Callable[[bytes], bytes]) -> Damage:
    def damage(directory: Path) -> None:
        file = directory / WEIGHTS
        file.write_bytes(change(file.read_bytes()))

    return damage


def text(data: bytes) -> Damage:
    return lambda directory: (directory / "config.json").write_bytes(data)


def not_a_number(data: bytes) -> bytes:
    body = 8 + int.from_bytes(data[:8], "little")
    return data[:body] + struct.pack("<f", float("nan")) * ((len(data) - body) // 4)


DAMAGES: dict[str, Damage] = {
    "config: a key is missing": config(hidden_size=None),
    "config: negative": config(num_hidden_layers=-1),
    "config: huge": config(vocab_size=2**62),
    "config: 2^40 layers": config(num_hidden_layers=2**40),
    "config: zero": config(head_dim=0),
    "config: heads do not fit the tensors": config(num_attention_heads=7),
    "config: kv heads do not divide the heads": config(num_key_value_heads=2),
    "config: a string for a number": config(rms_norm_eps="x"),
    "config: model_type": config(model_type="nosuch"),
    "config: hidden_act": config(hidden_act="nosuch"),
    "config: rope type": config(rope_scaling={"type": "nosuch", "factor": 2.0}),
    "config: empty": text(b""),
    "config: a list": text(b"[]"),
    "config: not UTF-8": text(b'{"\xff": 1}'),
    "config: nested too deeply": text(b"[" * 200_000),
    "weights: empty": weights(lambda data: b""),
    "weights: five bytes": weights(lambda data: data[:5]),
    "weights: one byte short": weights(lambda data: data[:-1]),
    "weights: half": weights(lambda data: data[: len(data) // 2]),
    "weights: header of 2^63": weights(lambda data: struct.pack("<Q", 2**63) + data[8:]),
    "weights: header of the whole file": weights(lambda data: struct.pack("<Q", len(data)) + data[8:]),
    "weights: header is no JSON": weights(lambda data: data[:8] + b"x" * (len(data) - 8)),
    "weights: a byte after the end": weights(lambda data: data + b"x"),
    "weights: shape": weights(lambda data: data.replace(b'"shape": [105, 36]', b'"shape": [36, 105]')),
    "weights: offsets": weights(lambda data: data.replace(b'offsets": [0,', b'offsets": [4,')),
    "weights: dtype": weights(lambda data: data.replace(b'"F32"', b'"F99"')),
    "weights: not a number": weights(not_a_number),
    "weights: missing": lambda directory: (directory / WEIGHTS).unlink(),
    "directory: empty": lambda directory: [file.unlink() for file in directory.iterdir()],
}
PROMPTS = {
    "ids: one too large": [105],
    "ids: 2^32 - 1": [2**32 - 1],
    "ids: none": [],
    "ids: too many": [1] * 600,
}


def outcome(ask: Callable[[], object]) -> str:
    try:
        ask()
    except RopechatError as error:
        return f"{error.exit_code} {error}"
    return "no error"


def score(engine: Core, ids: list[int]) -> object:
    return engine.step([engine.score(ids, readout_top_k=1)], CancelToken())


def main(root: Path) -> None:
    said = {}
    for number, (name, damage) in enumerate(DAMAGES.items()):
        directory = write_llama(root / str(number))
        damage(directory)
        said[name] = outcome(lambda directory=directory: score(load(directory, threads=2), [1, 2, 3]))
    engine = load(write_llama(root / "sound"), threads=2)
    for name, ids in PROMPTS.items():
        said[name] = outcome(lambda ids=ids: score(engine, ids))
    (root / "said.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
