"""Text for a terminal: removing control characters, measuring width, formatting numbers."""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime

_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_UNSAFE = f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}\u2028\u2029\ud800-\udfff\U000e0000-\U000e007f]"


_INVISIBLE = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_JOINERS = "[\u200c\u200d\ufe00-\ufe0f]"
_JOINED = "[\u0600-\u0dff\u2190-\u2bff\ufe0f\U0001f000-\U0001faff]"
_UNSEEN = f"[{_INVISIBLE}]|(?<!{_JOINED}){_JOINERS}(?!\u20e3)"
"""Characters that Unicode lets a font ignore; joiners within emoji, Arabic and Indic text are not meant."""


def _mark(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)  # ␀ .. ␟
    if code == 0x7F:
        return "␡"
    return f"⟨{code:04X}⟩"


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def is_unicode(text: str) -> bool:
    """Whether a text is valid Unicode: without lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates by U+FFFD, so that it is valid Unicode."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def clean(text: str) -> str:
    """Replace control, bidi, line-separator and tag characters by visible marks.

    Newline and tab stay. Each character is replaced on its own (by at most 7), so a control sequence that is
    split over several calls cannot pass.
    """
    return re.sub(_UNSAFE, _mark, text)


def escape_json(text: str) -> str:
    """Escape in JSON text the characters that `clean` would replace."""
    return re.sub(_UNSAFE, _escape, text)


def one_line(text: str) -> str:
    """`clean` for names and messages: newline, tab and invisible characters are replaced too.

    With invisible characters, different names would look alike.
    """
    if text.isascii():
        return clean(text).replace("\n", "␊").replace("\t", "␉")
    return re.sub(_UNSEEN, _mark, clean(text).replace("\n", "␊").replace("\t", "␉"))


_SIGNS = str.maketrans({" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽"})


def visible(data: bytes) -> str:
    """The bytes of a token as visible text: a space as ·, an invalid byte as ⟨E4⟩."""
    parts: list[str] = []
    while data:
        try:
            parts.append(_plain(data.decode()))
            break
        except UnicodeDecodeError as error:
            parts.append(_plain(data[: error.start].decode()))
            parts += [f"⟨{byte:02X}⟩" for byte in data[error.start : error.end]]
            data = data[error.end :]
    return "".join(parts)


def local_time(seconds: float) -> datetime:
    """A time as a local date; 1970 for a number that is none, which an imported file may have."""
    try:
        return datetime.fromtimestamp(seconds)
    except (OverflowError, OSError, ValueError):
        return datetime.fromtimestamp(0)


def token_name(id: int, data: bytes) -> str:
    """The text of a token as `visible` shows it; #id for a token without bytes."""
    return visible(data) or f"#{id}"


def _plain(text: str) -> str:
    return one_line(text.translate(_SIGNS))


def count_of(count: int, noun: str) -> str:
    """A number of things: 1 row, 2 rows, 1,000 rows."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_bytes(count: int) -> str:
    """A number of bytes in decimal units: 269 MB."""
    for limit, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= limit:
            value = count / limit
            return f"{value:.0f} {unit}" if value >= 99.5 else f"{value:.3g} {unit}"
    return f"{count} B"


def limit_words(limit: int, size: int) -> str:
    """What is wrong with a size of so many bytes: must be at most 16.8 MB (got 20 MB)."""
    most, got = format_bytes(limit), format_bytes(size)
    if most == got:
        most, got = f"{limit:,} bytes", f"{size:,}"
    return f"must be at most {most} (got {got})"


def format_duration(seconds: float) -> str:
    """A duration in its two largest units: 9 s, 1 min 35 s, 2 h 5 min."""
    minutes, second = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min" if minutes else f"{hours:,} h"
    if minutes:
        return f"{minutes} min {second} s" if second else f"{minutes} min"
    return f"{second} s"


def format_seconds(value: float) -> str:
    """A measured duration with at most three digits: 42 ms, 3.14 s, 85 s."""
    return f"{value * 1000:.0f} ms" if value < 0.1 else f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def common_prefix(words: Sequence[str]) -> str:
    """What all words begin with; "" without words."""
    first, last = min(words, default=""), max(words, default="")
    same = next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), None)
    return first[:same]


def closest_name(word: str, names: Iterable[str]) -> str:
    """The name most similar to a mistyped word, or abbreviated by it; "" if no name is similar."""
    from difflib import get_close_matches  # imported here: only errors need it

    by_lower = {name.lower(): name for name in names}
    found = get_close_matches(word.lower(), by_lower, 1)
    found += [name for name in by_lower if _abbreviates(word.lower(), name)]
    return by_lower[found[0]] if found else ""


def _abbreviates(word: str, name: str) -> bool:
    """Whether the name starts with the word's first letter and contains the others in order."""
    letters = iter(name)
    return len(word) > 1 and name[:1] == word[0] and all(letter in letters for letter in word)
