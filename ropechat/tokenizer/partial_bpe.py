"""Encoding of short texts with only the parts of a BPE vocabulary that they need; the rest stays on disk.

BPE starts with the base tokens of a word (characters, or the bytes of a character without a token) and joins
neighbours. So each token of a word is a run of its base tokens, and only merges that form such runs can
apply. The library encodes a text twice: with base tokens alone, which gives its words; then with the runs
that are in the vocabulary and their merges, in order of rank. All other tokens could not be used, so the ids
are the same.

With 151,936 tokens, `run` writes its first byte after 0.15 s (warm), and after 0.59 s without this module.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from ropechat.tokenizer.components import components
from ropechat.tokenizer.library import parse_tokenizer
from ropechat.tokenizer.pieces import byte_level_alphabet, byte_of
from ropechat.tokenizer.vocabulary_pages import Pages, Word

if TYPE_CHECKING:
    import tokenizers

_MAX_TEXT_BYTES = 8 << 10
_MAX_RUNS = 20_000  # lookups in total; beyond that, building the whole vocabulary is faster


def base_tokens(data: dict[str, Any]) -> dict[str, int] | None:
    """Token -> id of the base tokens of a BPE model and of its added tokens.

    None for models that are not plain BPE: with prefixes or suffixes, or with `ignore_merges` and without a
    token for every byte.
    """
    model = data["model"]
    if "merges" not in model or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return None
    vocab: dict[str, int] = model["vocab"]
    letters = {token: id for token, id in vocab.items() if _is_letter(token)}
    if model.get("ignore_merges") and not _knows_all_bytes(data, letters):
        return None
    unknown = model.get("unk_token")
    if unknown in vocab:
        letters[unknown] = vocab[unknown]
    names = {id: token for token, id in letters.items()}
    added = added_tokens(data)
    for content, id in added.items():
        if names.get(id, content) != content or (_is_letter(content) and content not in vocab):
            return None  # the library would use another name for it, or it is an added token only
    return letters | added


def _is_letter(token: str) -> bool:
    return len(token) == 1 or byte_of(token) is not None


def added_tokens(data: dict[str, Any]) -> dict[str, int]:
    """Content -> id."""
    return {token["content"]: token["id"] for token in data.get("added_tokens") or []}


def _knows_all_bytes(data: dict[str, Any], letters: Mapping[str, int]) -> bool:
    kinds = [part.get("type") for part in components(data.get("pre_tokenizer"))]
    return "ByteLevel" in kinds and byte_level_alphabet().keys() <= letters.keys()


class PartialBpe:
    """A partially loaded vocabulary, for short texts.

    where: the file, for messages. data: `CachedVocabulary.data`. Methods raise OSError and ValueError if the
    pages cannot be read.
    """

    def __init__(self, where: str, data: dict[str, Any], pages: Pages) -> None:
        self._pages = pages
        model = data["model"]
        self._letters: dict[str, int] = model["vocab"]
        self._settings = {
            "unk_token": model.get("unk_token"),
            "fuse_unk": bool(model.get("fuse_unk")),
            "byte_fallback": bool(model.get("byte_fallback")),
        }
        self._ignores_merges = bool(model.get("ignore_merges"))
        by_letters = {"type": "BPE", "vocab": self._letters, "merges": [], **self._settings}
        content = json.dumps(data | {"model": by_letters}).encode()
        self._inner = cast("tokenizers.Tokenizer", parse_tokenizer(where, content, confined=False))
        self._by_letters = self._by_words = self._inner.model
        self._added = added_tokens(data)
        self._added_ids = frozenset(self._added.values())
        self._words: set[tuple[str, ...]] = set()
        self._vocab: dict[str, int] = {}
        self._found: dict[str, Word] = {}
        self._runs_left = _MAX_RUNS
        self._lock = threading.Lock()

    def token_to_id(self, token: str) -> int | None:
        word = self._pages.word(token)
        return self._added.get(token) if word is None else word[0]

    def id_to_token(self, id: int) -> str | None:
        if id in self._added_ids:  # the library's name may differ from the file's
            return self._inner.id_to_token(id)
        return self._pages.token(id)

    def decode(self, ids: Sequence[int]) -> str:
        """As the library's `decode` with all tokens."""
        tokens = [token for id in ids if (token := self.id_to_token(id)) is not None]
        decoder = self._inner.decoder
        return " ".join(tokens) if decoder is None else str(decoder.decode(tokens))

    def encode(self, text: str, add_special_tokens: bool) -> "tokenizers.Encoding | None":
        """As the library's `encode`; None for a text that is too long or needs too many lookups."""
        if len(text.encode()) > _MAX_TEXT_BYTES:
            return None
        with self._lock:
            self._inner.model = self._by_letters
            fresh = set(_words(self._inner.encode(text, add_special_tokens=False))) - self._words
            if fresh and not self._learn(fresh):
                return None
            self._inner.model = self._by_words
            return self._inner.encode(text, add_special_tokens=add_special_tokens)

    def _learn(self, words: set[tuple[str, ...]]) -> bool:
        """Look up all tokens that the words may need; False if there are too many."""
        longest = self._pages.longest
        count = sum(len(word) * min(len(word), longest) for word in words)
        if count > self._runs_left:
            return False
        self._runs_left -= count
        runs = {run for word in words for run in _runs(word, longest)}
        self._found |= self._pages.words(runs - self._found.keys())
        letters = {letter for word in words for letter in word}
        letters &= self._letters.keys()  # the others are added tokens
        self._vocab |= {letter: self._letters[letter] for letter in letters}
        self._vocab |= {token: id for token, (id, _) in self._found.items()}
        self._words |= words
        self._by_words = self._model()
        return True

    def _model(self) -> "tokenizers.models.BPE":
        """Build the library's model from the tokens found so far."""
        import tokenizers

        made = [
            (rank, token[:left], token[left:])
            for token, (_, merges) in self._found.items()
            for left, rank in merges
        ]
        merges = [
            (left, right) for _, left, right in sorted(made) if left in self._vocab and right in self._vocab
        ]
        return tokenizers.models.BPE(
            self._vocab, merges, ignore_merges=self._ignores_merges, **self._settings
        )


def _words(encoding: "tokenizers.Encoding") -> Iterator[tuple[str, ...]]:
    """Yield the base tokens of each word."""
    for _, pairs in groupby(zip(encoding.word_ids, encoding.tokens, strict=True), lambda pair: pair[0]):
        yield tuple(token for _, token in pairs)


def _runs(word: tuple[str, ...], longest: int) -> Iterator[str]:
    """Yield all runs of at least two neighbours, up to `longest` characters."""
    for begin in range(len(word)):
        text = word[begin]
        for letter in word[begin + 1 :]:
            text += letter
            if len(text) > longest:
                break
            yield text
