"""Detection of tokenizer.json files that may make the library slow or panic.

The library's regex engine (Oniguruma) backtracks: a published regex may take a second for ten thousand
spaces, and a hostile one never ends. So a regex that is neither known nor linear by its form is timed on
runs of each kind of character. If its time grows faster than the text, it is accepted for short texts only.
"""

import math
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ropechat.tokenizer.components import components
from ropechat.tokenizer.library import is_library_failure, silence_stderr
from ropechat.tokenizer.linear import is_linear
from ropechat.tokenizer.pre_types import known_patterns

MAX_SLOW_BYTES = 16 << 10  # about a second of quadratic work
_KNOWN = frozenset(known_patterns())
_LINEAR_TWINS = {r"\s+$": r"(?<!\s)\s+$"}
"""Slow regexes of published tokenizers, and linear ones that match the same."""
_PANIC_FREE_TYPES = (
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
_LENGTHS = ((8, 64), (500, 4000))  # of the compared runs; the short ones reveal cubic or worse growth
_EXPONENT = 1.5  # of growth: 1 is linear, 2 is quadratic
_ROUNDS = 5
_UNITS = ("a", "A", "1", " ", "\n", "\t", "!", "_", "é", "日", "\u0301", " a", "a1", "a!")
_ENDINGS = ("", "x", "!", "1", " ", "\n")
_MAX_LITERALS = 40


def _regexes(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the `pattern` objects that have a regex."""
    for section in ("normalizer", "pre_tokenizer", "decoder"):
        for part in components(data.get(section)):
            pattern = part.get("pattern")
            if isinstance(pattern, dict) and isinstance(pattern.get("Regex"), str):
                yield pattern


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


def has_slow_regex(data: dict[str, Any]) -> bool:
    """Whether a regex takes more than linear time on some kind of text."""
    return any(_is_slow(pattern["Regex"]) for pattern in _regexes(data))


def _is_known_linear(regex: Any) -> bool:
    return isinstance(regex, str) and (regex in _KNOWN or is_linear(regex))


def _is_slow(regex: str) -> bool:
    if _is_known_linear(regex):
        return False
    if re.search(_REPEATED_REPEAT, regex):
        return True
    import tokenizers

    with silence_stderr(active=True):
        try:
            split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(regex), "isolated")
            return any(_is_slow_on(split, probe) for probe in _probes(regex))
        except BaseException as error:
            if not is_library_failure(error):
                raise
            return True


def _is_slow_on(split: Any, probe: Callable[[int], str]) -> bool:
    return any(grows_faster(lambda length: _seconds(split, probe(length)), *lengths) for lengths in _LENGTHS)


def grows_faster(cost: Callable[[int], float], short: int, long: int) -> bool:
    """Whether the cost of a text grows clearly faster than its length, measured at two lengths.

    Other load only adds to a cost, so the minimum of several measurements counts: two of the short text per
    round, one of the long text, until it looks linear or after `_ROUNDS` rounds.
    """
    limit = (long / short) ** _EXPONENT
    least_short = least_long = math.inf
    for _ in range(_ROUNDS):
        least_short = min(least_short, cost(short), cost(short))
        least_long = min(least_long, cost(long))
        if least_long <= limit * least_short:
            return False
    return True


def _probes(regex: str) -> Iterator[Callable[[int], str]]:
    """Functions from a length to a text: runs of each kind of character and of the regex's own characters.

    Each ends with characters that make a match fail. One ending has all literals of the regex, because the
    engine skips a text that lacks a required literal.
    """
    own = dict.fromkeys(character for character in regex if character not in _UNITS)
    for unit in [*_UNITS, *list(own)[:_MAX_LITERALS]]:
        for tail in (*_ENDINGS, f"\0\n{regex}"):
            yield partial(_run, unit, tail)


def _run(unit: str, tail: str, length: int) -> str:
    return unit * (length // len(unit)) + tail


def _seconds(split: Any, text: str) -> float:
    start = time.thread_time()
    split.pre_tokenize_str(text)
    return time.thread_time() - start
