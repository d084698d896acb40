"""A model's vocabulary: encoding, decoding and lookups, complete or partially loaded."""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ropechat.tokenizer.library import LibraryTokenizer
from ropechat.tokenizer.partial_bpe import PartialBpe
from ropechat.util.text import is_unicode

if TYPE_CHECKING:
    import tokenizers

    from ropechat.tokenizer.confined import ConfinedEncoding

T = TypeVar("T")


class Vocabulary:
    """The library's tokenizer of one file.

    build: builds it completely; called once, on the first text that `short` cannot encode.
    """

    def __init__(self, build: Callable[[], LibraryTokenizer], short: PartialBpe | None = None) -> None:
        self._build = build
        self._short = short
        self._library: LibraryTokenizer | None = None
        self._lock = threading.Lock()

    def library(self) -> LibraryTokenizer:
        """The completely built tokenizer. Raises TokenizerError as `build`."""
        with self._lock:
            if self._library is None:
                self._library = self._build()
                self._short = None
            return self._library

    def _ask(self, short: Callable[[PartialBpe], T], whole: "Callable[[LibraryTokenizer], T]") -> T:
        """Ask the partial vocabulary if it is readable, else the complete one."""
        kept = self._short
        if kept is not None:
            try:
                return short(kept)
            except (OSError, ValueError, KeyError, TypeError):
                pass  # the cached file was damaged or deleted meanwhile
        return whole(self.library())

    def token_to_id(self, token: str) -> int | None:
        if not is_unicode(token):  # as JSON may have it: the library would raise
            return None
        return self._ask(lambda short: short.token_to_id(token), lambda inner: inner.token_to_id(token))

    def id_to_token(self, id: int) -> str | None:
        return self._ask(lambda short: short.id_to_token(id), lambda inner: inner.id_to_token(id))

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids, including special tokens."""
        return self._ask(
            lambda short: short.decode(ids),
            lambda inner: str(inner.decode(list(ids), skip_special_tokens=False)),
        )

    def encode(self, text: str, *, add_special_tokens: bool) -> "tokenizers.Encoding | ConfinedEncoding":
        found = self._ask(lambda short: short.encode(text, add_special_tokens), lambda inner: None)
        if found is not None:
            return found
        return self.library().encode(text, add_special_tokens=add_special_tokens)
