"""What the sources of the corpus make: turns, and the small things they share."""

import random
import re
from dataclasses import dataclass
from typing import Any

from training.material import table
from training.patterns import Part, draw, fill

FOLLOW: dict[str, Any] = table("followups")


@dataclass(frozen=True)
class Turn:
    """A question and its answer.

    keys: regular expressions that an acceptable answer all matches. copied: words of the question that a
    later answer copies, so that typing errors must spare them.
    """

    kind: str
    question: str
    answer: str
    keys: tuple[str, ...]
    copied: tuple[str, ...] = ()


def follow(name: str, rng: random.Random, part: Part, **slots: str) -> str | None:
    """A second question of a kind, from followups.toml."""
    wording = draw(FOLLOW[name], rng, part)
    return None if wording is None else fill(wording, **slots)


def literal(*words: str) -> tuple[str, ...]:
    """Keys that are plain words."""
    return tuple(rf"\b{re.escape(word)}\b" for word in words)


def main_words(answer: str) -> tuple[str, ...]:
    """Keys that are the two longest words of an answer."""
    words = sorted(dict.fromkeys(re.findall(r"[A-Za-z0-9]+", answer)), key=len)[-2:]
    return tuple(rf"(?i)\b{word}\b" for word in words)
