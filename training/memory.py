"""What people say about themselves, and questions about it later in the chat."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from training.material import article, capital, table
from training.outside import made_up
from training.patterns import Part, as_typed, draw, fill
from training.turns import Turn, literal

_M: dict[str, Any] = table("memory")
_KINDS: list[dict[str, Any]] = _M["kind"]
_WEIGHTS: list[float] = [kind["weight"] for kind in _KINDS]
_WORDS: dict[str, Any] = _M["words"] | {
    "ages": [str(age) for age in range(4, 100)],
    "numbers": [str(number) for number in [*range(100), *range(101, 10_000, 37)]],
}
_CAPITALS = (
    "names",
    "pet_names",
    "places",
    "surnames",
)  # made-up words with a capital may replace them
SLOTS: dict[str, list[str]] = {
    "name": _WORDS["names"],
    "place": _WORDS["places"],
    "pet": sorted(set(_WORDS["pets"])),
    "pet_name": _WORDS["pet_names"],
    "person": _WORDS["people"],
    "job": _WORDS["jobs"],
    "food": _WORDS["foods"],
    "hobby": _WORDS["hobbies"],
    "thing": _WORDS["things"],
    "colour": _WORDS["colours"],
    "day": _WORDS["weekdays"],
    "number": _WORDS["numbers"],
}
"""Words for the slots of whole dialogues."""
Between = Callable[[random.Random, Part], list[Turn]]


@dataclass(frozen=True)
class Fact:
    """What a user said. owner: whose name it is (the dog), or which favourite thing; "" for the user."""

    kind: dict[str, Any]
    word: str
    owner: str = ""

    def text(self, name: str) -> str:
        """One of the texts of the kind, with the words of this fact."""
        return self.filled(self.kind[name])

    def filled(self, pattern: str, **more: str) -> str:
        """A pattern with the words of this fact."""
        slots = {"x": self.word, "X": capital(self.word), "ax": article(self.word)}
        slots |= {"Ax": capital(slots["ax"]), "k": self.owner, "ak": article(self.owner or "pet")}
        slots["what"] = fill(self.kind["what"], k=self.owner)
        return fill(pattern, **(slots | more))


def _word(fact_kind: dict[str, Any], owner: str, rng: random.Random) -> str:
    """A word to remember; many are made up, so that it must be copied."""
    name = fact_kind.get("words", "")
    known: list[str] = _WORDS[name] if name else _WORDS["favourites"][owner]
    if not known or (name == "secrets" and rng.random() < 0.4):
        return made_up(rng)
    if name not in _CAPITALS:
        return rng.choice(known)
    word = rng.choice(known) if rng.random() < 0.72 else made_up(rng).capitalize()
    return word.lower() if rng.random() < 0.25 else word


def _fact(rng: random.Random, kind: dict[str, Any] | None = None, owner: str = "") -> Fact:
    kind = kind or rng.choices(_KINDS, _WEIGHTS)[0]
    if "of" in kind and not owner:
        owner = rng.choice(list(_WORDS[kind["of"]]))
    return Fact(kind, _word(kind, owner, rng), owner)


def _facts(rng: random.Random) -> list[Fact]:
    """One to three facts of different kinds."""
    count = rng.choices((1, 2, 3), (60, 30, 10))[0]
    facts: list[Fact] = []
    while len(facts) < count:
        fact = _fact(rng)
        if not any(fact.kind is other.kind or _near(fact, other) for other in facts):
            facts.append(fact)
    return facts


def _near(one: Fact, other: Fact) -> bool:
    """Whether a question about one fact could mean the other."""
    first, second = one.kind["id"], other.kind["id"]
    same = first == second and one.owner == other.owner
    return same or first in other.kind.get("near", []) or second in one.kind.get("near", [])


def _ask(fact: Fact, rng: random.Random, part: Part, known: bool = True) -> list[Turn]:
    """A question about a fact; known: whether the user said it before."""
    question = as_typed(fact.kind["asked"], rng, part) or draw(fact.kind["ask"], rng, part)
    if question is None:
        return []
    kind = f"memory.{fact.kind['id']}"
    if known:
        return [Turn(kind, fact.filled(question), fact.text("answer"), literal(fact.word))]
    answer = fact.filled(f"You have not told me {fact.kind['missing']} yet.")
    return [Turn(f"{kind}.untold", fact.filled(question), answer, ("not told",))]


def _ask_all(facts: list[Fact], rng: random.Random, part: Part) -> list[Turn]:
    question = draw(_M["know"], rng, part)
    if question is None:
        return []
    if not facts:
        return [Turn("memory.all.untold", question, _M["nothing"], ("nothing|not told",))]
    answer = " ".join(fact.text("answer") for fact in facts)
    return [Turn("memory.all", question, answer, literal(*(fact.word for fact in facts)))]


def _tell(facts: list[Fact], rng: random.Random, part: Part) -> list[Turn]:
    """A message with one fact or two."""
    wordings = [
        as_typed(fact.kind["typed"], rng, part) or draw(fact.kind["tell"], rng, part) for fact in facts
    ]
    if None in wordings:
        return []
    joint = rng.choice(_M["joined"])
    question = joint.join(fact.filled(str(wording)) for fact, wording in zip(facts, wordings, strict=True))
    return [_heard(question, facts, rng)]


def _tell_at_once(facts: list[Fact], tell: list[str], rng: random.Random, part: Part) -> list[Turn]:
    """I'm Ada, a nurse from Rome: a sentence with several facts."""
    wording = draw(tell, rng, part)
    if wording is None:
        return []
    slots = {fact.kind["id"]: fact.word for fact in facts}
    slots |= {f"a_{name}": article(word) for name, word in slots.items()}
    return [_heard(fill(wording, **slots), facts, rng)]


