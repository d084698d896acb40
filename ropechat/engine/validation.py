"""What callers give to the engine, checked. Each function raises an error that names the argument."""

import operator
import os
from collections.abc import Sequence

from ropechat.errors import MemoryLimitError, RequestError
from ropechat.sampling import SEED_BITS, Sampling

MAX_STOPS = 16
MAX_STOP_LENGTH = 1000
MAX_TOP_K = 1000
MAX_ARRAY_BYTES = 1 << 30
"""Largest array that `logits` and `probabilities` return: 1 GiB."""


def validate_stops(stop: Sequence[str] | None) -> tuple[str, ...]:
    """Stop strings: at most 16, none empty."""
    if stop is None:
        return ()
    if isinstance(stop, str) or not all(isinstance(text, str) for text in stop):
        raise RequestError(f"stop: {stop!r:.60} is not allowed; a list of texts is")
    if len(stop) > MAX_STOPS:
        raise RequestError(f"stop: {len(stop)} texts; at most {MAX_STOPS} are allowed")
    for text in stop:
        if not 1 <= len(text) <= MAX_STOP_LENGTH:
            raise RequestError(f"stop: a text of {len(text)} characters; 1 to {MAX_STOP_LENGTH} are allowed")
    return tuple(stop)


def validate_ids(ids: Sequence[int]) -> list[int]:
    """Plain ints of what a caller gave as ids. The compiled engine checks them against the vocabulary."""
    try:
        checked = [operator.index(id) for id in ids]
    except TypeError:
        raise RequestError("prompt: neither text nor a list of token ids") from None
    if any(not 0 <= id < 2**32 for id in checked):
        raise RequestError("prompt: a token id is below 0 or above 2^32 - 1")
    return checked


def validate_top_k(top_k: int) -> None:
    """How many candidates to record."""
    if isinstance(top_k, bool) or not isinstance(top_k, int) or not 0 <= top_k <= MAX_TOP_K:
        raise RequestError(f"top_k: {top_k!r} is not allowed; 0 to {MAX_TOP_K} are")


def validate_array_size(positions: int, vocab_size: int) -> None:
    """How many logits to return at once. Raises MemoryLimitError."""
    needed = positions * vocab_size * 4
    if needed > MAX_ARRAY_BYTES:
        raise MemoryLimitError(
            f"logits: {positions} positions x {vocab_size} ids x 4 bytes = {needed} bytes; "
            f"at most {MAX_ARRAY_BYTES} are returned at once; use score() or fewer ids"
        )


def choose_seed(sampling: Sampling) -> int:
    """The seed of a request: the one that was asked for, or a new one below 2^53."""
    if sampling.seed is not None:
        return sampling.seed
    return int.from_bytes(os.urandom(8), "little") >> (64 - SEED_BITS)
