"""Patterns of questions: `(a|b)` is a choice, `(x|)` may be left out, a backslash keeps the next character.

One pattern stands for many wordings. Which wordings are trained on and which are kept for evaluation is
decided by a hash of the wording, before its slots ({x} ...) are filled: held out is held out for all things.
"""

import functools
import hashlib
import random
import re
from typing import Literal

Part = Literal["train", "dev", "test"]
Node = str | list[list["Node"]]
SLICES = 14  # of the wordings one slice is for development and one for the test


def _alternatives(pattern: str, at: int) -> tuple[list[list[Node]], int]:
    """Parse from `at` to the end or to the `)` that closes the group."""
    choices: list[list[Node]] = [[]]
    text = ""
    while at < len(pattern) and pattern[at] != ")":
        sign = pattern[at]
        at += 1
        if sign == "\\":
            text += pattern[at]
            at += 1
            continue
        if sign not in "(|":
            text += sign
            continue
        choices[-1].append(text)
        text = ""
        if sign == "|":
            choices.append([])
        else:
            group, at = _alternatives(pattern, at)
            choices[-1].append(group)
            at += 1
    choices[-1].append(text)
    return choices, at


@functools.cache
def _parse(pattern: str) -> list[list[Node]]:
    choices, end = _alternatives(pattern, 0)
    if end != len(pattern):
        raise ValueError(f"{pattern!r}: a group closes at {end} that never opened")
    return choices


def _expand(choices: list[list[Node]], rng: random.Random) -> str:
    row = choices[0] if len(choices) == 1 else choices[int(rng.random() * len(choices))]
    return "".join(node if isinstance(node, str) else _expand(node, rng) for node in row)


def expand(pattern: str, rng: random.Random) -> str:
    """One wording of a pattern."""
    return " ".join(_expand(_parse(pattern), rng).split())


def _count(choices: list[list[Node]]) -> int:
    total = 0
    for row in choices:
        product = 1
        for node in row:
            product *= 1 if isinstance(node, str) else _count(node)
        total += product
    return total


@functools.cache
def wordings(pattern: str) -> int:
    """How many wordings a pattern has."""
    return _count(_parse(pattern))


def _all(choices: list[list[Node]]) -> list[str]:
    """Every wording of a parsed pattern."""
    found = []
    for row in choices:
        texts = [""]
        for node in row:
            texts = [
                text + end for text in texts for end in ([node] if isinstance(node, str) else _all(node))
            ]
        found += texts
    return found


def every_wording(pattern: str) -> list[str]:
    """All wordings of a pattern with few."""
    return [" ".join(text.split()) for text in _all(_parse(pattern))]


def normal(text: str) -> str:
    """A text without case, punctuation and extra spaces: what counts as the same question."""
    words = " ".join(re.sub(r"[^\w{}+*/-]+|_", " ", text.lower()).split())
    return words or text.strip()  # a text of marks alone stays


@functools.lru_cache(1 << 17)
def part_of(*words: str) -> Part:
    """The part that a wording, or a combination of words, belongs to."""
    digest = hashlib.sha256("\0".join(normal(word) for word in words).encode()).digest()
    place = int.from_bytes(digest[:4]) % SLICES
    return "test" if place == 0 else "dev" if place == 1 else "train"


@functools.cache
def _weights(patterns: tuple[str, ...]) -> list[float]:
    """Patterns with many wordings come more often, but not in proportion."""
    return [min(wordings(pattern), 400) ** 0.5 for pattern in patterns]


def draw(patterns: list[str], rng: random.Random, part: Part) -> str | None:
    """A wording of one of the patterns that belongs to the part; None when a hundred tries found none."""
    weights = _weights(tuple(patterns))
    for _ in range(100):
        wording = expand(rng.choices(patterns, weights)[0], rng)
        if part_of(wording) == part:
            return wording
    return None


def as_typed(questions: list[str], rng: random.Random, part: Part) -> str | None:
    """One of the whole questions as new users typed them; the more there are, the less often None."""
    number = len(questions)
    often = rng.random() * (number + 10) < 0.7 * number
    return draw(questions, rng, part) if often else None


def fill(wording: str, **slots: str) -> str:
    """Put things into the slots."""
    return re.sub(r"\{(\w+)\}", lambda match: slots[match[1]], wording)
