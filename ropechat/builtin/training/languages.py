"""Sentences in languages that the model does not speak, and the one sentence in each that says so."""

import random
from typing import Any

from ropechat.builtin.training.material import capital, table
from ropechat.builtin.training.patterns import Part, draw, wordings
from ropechat.builtin.training.turns import Turn

_LANGUAGES: dict[str, dict[str, Any]] = table("languages")
_WEIGHTS = [sum(map(wordings, entry["ask"])) ** 0.5 for entry in _LANGUAGES.values()]
_NO_SPACE = ("Chinese", "Japanese")


def foreign(rng: random.Random, part: Part) -> list[Turn] | None:
    """A sentence in one of the languages, with its own marks; nothing of it may be changed."""
    name = rng.choices(list(_LANGUAGES), _WEIGHTS)[0]
    entry = _LANGUAGES[name]
    wording = draw(entry["ask"], rng, part)
    if wording is None:
        return None
    text = capital(wording) if rng.random() < 0.5 else wording
    if rng.random() < 0.6:
        marks = (
            ("？", "！", "。") if name in _NO_SPACE else ("?", "!", ".", " ?" if name == "French" else "?")
        )
        text += rng.choice(marks)
    return [Turn(f"language.{name}", text, entry["answer"], (entry["key"],), copied=(text,))]
