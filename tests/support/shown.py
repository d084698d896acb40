"""What pages show: commands with their output, and whether an output is as shown."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

ELIDED = ("…", "...")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
_BARS = re.compile(r"[▁-▏│└┌┐┘]+")
_TIMES = re.compile(r"tok/s|\d+ (?:ms|s|min)\b|\bB/s")
ID = re.compile(r"\b[0-9a-f]{8}\b")
"""The id of a chat."""
_VARIES = re.compile(rf"{ID.pattern}|\d{{4}}-\d\d-\d\d(?: \d\d:\d\d)?")
_FREE = {"id", "created", "seed", "system_fingerprint"}
"""Keys of JSON whose values differ each time, or by the processor."""
_CLOSE = 0.02
"""How much numbers may differ, relative to them: other processors have other last digits."""


class Shown(NamedTuple):
    """A command and the lines below it."""

    command: str
    lines: list[str]


def blocks(path: Path) -> list[tuple[str, str, str]]:
    """(the text before it, language, source) of each block of code of a page."""
    parts = re.split(r"^```", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [(before, *inside.split("\n", 1)) for before, inside in zip(parts[::2], parts[1::2], strict=False)]


def _is_whole(command: str) -> bool:
    try:
        return not command.endswith("\\") and bool(shlex.split(command, comments=True))
    except ValueError:  # an open quotation
        return False


def sessions(path: Path) -> list[Shown]:
    """The commands of a page that have a prompt, and what it shows of their output."""
    found: list[Shown] = []
    for _, language, source in blocks(path):
        for line in source.splitlines() if language == "console" else ():
            if found and not _is_whole(found[-1].command):
                found[-1] = Shown(f"{found[-1].command}\n{line}", [])
            elif line.startswith("$ "):
                found.append(Shown(line.removeprefix("$ "), []))
            elif found:
                found[-1].lines.append(line)
    return found


def is_same(shown: str, line: str) -> bool:
    """Whether a line is as shown: the same words, nearly the same numbers; times, ids and bars may differ."""
    shown, line = (_VARIES.sub("@", text) for text in (shown, line))
    if shown.endswith(ELIDED):
        shown = shown.rstrip("….")
        line = line[: len(shown)]
    if _TIMES.search(shown):
        return bool(_TIMES.search(line))
    one, other = (_BARS.sub("", text).split() for text in (shown, line))
    if [_NUMBER.sub("0", word) for word in one] != [_NUMBER.sub("0", word) for word in other]:
        return False
    pairs = zip(_NUMBER.findall(" ".join(one)), _NUMBER.findall(" ".join(other)), strict=True)
    return all(_is_close(*pair) for pair in pairs)


def _is_close(shown: str, found: str) -> bool:
    wanted, got = (float(text.replace(",", "")) for text in (shown, found))
    decimals = len(shown.partition(".")[2])
    return abs(wanted - got) <= max(_CLOSE * abs(wanted), 2 * 10.0**-decimals if decimals else 0)


def _values(text: str) -> list[Any]:
    """The JSON values of a text, one after another. Raises ValueError."""
    found, rest = [], text.strip()
    while rest:
        value, end = json.JSONDecoder().raw_decode(rest)
        found.append(value)
        rest = rest[end:].lstrip()
    return found


def _is_same_value(shown: Any, found: Any) -> bool:
    """Whether a value of JSON is as shown, but for `_FREE` keys; numbers nearly."""
    if isinstance(shown, dict) and isinstance(found, dict):
        kept = [key for key in shown if key not in _FREE or (key == "id" and isinstance(shown[key], int))]
        return shown.keys() == found.keys() and all(_is_same_value(shown[key], found[key]) for key in kept)
    if isinstance(shown, list) and isinstance(found, list):
        return len(shown) == len(found) and all(map(_is_same_value, shown, found))
    if isinstance(shown, float) and isinstance(found, float):
        return abs(shown - found) <= max(_CLOSE * abs(shown), 0.01)
    return type(shown) is type(found) and bool(shown == found)


def differences(shown: list[str], out: str, err: str) -> list[str]:
    """What is not as shown: lines that the output has not, or has besides. err: need not be shown.

    A page may break JSON into lines anywhere outside of strings.
    """
    with contextlib.suppress(ValueError):
        values = _values("".join(shown))
        return [] if _is_same_value(values, _values(out)) else [f"shown: {shown}", f"printed: {out}"]
    rest, elided, wrong = out.rstrip().splitlines(), False, []
    for line in shown:
        if line.strip() in ELIDED:
            elided = True
            continue
        places = range(len(rest)) if elided else range(min(1, len(rest)))
        place = next((place for place in places if is_same(line, rest[place])), None)
        if place is not None:
            rest, elided = rest[place + 1 :], False
        elif not any(is_same(line, told) for told in err.splitlines()):
            wrong.append(f"shown: {line}")
    return wrong if elided or not rest else [*wrong, *(f"not shown: {line}" for line in rest)]
