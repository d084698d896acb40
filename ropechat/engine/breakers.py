"""DRY's sequence breakers: from texts to the ids of a vocabulary."""

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from ropechat.engine.native import load_core
from ropechat.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ropechat.engine import _core
    from ropechat.sampling import Sampling

_KEPT = 16


class BreakerFinder:
    """Finds the ids of breakers in a vocabulary; thread-safe. Those of the last few settings are kept."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._found: OrderedDict[tuple[str, ...], _core.Breakers] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, sampling: "Sampling") -> "_core.Breakers | None":
        """The breakers of these settings; None without DRY, or without a tokenizer."""
        texts = sampling.dry_sequence_breakers
        if not sampling.dry_multiplier or not texts or not self._tokenizer.present:
            return None
        with self._lock:
            found = self._found.get(texts)
            if found is None:
                found = load_core().Breakers(breaker_sequences(self._tokenizer, texts))
                self._found[texts] = found
            self._found.move_to_end(texts)
            while len(self._found) > _KEPT:
                self._found.popitem(last=False)
            return found


def breaker_sequences(tokenizer: Tokenizer, texts: tuple[str, ...]) -> list[list[int]]:
    """The sequences of ids that have one of the texts in them.

    A text may be inside one token, or begin at a token's end: then its rest follows, as it is encoded alone.
    """
    found: list[list[int]] = []
    wanted = [text.encode() for text in texts]
    rests = [
        (text[:end], ids)
        for text in wanted
        for end in range(1, len(text))
        if (ids := _encoded(tokenizer, text[end:]))
    ]
    for id in range(tokenizer.vocab_size):
        spelled = tokenizer.token_bytes(id)
        if any(text in spelled for text in wanted):
            found.append([id])
        else:
            found += [[id, *ids] for start, ids in rests if spelled.endswith(start)]
    return found


def _encoded(tokenizer: Tokenizer, rest: bytes) -> list[int]:
    """The ids of a text alone; none if it is a part of a character."""
    try:
        text = rest.decode()
    except UnicodeDecodeError:
        return []
    return tokenizer.encode(text, add_special_tokens=False)
