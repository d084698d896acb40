"""Words to be said back: repeat after me."""

import random

from training.material import capital, table
from training.outside import made_up
from training.patterns import Part, draw, fill
from training.turns import Turn, literal

_E: dict[str, list[str]] = table("echo")
_WORLD = table("world")
_WORDS: list[str] = [row[0] for row in _WORLD["animals"] + _WORLD["things"]] + [
    x for pair in _WORLD["opposites"] for x in pair
]


def _words(rng: random.Random) -> str:
    roll = rng.random()
    if roll < 0.4:
        return rng.choice(_E["phrases"])
    if roll < 0.85:
        return " ".join(rng.sample(_WORDS, rng.choice((1, 1, 1, 2, 3))))
    return made_up(rng)


def said_back(rng: random.Random, part: Part) -> list[Turn] | None:
    """Say banana; repeat after me: the cat is blue."""
    wording = draw(_E["ask"], rng, part)
    if wording is None:
        return None
    words = _words(rng)
    shown = fill(rng.choice(_E["quotes"]), x=words)
    question = fill(wording, x=rng.choice(_E["separators"]) + shown)
    answer = words[:1].upper() + words[1:]
    text = capital(question) if rng.random() < 0.5 else question
    return [Turn("echo", text, answer, literal(answer.lower()), copied=(text,))]
