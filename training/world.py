"""The picture dictionary: animals, things, capitals, words, days and months, by relation."""

import functools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from training.material import article, capital, table
from training.patterns import Part, draw, fill
from training.turns import Turn, follow, literal

if TYPE_CHECKING:
    from collections.abc import Callable

WORLD = table("world")
RELATIONS = table("relations")
_ALPHABET = [*"abcdefghijklmnopqrstuvwxyz"]
_SILENT = "no sound"
_IT = ("food", "home", "sound", "baby", "colour", "legs")
_OF_COUNTRIES = ("capital", "spoken", "currency", "continent")
_FIELD = {"colour": 3, "legs": 4, "food": 5, "home": 6, "sound": 7, "baby": 8}


@dataclass(frozen=True)
class Fact:
    """One line of the dictionary under one relation: slots of the question, the answer, the key words."""

    slots: dict[str, str]
    answer: str
    keys: tuple[str, ...]


def _animal_facts(name: str) -> list[Fact]:
    field = _FIELD[name]
    facts = []
    for row in WORLD["animals"]:
        x, y = row[0], row[field]
        if name == "sound" and y == _SILENT:
            answer, key = f"A {x} makes no sound that we hear.", "no sound"
        else:
            answer = fill(RELATIONS[f"animal_{name}"]["answer"], x=x, A=capital(article(x)).split()[0], y=y)
            answer, key = answer.replace("A owl says", "An owl says"), y
        answer = answer.replace("called a o", "called an o").replace("called a e", "called an e")
        answer = answer.replace("called a i", "called an i")
        words = [word for word in key.replace(",", "").split() if word not in ("a", "in", "on", "the", "and")]
        facts.append(Fact({"x": x, "xs": row[1]}, _an(answer), literal(words[0])))
    return facts


def _an(answer: str) -> str:
    """`A owl` becomes `An owl`."""
    first, _, rest = answer.partition(" ")
    return f"An {rest}" if first == "A" and rest[0] in "aeiou" else answer


def animal_sentence(row: list[str]) -> str:
    """What an animal is."""
    name, _, kind, colour, legs, food, home, _, baby = row
    return (
        f"{capital(article(name))} is {article(kind)}. It is {colour}, has {legs} legs, lives {home} "
        f"and eats {food}. Its baby is called {article(baby)}."
    )


def _with_article(row: list[str]) -> str:
    return f"{row[1]} {row[0]}" if row[1] else row[0]


def _things(colour: bool) -> list[Fact]:
    facts = []
    for row in WORLD["things"]:
        name, _, what, shade = row
        ax = _with_article(row)
        slots = {"x": name, "ax": ax, "d": what}
        verb = "are" if name == "scissors" else "is"
        if colour and shade:
            facts.append(Fact(slots, f"{capital(ax)} {verb} {shade}.", literal(shade.split()[0])))
        elif not colour:
            tail = f" It is {shade}." if shade else ""
            word = [word for word in what.split() if len(word) > 3][-1]
            facts.append(Fact(slots, f"{capital(ax)} {verb} {what}.{tail}", literal(word)))
    return facts


def _pairs(name: str, rows: list[list[str]]) -> list[Fact]:
    template = RELATIONS[name]["answer"]
    return [Fact({"x": x}, capital(fill(template, x=x, y=y)), literal(y)) for x, y in rows]


_LANGUAGES = ("French", "German", "Spanish", "Italian")


def _translations() -> list[Fact]:
    """Words in other languages."""
    rows = [
        (row[0], language, word)
        for row in WORLD["translations"]
        for language, word in zip(_LANGUAGES, row[1:], strict=True)
    ]
    for language, hello, thanks in WORLD["greetings"]:
        rows += [("hello", language, hello), ("thank you", language, thanks)]
    facts = []
    for word, language, other in rows:
        x = f"{word} in {language}"
        answer = capital(fill(RELATIONS["translation"]["answer"], x=x, y=other))
        facts.append(Fact({"x": x, "w": word, "l": language}, answer, literal(other)))
    return facts


def _letters(place: int) -> list[list[str]]:
    """Words with their first or last letter."""
    return [[word, word[place].lower()] for word, _ in WORLD["pairs"]["spelling"]]


def _neighbours(names: list[str], step: int) -> list[list[str]]:
    return [[name, names[(at + step) % len(names)]] for at, name in enumerate(names)]


