"""The components of a tokenizer.json."""

from collections.abc import Iterator
from typing import Any

_LISTS = ("normalizers", "pretokenizers", "processors", "decoders")


def components(section: Any) -> Iterator[dict[str, Any]]:
    """Yield the components of a normalizer, pre_tokenizer, post_processor or decoder, sequences flattened."""
    stack = [section]
    while stack:
        part = stack.pop()
        if not isinstance(part, dict):
            continue
        yield part
        for name in _LISTS:
            inner = part.get(name)
            if isinstance(inner, list):
                stack.extend(reversed(inner))
