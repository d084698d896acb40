"""Questions that the model cannot answer, and saying so."""

import random
from typing import Any

from training.material import asked, table
from training.patterns import Part, as_typed, draw, fill, part_of
from training.program import fill_names
from training.sums import big_question
from training.turns import Turn, follow

_O: dict[str, Any] = table("outside")
_CAPITAL: list[str] = table("relations")["capital"]["ask"]
_CONCEPT: list[str] = table("relations")["concept"]["ask"]
_STARTS = [
    "b",
    "c",
    "d",
    "f",
    "g",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "t",
    "v",
    "w",
    "z",
    "br",
    "cl",
    "dr",
    "fl",
    "gr",
    "kr",
    "pl",
    "st",
    "tr",
    "sh",
    "th",
    "qu",
    "sn",
]
_MIDDLES = ["a", "e", "i", "o", "u", "ai", "ea", "ou", "oo"]
_ENDS = [
    "b",
    "ck",
    "d",
    "g",
    "l",
    "m",
    "n",
    "p",
    "r",
    "rt",
    "s",
    "st",
    "t",
    "x",
    "ng",
    "nd",
    "lm",
    "ra",
    "lo",
    "na",
    "vi",
    "tus",
    "nia",
    "ra",
    "don",
    "bel",
]
_KINDS: dict[str, dict[str, Any]] = _O["kinds"]
_ASKED = asked()
_SLOTS = "pkecstwiz"  # the kinds of names
REFUSAL = (r"do not know|don't know|cannot",)


def made_up(rng: random.Random) -> str:
    """A word that nobody knows."""
    parts = [rng.choice(_STARTS) + rng.choice(_MIDDLES) for _ in range(rng.choice((1, 1, 2)))]
    word = "".join(parts) + rng.choice(_ENDS)
    return word.capitalize() if rng.random() < 0.3 else word


def _known(names: list[str], rng: random.Random, part: Part) -> str:
    """A name of the part; about one in four is made up."""
    if rng.random() < 0.25:
        return made_up(rng)
    return rng.choice([name for name in names if part_of("outside", name) == part] or names)


def _slots(rng: random.Random, part: Part) -> dict[str, str]:
    slots = {name: _known(_O[name], rng, part) for name in _SLOTS}
    return slots | {"n": str(rng.randint(101, 2030))}


def _asked(rng: random.Random, part: Part) -> tuple[str, str] | None:
    """A question and the answer to its kind."""
    names = ["capital", "sum", *_KINDS]
    name = rng.choices(names, [1.6, 1.6, *(kind["weight"] for kind in _KINDS.values())])[0]
    if name == "sum":
        question = big_question(rng, part)
        return (question and (question, rng.choice(_O["sum_answer"]))) or None
    if name == "capital":
        wording = draw(_CAPITAL, rng, part)
        slots = {"x": _known(_O["countries"], rng, part)}
        return (wording and (fill(wording, **slots), rng.choice(_O["capital_answer"]))) or None
    answer = rng.choice(_KINDS[name]["answer"])
    if name == "science" and rng.random() < 0.3:
        wording = draw(_CONCEPT, rng, part)
        return (wording and (fill(wording, x=_known(_O["s"], rng, part)), answer)) or None
    typed = _ASKED.get(f"outside.{name}", []) + _KINDS[name].get("asked", [])
    wording = as_typed(typed, rng, part) or draw(_KINDS[name]["ask"], rng, part)
    return (wording and (fill(wording, **_slots(rng, part)), answer)) or None


def unknown(rng: random.Random, part: Part) -> list[Turn] | None:
    """A question from outside; sometimes followed by: how do I load one?"""
    drawn = _asked(rng, part)
    if drawn is None:
        return None
    question, refusal = drawn
    turns = [Turn("outside", question, fill_names(refusal), REFUSAL)]
    if rng.random() < 0.06 and (second := follow("how_bigger", rng, part)):
        answer = "Press {model.pick} and choose one, or name one with -m: `ropechat chat -m qwen3:0.6b`."
        turns.append(Turn("bigger.then", second, fill_names(answer), ("-m",)))
    return turns
