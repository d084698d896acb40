"""Topics with answers of their own (small talk, commands, facts) and the ideas of language models."""

import random
from typing import Any

from training import commands
from training.material import asked, table
from training.patterns import Part, as_typed, draw, fill, wordings
from training.program import filled
from training.turns import FOLLOW, Turn, follow

_MORE: dict[str, list[str]] = table("paraphrases")
_ASKED = asked()


def _topics(name: str) -> list[dict[str, Any]]:
    entries = commands.topics() if name == "commands" else table(name)["topic"]
    added = [{"ask": entry["ask"] + _MORE.get(entry["id"], [])} for entry in entries]
    leaning: dict[str, dict[str, str]] = FOLLOW["after"]
    return [
        filled(_with_asked(entry | ask, entry["id"]) | leaning.get(entry["id"], {}))
        for entry, ask in zip(entries, added, strict=True)
    ]


def _with_asked(entry: dict[str, Any], name: str) -> dict[str, Any]:
    return entry | {"asked": _ASKED.get(name, [])}


_FILES = ("smalltalk", "keys", "commands", "facts")
TOPICS: dict[str, list[dict[str, Any]]] = {name: _topics(name) for name in _FILES}
CONCEPTS: list[dict[str, Any]] = [
    filled(_with_asked(commands.with_facts(entry), entry["names"][0]))
    for entry in table("concepts")["concept"]
]
_BIGGER = next(entry for entries in TOPICS.values() for entry in entries if entry["id"] == "bigger")
_RELATIONS = table("relations")
_OFTEN = {
    "hello",
    "how_are_you",
    "i_am_fine",
    "thanks",
    "bye",
    "name",
    "can_do",
    "colours",
    "help",
    "stop",
    "quit",
}  # what people type first
AGAIN = {
    "joke",
    "fun_fact",
    "riddle",
    "poem",
    "coin",
    "die",
    "random_number",
    *(f"{kind}_idea" for kind in ("title", "name", "dinner", "present", "activity", "story", "travel")),
    "pet_name",
    "baby_name",
}  # topics whose answers differ, so that people ask for another


def _weight(topic: dict[str, Any]) -> float:
    often = float(topic.get("weight", 2.0 if topic["id"] in _OFTEN else 1.0))
    known = sum(wordings(pattern) for pattern in topic["ask"]) + 20 * len(topic["asked"])
    return often * float(min(known, 1200) ** 0.3)


_WEIGHTS = {name: [_weight(topic) for topic in topics] for name, topics in TOPICS.items()}


def topic(name: str, rng: random.Random, part: Part) -> list[Turn] | None:
    """A question of small talk, commands or facts; sometimes with a second one."""
    chosen = rng.choices(TOPICS[name], _WEIGHTS[name])[0]
    turn = _turn(name, chosen, rng, part)
    if turn is None:
        return None
    second = _second(turn, chosen, rng, part) if rng.random() < 0.25 else None
    return [turn, second] if second else [turn]


def named(name: str, wanted: str, rng: random.Random, part: Part) -> list[Turn]:
    """A question of the topic with this id; none when the part has no wording of it."""
    turn = _turn(name, next(entry for entry in TOPICS[name] if entry["id"] == wanted), rng, part)
    return [turn] if turn else []


def _turn(name: str, chosen: dict[str, Any], rng: random.Random, part: Part) -> Turn | None:
    question = as_typed(chosen["asked"], rng, part) or draw(chosen["ask"], rng, part)
    if question is None:
        return None
    return Turn(f"{name}.{chosen['id']}", question, rng.choice(chosen["answer"]), tuple(chosen["keys"]))


def _second(turn: Turn, chosen: dict[str, Any], rng: random.Random, part: Part) -> Turn | None:
    """Another joke; how do I load a bigger model?"""
    if chosen["id"] in AGAIN:
        question = follow("another", rng, part)
        others = [answer for answer in chosen["answer"] if answer != turn.answer]
        return (question and Turn(turn.kind + ".another", question, rng.choice(others), turn.keys)) or None
    if chosen["id"] != "cannot_do":
        return None
    question = follow("how_bigger", rng, part)
    bigger = _BIGGER["answer"][0]
    return (question and Turn("bigger.then", question, bigger, ("-m",))) or None


def is_pair(concept: dict[str, Any]) -> bool:
    """Whether the concept is the difference of two."""
    return " and " in concept["names"][0] and "," not in concept["names"][0]


def concept(rng: random.Random, part: Part) -> list[Turn] | None:
    """What is attention?"""
    chosen = rng.choice(CONCEPTS)
    if typed := as_typed(chosen["asked"], rng, part):
        return [_of_concept(chosen, typed)]
    relation = "difference" if is_pair(chosen) and rng.random() < 0.85 else "concept"
    wording = draw(_RELATIONS[relation]["ask"], rng, part)
    if wording is None:
        return None
    return [_of_concept(chosen, fill(wording, x=rng.choice(chosen["names"])))]


def _of_concept(chosen: dict[str, Any], question: str) -> Turn:
    return Turn(f"concept.{chosen['names'][0]}", question, chosen["what"], tuple(chosen["keys"]))
