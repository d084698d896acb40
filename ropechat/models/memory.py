"""The memory that a model needs, estimated from its size and shape."""

from collections.abc import Mapping
from typing import Any

_DEFAULT_CONTEXT = 8192  # tokens, the largest default context
_KV_VALUE_BYTES = 2  # bytes of a number in the KV cache


def needed_memory(size: int, config: Mapping[str, Any]) -> int:
    """Bytes for the weights as stored and the KV cache of a full context, at most the default one.

    Latent attention (MLA), windows and layers without attention are not taken into account. config:
    max_position_embeddings, num_hidden_layers, num_key_value_heads and head_dim.
    """
    tokens = min(config["max_position_embeddings"], _DEFAULT_CONTEXT)
    width = config["num_key_value_heads"] * config["head_dim"]
    return int(size + 2 * _KV_VALUE_BYTES * tokens * config["num_hidden_layers"] * width)