@functools.cache
def facts(relation: str) -> list[Fact]:
    """All facts of a relation."""
    opposites = WORLD["opposites"]
    both = opposites + [[y, x] for x, y in opposites if y not in {row[0] for row in opposites}]
    makers: dict[str, Callable[[], list[Fact]]] = {
        "capital": lambda: _pairs("capital", WORLD["capitals"]),
        "thing_what": lambda: _things(False),
        "thing_colour": lambda: _things(True),
        "opposite": lambda: _pairs("opposite", both),
        "next_day": lambda: _pairs("next_day", _neighbours(WORLD["days"], 1)),
        "previous_day": lambda: _pairs("previous_day", _neighbours(WORLD["days"], -1)),
        "next_month": lambda: _pairs("next_month", _neighbours(WORLD["months"], 1)),
        "previous_month": lambda: _pairs("previous_month", _neighbours(WORLD["months"], -1)),
        "shape": lambda: _pairs("shape", WORLD["shapes"]),
        "translation": _translations,
        "letters": lambda: _pairs(
            "letters", [[word, str(len(word))] for word, _ in WORLD["pairs"]["spelling"]]
        ),
        "first_letter": lambda: _pairs("first_letter", _letters(0)),
        "last_letter": lambda: _pairs("last_letter", _letters(-1)),
        "next_letter": lambda: _pairs("next_letter", _neighbours(_ALPHABET, 1)[:-1]),
        "previous_letter": lambda: _pairs("previous_letter", _neighbours(_ALPHABET, -1)[1:]),
        "animal_what": lambda: [
            Fact({"x": row[0], "xs": row[1]}, animal_sentence(row), literal(row[0], row[2].split()[-1]))
            for row in WORLD["animals"]
        ],
    }
    if relation in WORLD["pairs"]:
        return _pairs(relation, WORLD["pairs"][relation])
    if relation in makers:
        return makers[relation]()
    return _animal_facts(relation.removeprefix("animal_"))


_OFTEN = {
    "capital": 7.0,
    "animal_sound": 2.5,
    "animal_baby": 2.5,
    "animal_food": 2.0,
    "animal_home": 2.0,
    "animal_legs": 2.0,
    "animal_colour": 2.0,
    "animal_what": 3.0,
    "thing_what": 4.5,
    "thing_colour": 3.0,
    "opposite": 3.5,
    "next_day": 1.0,
    "previous_day": 0.7,
    "next_month": 1.2,
    "previous_month": 0.8,
    "shape": 0.7,
    "translation": 3.0,
    "letters": 1.0,
    "first_letter": 0.5,
    "last_letter": 0.5,
    "next_letter": 0.7,
    "previous_letter": 0.4,
    **{name: RELATIONS[name]["weight"] for name in WORLD["pairs"]},
}
NAMES = list(_OFTEN)
# Relations of words: another word is another question.
_OF_WORDS = {"opposite", "plural", "past", "rhyme", "synonym", "spelling", "letters"}


def fact(rng: random.Random, part: Part, relation: str | None = None) -> list[Turn] | None:
    """A question of the dictionary; sometimes the same about something else, or more about the same."""
    relation = relation or rng.choices(NAMES, list(_OFTEN.values()))[0]
    known = facts(relation)
    first = rng.choice(known)
    wording = draw(RELATIONS[relation]["ask"], rng, part)
    if wording is None:
        return None
    slots = first.slots
    if "ax" in slots:
        slots = slots | {"Ax": slots["ax"]}
    copied = (first.slots["x"],) if relation in _OF_WORDS else ()
    turn = Turn(f"world.{relation}", fill(wording, **slots), first.answer, first.keys, copied)
    if rng.random() < 0.62:
        return [turn]
    if relation == "animal_what":
        return [turn, *_about_it(first.slots["x"], rng, part)]
    if relation == "thing_what":
        return [turn]
    if relation.startswith("animal_") and rng.random() < 0.35:
        return [turn, *_about_it(first.slots["x"], rng, part, relation.removeprefix("animal_"))]
    if relation in _OF_COUNTRIES and rng.random() < 0.35:
        return [turn, *_of_country(first.slots["x"], relation, rng, part)]
    turns = [turn]
    for _ in range(rng.choice((1, 1, 1, 2))):
        other = rng.choice(known)
        wording = draw(RELATIONS[relation]["follow"], rng, part)
        if wording == "and after that":
            wording = None
        if wording is None or other.answer == turns[-1].answer:
            break
        copied = (other.slots["x"],) if relation in _OF_WORDS else ()
        question = fill(wording, **other.slots)
        turns.append(Turn(f"{turn.kind}.follow", question, other.answer, other.keys, copied))
    return turns


def _of_country(name: str, known: str, rng: random.Random, part: Part) -> list[Turn]:
    """Which language do they speak there? And the money?"""
    turns = []
    for relation in rng.sample([other for other in _OF_COUNTRIES if other != known], 2):
        found = next((fact for fact in facts(relation) if fact.slots["x"] == name), None)
        if found and (question := follow(f"there_{relation}", rng, part)):
            turns.append(Turn(f"world.there_{relation}", question, found.answer, found.keys))
    return turns[: rng.choice((1, 1, 2))]


def _about_it(name: str, rng: random.Random, part: Part, known: str = "") -> list[Turn]:
    """What does it eat? Where does it live? known: what was asked before."""
    turns = []
    for field in rng.sample([field for field in _IT if field != known], rng.choice((1, 1, 2))):
        question = follow(f"it_{field}", rng, part)
        fact = next(entry for entry in _animal_facts(field) if entry.slots["x"] == name)
        if question is not None:
            turns.append(Turn(f"world.it_{field}", question, fact.answer, fact.keys))
    return turns


def reversed_capital(rng: random.Random, part: Part) -> list[Turn] | None:
    """Which country has this capital?"""
    first = {y: x for x, y in reversed(WORLD["capitals"])}
    y = rng.choice(sorted(first))
    x = first[y]
    wording = draw(RELATIONS["capital_of"]["ask"], rng, part)
    if wording is None:
        return None
    return [Turn("world.capital_of", fill(wording, y=y), f"{y} is the capital of {x}.", literal(x))]
