"""Validation of the arguments of `Engine`. Each function raises an error naming the argument."""

import operator
import os
from collections.abc import Sequence

from ropechat.errors import MemoryLimitError, RequestError
from ropechat.sampling import SEED_BITS, Sampling
from ropechat.util.text import limit_words

MAX_STOPS = 16
MAX_STOP_LENGTH = 1000
MAX_TOP_K = 1000
MAX_ARRAY_BYTES = 1 << 30
"""Size limit of the arrays of `logits` and `probabilities`: 1 GiB."""


def validate_stops(stop: Sequence[str] | None) -> tuple[str, ...]:
    """Validate stop strings: at most 16, none empty."""
    if stop is None:
        return ()
    if isinstance(stop, str) or not all(isinstance(text, str) for text in stop):
        raise RequestError(f"stop: must be a list of strings (got {stop!r:.60})")
    if len(stop) > MAX_STOPS:
        raise RequestError(f"stop: must have at most {MAX_STOPS} strings (got {len(stop)})")
    for text in stop:
        if not 1 <= len(text) <= MAX_STOP_LENGTH:
            raise RequestError(
                f"stop: must be strings of 1 to {MAX_STOP_LENGTH} characters (got {len(text)})"
            )
    return tuple(stop)


def validate_ids(ids: Sequence[int]) -> list[int]:
    """Token ids as plain ints. The compiled engine checks them against the vocabulary."""
    try:
        checked = [operator.index(id) for id in ids]
    except TypeError:
        raise RequestError("prompt: must be text or a list of token ids") from None
    if any(not 0 <= id < 2**32 for id in checked):
        raise RequestError("prompt: token ids must be from 0 to 2^32 - 1")
    return checked


def validate_top_k(top_k: int) -> None:
    """Validate the number of candidates to record."""
    if isinstance(top_k, bool) or not isinstance(top_k, int) or not 0 <= top_k <= MAX_TOP_K:
        raise RequestError(f"top_k: must be an integer from 0 to {MAX_TOP_K} (got {top_k!r})")


def validate_window(window: int) -> int:
    """Validate the window of a long text: its tokens."""
    if isinstance(window, bool) or not isinstance(window, int) or window < 2:
        raise RequestError(f"window: must be an integer of at least 2 (got {window!r})")
    return window


def validate_stride(stride: int | None, window: int) -> int:
    """Validate the stride of windows; None is half a window."""
    if stride is None:
        return max(1, window // 2)
    if isinstance(stride, bool) or not isinstance(stride, int) or not 1 <= stride <= window:
        raise RequestError(f"stride: must be an integer from 1 to {window}, the window (got {stride!r})")
    return stride


def validate_array_size(positions: int, vocab_size: int) -> None:
    """Validate the size of an array of logits. Raises MemoryLimitError."""
    needed = positions * vocab_size * 4
    if needed > MAX_ARRAY_BYTES:
        raise MemoryLimitError(
            f"logits: {limit_words(MAX_ARRAY_BYTES, needed)}, for {positions} positions x {vocab_size} ids x "
            "4 bytes; use score() or fewer ids"
        )


def choose_seed(sampling: Sampling) -> int:
    """The seed of a request: the given one, or a random one below 2^53."""
    if sampling.seed is not None:
        return sampling.seed
    return int.from_bytes(os.urandom(8), "little") >> (64 - SEED_BITS)
