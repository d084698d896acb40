"""Sentences in languages that the model does not speak, and the one sentence in each that says so."""

import random
from typing import Any

from training.material import asked, capital, table
from training.patterns import Part, as_typed, draw, wordings
from training.turns import Turn

_LANGUAGES: dict[str, dict[str, Any]] = table("languages")
_ASKED = {name: asked().get(f"language.{name}", []) for name in _LANGUAGES}
_WEIGHTS = [
    (sum(map(wordings, entry["ask"])) + 4 * len(_ASKED[name])) ** 0.5 for name, entry in _LANGUAGES.items()
]
_NO_SPACE = ("Chinese", "Japanese")


def foreign(rng: random.Random, part: Part) -> list[Turn] | None:
    """A sentence in one of the languages, with its own marks; nothing of it may be changed."""
    name = rng.choices(list(_LANGUAGES), _WEIGHTS)[0]
    entry = _LANGUAGES[name]
    wording = as_typed(_ASKED[name], rng, part) or draw(entry["ask"], rng, part)
    if wording is None:
        return None
    text = capital(wording) if rng.random() < 0.5 else wording
    if rng.random() < 0.6:
        marks = (
            ("？", "！", "。") if name in _NO_SPACE else ("?", "!", ".", " ?" if name == "French" else "?")
        )
        text += rng.choice(marks)
    return [Turn(f"language.{name}", text, entry["answer"], (entry["key"],), copied=(text,))]
