"""What a tokenizer.json may do to the library that runs it: regexes that take too long, and panics.

The library's engine (Oniguruma) backtracks: a published regex may take a second for ten thousand spaces, and
a hostile one never ends. So a regex that is not known is tried on runs of each kind of character, by the time
that this thread computes; one that is slow stays, for short texts.
"""

import re
import time
from collections.abc import Iterator
from typing import Any

from ropechat.tokenizer.components import components
from ropechat.tokenizer.library import is_library_failure, quiet
from ropechat.tokenizer.pre_types import known_patterns

MAX_SLOW_BYTES = 16 << 10  # about a second of quadratic work
_LINEAR = frozenset(known_patterns())
_LINEAR_TWINS = {r"\s+$": r"(?<!\s)\s+$"}
"""Slow ones that published tokenizers have, and what matches the same in linear time."""
_CALM = (
    *(
        "Sequence",
        "ByteLevel",
        "Metaspace",
        "NFC",
        "NFD",
        "NFKC",
        "NFKD",
        "Lowercase",
        "StripAccents",
        "Prepend",
    ),
    *(
        "BertNormalizer",
        "BertPreTokenizer",
        "Digits",
        "Whitespace",
        "WhitespaceSplit",
        "ByteFallback",
        "Fuse",
    ),
)
_REPEATED_REPEAT = r"[*+}]\)[*+{]"
_RUN = 4000
_LIMIT_SECONDS = 0.015  # linear ones take 0.005 s for a run at most, quadratic ones 0.03 s and more
_UNITS = ("a", "A", "1", " ", "\n", "\t", "!", "_", "é", "日", "\u0301", " a", "a1", "a!")
_TAILS = ("", "x", "!", "1", " ", "\n")
_MAX_LITERALS = 40


def _regexes(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The `pattern` objects that hold a regex."""
    for section in ("normalizer", "pre_tokenizer", "decoder"):
        for part in components(data.get(section)):
            pattern = part.get("pattern")
            if isinstance(pattern, dict) and isinstance(pattern.get("Regex"), str):
                yield pattern


def straighten(data: dict[str, Any]) -> None:
    """Put linear twins in the place of known slow regexes."""
    for pattern in _regexes(data):
        pattern["Regex"] = _LINEAR_TWINS.get(pattern["Regex"], pattern["Regex"])


def may_panic(data: dict[str, Any]) -> bool:
    """Whether the file has parts that the library is not known to run on every text without a panic."""
    sections = ("normalizer", "pre_tokenizer", "decoder")
    return not all(_is_calm(part) for section in sections for part in components(data.get(section)))


def _is_calm(part: dict[str, Any]) -> bool:
    kind, pattern = part.get("type"), part.get("pattern")
    if kind in ("Split", "Replace") and isinstance(pattern, dict) and not part.get("invert"):
        return "String" in pattern or pattern.get("Regex") in _LINEAR
    if kind == "Strip":  # as a decoder it panics on tokens shorter than `stop`
        return not part.get("stop")
    return kind in _CALM and part.get("prepend") != ""


def any_slow(data: dict[str, Any]) -> bool:
    """Whether a text of some kind takes one of the regexes more than linear time."""
    return any(_is_slow(pattern["Regex"]) for pattern in _regexes(data))


def _is_slow(regex: str) -> bool:
    if regex in _LINEAR:
        return False
    if re.search(_REPEATED_REPEAT, regex):
        return True
    import tokenizers

    with quiet(active=True):
        try:
            split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(regex), "isolated")
            for text in _probes(regex):
                # Twice, as the first time may include what is done once.
                if _seconds(split, text) > _LIMIT_SECONDS and _seconds(split, text) > _LIMIT_SECONDS:
                    return True
        except BaseException as error:
            if not is_library_failure(error):
                raise
            return True
    return False


def _probes(regex: str) -> Iterator[str]:
    """Runs of each kind of character and of the regex's own, with an end that it may stumble over.

    The engine skips a text without a literal that the regex needs: one end holds them all.
    """
    own = dict.fromkeys(character for character in regex if character not in _UNITS)
    for unit in [*_UNITS, *list(own)[:_MAX_LITERALS]]:
        run = unit * (_RUN // len(unit))
        yield from (run + tail for tail in (*_TAILS, f"\0\n{regex}"))


def _seconds(split: Any, text: str) -> float:
    start = time.thread_time()
    split.pre_tokenize_str(text)
    return time.thread_time() - start
