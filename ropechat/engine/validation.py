"""Validation of the arguments of `Engine`. Each function raises an error naming the argument."""

import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ropechat.conversation import Message, Role
from ropechat.engine.templates.thoughts import THOUGHT_FIELDS
from ropechat.errors import MemoryLimitError, RequestError
from ropechat.sampling import SEED_BITS, Sampling
from ropechat.util.text import limit_words

CLOSED = "engine: closed; load the model again"
_NO_PROMPT = "prompt: must be text or a list of token ids"
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


def _items(given: Any) -> list[Any]:
    if isinstance(given, bytes | bytearray):  # their items are ints, but are not ids
        raise TypeError
    return list(given)


def validate_ids(ids: Sequence[int]) -> list[int]:
    """Token ids as plain ints. The compiled engine checks them against the vocabulary."""
    try:
        checked = [operator.index(id) for id in _items(ids)]
    except TypeError:
        raise RequestError(_NO_PROMPT) from None
    if any(not 0 <= id < 2**32 for id in checked):
        raise RequestError("prompt: token ids must be from 0 to 2^32 - 1")
    return checked


def validate_many(name: str, items: object) -> None:
    """Refuse one text, or nothing that can be iterated over, in place of several items."""
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise RequestError(f"{name}: must be a list, or another iterable (got {items!r:.40})")


def validate_messages(messages: Iterable[Message | Mapping[str, Any]]) -> list[Message]:
    """Messages, each a Message or a mapping with role and content, as Messages."""
    return [_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


def _message(name: str, message: Message | Mapping[str, Any]) -> Message:
    role: Any
    content: Any
    reasoning: Any
    if isinstance(message, Message):
        role, content, reasoning = message.role, message.content, message.reasoning
    elif isinstance(message, Mapping):
        role, content = message.get("role"), message.get("content")
        reasoning = next((message[key] for key in THOUGHT_FIELDS if message.get(key) is not None), "")
    else:
        raise RequestError(f"{name}: must be a Message, or have role and content (got {message!r:.40})")
    if role not in list(Role):
        raise RequestError(f"{name}.role: must be one of {', '.join(Role)} (got {role!r:.40})")
    if not isinstance(content, str):
        raise RequestError(f"{name}.content: must be a string (got {content!r:.40})")
    if not isinstance(reasoning, str):
        raise RequestError(f"{name}.reasoning: must be a string (got {reasoning!r:.40})")
    return Message(Role(role), content, reasoning)


def split_prompt(prompt: Iterable[Any]) -> tuple[list[Message], list[int]]:
    """The messages, or else the token ids, of a prompt that is not text; the other list is empty."""
    try:
        items = _items(prompt)
    except TypeError:
        raise RequestError(_NO_PROMPT) from None
    messages = [item for item in items if isinstance(item, Message | Mapping)]
    if messages and len(messages) < len(items):
        raise RequestError("prompt: must be messages or ids (got both)")
    return (validate_messages(messages), []) if messages else ([], validate_ids(items))


def validate_size(name: str, value: object) -> None:
    """Validate an option of a load that is a number; the compiled engine checks the least one."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise RequestError(f"{name}: must be a positive integer (got {value!r:.40})")


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
