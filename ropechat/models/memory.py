"""The memory that a model needs, estimated from its size and shape."""

_DEFAULT_CONTEXT = 8192  # tokens, the largest default context


def needed_memory(size: int, max_position_embeddings: int, kv_token_bytes: int) -> int:
    """Bytes for the weights as stored and the KV cache of a full context, at most the default one.

    kv_token_bytes: what a token takes in the KV cache.
    """
    return size + kv_token_bytes * min(max_position_embeddings, _DEFAULT_CONTEXT)
