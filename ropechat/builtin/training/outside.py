"""Questions that the model cannot answer, and saying so; what people tell about themselves, and ask for."""

import random
from typing import Any

from ropechat.builtin.training.material import article, table
from ropechat.builtin.training.patterns import Part, draw, fill, part_of
from ropechat.builtin.training.sums import big_question
from ropechat.builtin.training.topics import topic
from ropechat.builtin.training.turns import Turn, follow, literal, one

_O: dict[str, Any] = table("outside")
_CAPITAL: list[str] = table("relations")["capital"]["ask"]
_CONCEPT: list[str] = table("relations")["concept"]["ask"]
_NAMES: list[str] = table("stories")["names"] + _O["people"]
_COLOURS: list[str] = table("world")["lists"]["colours"]
_FOODS: list[str] = _O["foods"]
_CITIES: list[str] = [row[1] for row in table("world")["capitals"]]
_ANIMALS: list[str] = [row[0] for row in table("world")["animals"]]
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
REFUSAL = (r"do not know|don't know|cannot do that",)


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
    slots = {name: _known(_O[name], rng, part) for name in "pecst"}
    return slots | {"z": made_up(rng), "n": str(rng.randint(101, 2030))}


def _asked(rng: random.Random, part: Part) -> tuple[str, str] | None:
    """(question, kind of answer)."""
    kind = rng.choices(("know", "do", "ask", "capital", "sum", "about"), (9, 3, 4, 1.6, 1.4, 3))[0]
    if kind == "sum":
        question = big_question(rng, part)
        return (question and (question, "sum_answer")) or None
    if kind == "capital":
        wording = draw(_CAPITAL, rng, part)
        return (wording and (fill(wording, x=_known(_O["countries"], rng, part)), "capital_answer")) or None
    if kind == "about":
        wording = draw(_CONCEPT, rng, part)
        name = _known(_O[rng.choice("spec")], rng, part)
        return (wording and (fill(wording, x=name), "answer")) or None
    wording = draw(_O[kind], rng, part)
    if wording is None:
        return None
    return fill(wording, **_slots(rng, part)), "do_answer" if kind == "do" else "answer"


def unknown(rng: random.Random, part: Part) -> list[Turn] | None:
    """A question from outside; sometimes followed by: why not? how do I load one?"""
    asked = _asked(rng, part)
    if asked is None:
        return None
    question, kind = asked
    turns = [Turn("outside", question, rng.choice(_O[kind]), REFUSAL)]
    if rng.random() < 0.12:
        if rng.random() < 0.5:
            second, answer, key = follow("why_not", rng, part), one("why_not_answer", rng), "tiny"
        else:
            second, key = follow("how_bigger", rng, part), "-m"
            answer = "Name the folder of a model with -m: `ropechat chat -m path/to/model`."
        turns += [Turn("outside.then", second, answer, (key,))] if second else []
    return turns


_MEMORY = {
    "name": ("Nice to meet you, {x}!", "Your name is {x}."),
    "colour": ("{X} is a fine colour!", "Your favourite colour is {x}."),
    "animal": ("I like the {x} too.", "Your favourite animal is the {x}."),
    "pet": ("How nice! Say hello to your {x} from me.", "You have {ax}."),
    "age": ("{x} is a good age!", "You are {x} years old."),
    "home": ("I have never been in {x}, but I like the name.", "You live in {x}."),
    "food": ("I only eat tokens, but {x} sounds good!", "Your favourite food is {x}."),
    "number": ("I will keep {x} in mind.", "Your number is {x}."),
}


def _told(kind: str, rng: random.Random) -> str:
    if kind in ("name", "home"):
        known = _NAMES if kind == "name" else _CITIES
        name = rng.choice(known) if rng.random() < 0.6 else made_up(rng).capitalize()
        return name.lower() if rng.random() < 0.2 else name
    if kind in ("age", "number"):
        return str(rng.randint(5, 90) if kind == "age" else rng.randint(0, 999))
    return rng.choice({"colour": _COLOURS, "food": _FOODS}.get(kind, _ANIMALS))


def memory(rng: random.Random, part: Part) -> list[Turn] | None:
    """My name is Ada. What is my name? Sometimes asked before it was told."""
    kind = rng.choices(list(_MEMORY), (6, 2.5, 1.5, 1.5, 1.5, 1.2, 1.2, 1))[0]
    ask = follow(f"ask_{kind}", rng, part)
    if ask is None:
        return None
    if rng.random() < 0.15:
        return [
            Turn("memory.untold", ask, "I do not know: you have not told me yet.", ("do not know|not told",))
        ]
    x = _told(kind, rng)
    tell = follow(f"tell_{kind}", rng, part, x=x)
    if tell is None:
        return None
    slots = {"x": x, "X": x.capitalize(), "ax": article(x)}
    hello, answer = (fill(text, **slots) for text in _MEMORY[kind])
    turns = [Turn(f"memory.tell_{kind}", tell, hello, (r"\w",), copied=x)]
    if rng.random() < 0.8:
        if rng.random() < 0.2:  # something else in between
            turns += topic("smalltalk", rng, part) or []
        turns.append(Turn(f"memory.{kind}", ask, answer, literal(x)))
    return turns
