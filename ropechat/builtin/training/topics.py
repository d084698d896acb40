"""Topics with answers of their own (small talk, ropechat, facts) and the ideas of language models."""

import random
from typing import Any

from ropechat.builtin.training.material import table
from ropechat.builtin.training.patterns import Part, draw, fill, wordings
from ropechat.builtin.training.program import filled
from ropechat.builtin.training.turns import Turn, about_last, follow, one

_MORE: dict[str, list[str]] = table("paraphrases")


def _topics(name: str) -> list[dict[str, Any]]:
    entries = table(name)["topic"]
    return [filled(entry | {"ask": entry["ask"] + _MORE.get(entry["id"], [])}) for entry in entries]


TOPICS: dict[str, list[dict[str, Any]]] = {name: _topics(name) for name in ("smalltalk", "ropechat", "facts")}
CONCEPTS: list[dict[str, Any]] = table("concepts")["concept"]
_RELATIONS = table("relations")
_OFTEN = {"hello", "how_are_you", "i_am_fine", "thanks", "bye", "name", "can_do"}  # what people type first
_AGAIN = {"joke", "fun_fact"}  # topics whose answers differ, so that people ask for another


def _weight(topic: dict[str, Any]) -> float:
    often = 2.0 if topic["id"] in _OFTEN else 1.0
    return often * float(min(sum(wordings(pattern) for pattern in topic["ask"]), 600) ** 0.3)


_WEIGHTS = {name: [_weight(topic) for topic in topics] for name, topics in TOPICS.items()}


def topic(name: str, rng: random.Random, part: Part) -> list[Turn] | None:
    """A question of small talk, ropechat or facts; sometimes with a second one."""
    chosen = rng.choices(TOPICS[name], _WEIGHTS[name])[0]
    question = draw(chosen["ask"], rng, part)
    if question is None:
        return None
    turn = Turn(f"{name}.{chosen['id']}", question, rng.choice(chosen["answer"]), tuple(chosen["keys"]))
    if rng.random() < 0.8:
        return [turn]
    return _with_second(turn, chosen, rng, part)


def _with_second(turn: Turn, chosen: dict[str, Any], rng: random.Random, part: Part) -> list[Turn]:
    second: Turn | None = None
    if chosen["id"] in _AGAIN:
        question = follow("another", rng, part)
        others = [answer for answer in chosen["answer"] if answer != turn.answer]
        second = (question and Turn(turn.kind + ".another", question, rng.choice(others), turn.keys)) or None
    elif "more" in chosen or "example" in chosen:
        second = _deeper(turn, chosen, rng, part)
    elif chosen["id"] == "cannot_do":
        question = follow("how_bigger", rng, part)
        bigger = next(entry for entry in TOPICS["ropechat"] if entry["id"] == "bigger")
        second = (question and Turn("bigger.then", question, bigger["answer"][0], ("-m",))) or None
    elif rng.random() < 0.4:
        second = about_last(turn, rng, part)
    return [turn, second] if second else [turn]


def _deeper(turn: Turn, entry: dict[str, Any], rng: random.Random, part: Part) -> Turn | None:
    """Tell me more; give me an example."""
    roll = rng.random()
    if roll < 0.1:
        return about_last(turn, rng, part)
    name = "more" if roll < 0.6 else "example"
    question = follow(name, rng, part)
    if question is None:
        return None
    answer = entry.get(name) or one("no_more", rng)
    words = [word for word in answer.lower().split() if word.isalpha() and len(word) > 4][:3]
    return Turn(f"{turn.kind}.{name}", question, answer, tuple(words))


def is_pair(concept: dict[str, Any]) -> bool:
    """Whether the concept is the difference of two."""
    return " and " in concept["names"][0] and "," not in concept["names"][0]


def concept(rng: random.Random, part: Part) -> list[Turn] | None:
    """What is attention, and: tell me more; for example?"""
    chosen = rng.choice(CONCEPTS)
    relation = "difference" if is_pair(chosen) and rng.random() < 0.85 else "concept"
    wording = draw(_RELATIONS[relation]["ask"], rng, part)
    if wording is None:
        return None
    question = fill(wording, x=rng.choice(chosen["names"]))
    turn = Turn(f"concept.{chosen['names'][0]}", question, chosen["what"], tuple(chosen["keys"]))
    turns = [turn]
    if rng.random() < 0.4:
        second = _deeper(turn, chosen, rng, part)
        turns += [second] if second else []
        if second and rng.random() < 0.3:
            third = _deeper(turn, chosen, rng, part)
            if third and third.answer not in (second.answer, turn.answer):
                turns.append(third)
    return turns
