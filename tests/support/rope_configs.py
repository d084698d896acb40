"""Configs for the tests of the RoPE view: what a config.json says, without weights."""

import json
from pathlib import Path
from typing import Any

from ropechat.inspector.rope.spec import RopeSpec, rope_spec

LLAMA = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 1,
    "vocab_size": 8,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
}


def spec_of(folder: Path, length: int = 0, **changes: Any) -> RopeSpec:
    """The spec of a llama config with changed keys (None: the key is absent)."""
    config = {key: value for key, value in (LLAMA | changes).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return rope_spec(folder / "config.json", length)
