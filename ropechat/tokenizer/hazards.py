"""Which tokenizers may take more than linear time for a text, or make the library panic.

The library's regex engine (Oniguruma) backtracks: a published regex may take a second for ten thousand
spaces, and a hostile one never ends. Trying it proves nothing. So a tokenizer whose form does not guarantee
linear time works in a process with limits; see `confined`.
"""

from collections.abc import Iterator
from typing import Any

from ropechat.tokenizer.components import components
from ropechat.tokenizer.linear import is_linear
from ropechat.tokenizer.pre_types import known_patterns

_KNOWN = frozenset(known_patterns())
_LINEAR_TWINS = {r"\s+$": r"(?<!\s)\s+$"}
"""Slow regexes of published tokenizers, and linear ones that match the same."""
_PANIC_FREE_TYPES = (
    *("Sequence", "ByteLevel", "Metaspace", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"),
    *("Prepend", "BertNormalizer", "BertPreTokenizer", "Digits", "Whitespace", "WhitespaceSplit"),
    *("ByteFallback", "Fuse"),
)
_MAX_WORD = 100
"""Characters per word of WordPiece, whose time grows with their cube; the usual limit."""
_MAX_PIECE = 256
"""Characters of a Unigram token: at each character, all tokens that begin there are tried."""


def is_linear_time(data: dict[str, Any]) -> bool:
    """Whether the form of a tokenizer.json guarantees that encoding and decoding take linear time."""
    model = data["model"]
    if not all(_is_known_linear(pattern["Regex"]) for pattern in _regexes(data)):
        return False
    if model.get("type") == "WordPiece":
        limit = model.get("max_input_chars_per_word", _MAX_WORD)
        return isinstance(limit, int) and limit <= _MAX_WORD
    if isinstance(model.get("vocab"), list):
        return all(len(piece) <= _MAX_PIECE for piece, _ in model["vocab"])
    return True


def _regexes(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the `pattern` objects that have a regex."""
    for section in ("normalizer", "pre_tokenizer", "decoder"):
        for part in components(data.get(section)):
            pattern = part.get("pattern")
            if isinstance(pattern, dict) and isinstance(pattern.get("Regex"), str):
                yield pattern


def _is_known_linear(regex: Any) -> bool:
    return isinstance(regex, str) and (regex in _KNOWN or is_linear(regex))


def replace_slow_regexes(data: dict[str, Any]) -> None:
    """Replace known slow regexes by equivalent linear ones."""
    for pattern in _regexes(data):
        pattern["Regex"] = _LINEAR_TWINS.get(pattern["Regex"], pattern["Regex"])


def may_panic(data: dict[str, Any]) -> bool:
    """Whether the file has parts on which the library might panic for some text."""
    sections = ("normalizer", "pre_tokenizer", "decoder")
    return not all(_is_panic_free(part) for section in sections for part in components(data.get(section)))


def _is_panic_free(part: dict[str, Any]) -> bool:
    kind, pattern = part.get("type"), part.get("pattern")
    if kind in ("Split", "Replace") and isinstance(pattern, dict) and not part.get("invert"):
        return "String" in pattern or _is_known_linear(pattern.get("Regex"))
    if kind == "Strip":  # as a decoder it panics on tokens shorter than `stop`
        return not part.get("stop")
    return kind in _PANIC_FREE_TYPES and part.get("prepend") != ""