def _heard(question: str, facts: list[Fact], rng: random.Random) -> Turn:
    """The answer to one fact or several."""
    answer = facts[0].filled(rng.choice(facts[0].kind["got"]))
    if len(facts) > 1 and "in mind" not in answer:
        answer += " I will remember that."
    kind = f"memory.{facts[0].kind['id']}.tell"
    copied = tuple(fact.word for fact in facts)
    return Turn(kind, question, answer, literal(facts[0].word), copied)


def _corrected(fact: Fact, rng: random.Random, part: Part) -> tuple[Fact, list[Turn]]:
    """The fact with another word, and the message that says so."""
    other = _fact(rng, fact.kind, fact.owner)
    wording = draw(_M["correct"], rng, part)
    if wording is None or other.word.lower() == fact.word.lower():
        return fact, []
    answer = other.text("answer")
    turn = Turn(
        f"memory.{fact.kind['id']}.corrected",
        other.filled(wording, old=fact.word),
        f"I see, {answer[0].lower()}{answer[1:]}",
        literal(other.word),
        (other.word,),
    )
    return other, [turn]


def remembered(rng: random.Random, part: Part, between: Between) -> list[Turn]:
    """I have a dog called Rex; something else; what is my dog called? between: draws something else."""
    if rng.random() < 0.2:
        several = rng.choice(_M["several"])
        facts = [_fact(rng, next(kind for kind in _KINDS if kind["id"] == name)) for name in several["kinds"]]
        told = _tell_at_once(facts, several["tell"], rng, part)
        return told and told + _asked(facts, rng, part, between)
    facts = _facts(rng)
    roll = rng.random()
    if roll < 0.1:  # asked before it is said
        first = _ask(facts[0], rng, part, known=False) if rng.random() < 0.85 else _ask_all([], rng, part)
        if rng.random() < 0.5:
            return first
        facts = facts[:1]
    else:
        first = []
    turns = [*first]
    together = len(facts) == 2 and rng.random() < 0.55
    for group in [facts] if together else [[fact] for fact in facts]:
        turns += _tell(group, rng, part)
    if len(turns) == len(first):
        return []
    if rng.random() < 0.12:
        facts[-1], said = _corrected(facts[-1], rng, part)
        turns += said
    return turns + _asked(facts, rng, part, between)


def _asked(facts: list[Fact], rng: random.Random, part: Part, between: Between) -> list[Turn]:
    """What is asked after the facts were said, sometimes after something else."""
    turns: list[Turn] = []
    if rng.random() < 0.4:
        turns += between(rng, part)
    roll = rng.random()
    if roll < 0.08:
        return turns + _ask_all(facts, rng, part)
    if roll < 0.16:
        other = _fact(rng)
        if not any(_near(other, fact) for fact in facts):
            return turns + _ask(other, rng, part, known=False)
    asked = rng.sample(facts, min(len(facts), rng.choices((1, 2, 3), (55, 35, 10))[0]))
    if len(asked) == 2 and rng.random() < 0.15:
        both = [turn for fact in asked for turn in _ask(fact, rng, part)]
        if len(both) == 2:
            return [*turns, _joined(both)]
    for fact in asked:
        if fact.kind["id"] == "pet" and rng.random() < 0.2:
            fact = Fact(next(kind for kind in _KINDS if kind["id"] == "which_pet"), fact.owner)
        turns += _ask(fact, rng, part)
    return turns


def _joined(both: list[Turn]) -> Turn:
    """Two questions in one message."""
    first, second = both
    question = f"{first.question.rstrip('?')} and {second.question}"
    return Turn(first.kind, question, f"{first.answer} {second.answer}", first.keys + second.keys)
