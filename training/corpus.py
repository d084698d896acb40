"""The corpus: dialogues drawn from all sources by a seed.

`python -m training.corpus` shows some.
"""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from training import (
    command_line,
    echo,
    languages,
    leaning,
    logic,
    outside,
    program,
    sums,
    topics,
    world,
)
from training.dress import dressed
from training.material import table
from training.memory import remembered
from training.patterns import Part, normal
from training.reactions import kind_of, reaction
from training.stories import a_list, haiku, story, tale, themes
from training.turns import FOLLOW, Turn

Source = Callable[[random.Random, Part], list[Turn] | None]

SOURCES: dict[str, tuple[float, Source]] = {
    "program": (9, program.about),
    "keys": (13, lambda rng, part: topics.topic("keys", rng, part)),
    "commands": (13, lambda rng, part: topics.topic("commands", rng, part)),
    "command_line": (4.5, command_line.question),
    "led": (9, leaning.led),
    "chat": (5, leaning.chat),
    "concept": (8, topics.concept),
    "smalltalk": (14, lambda rng, part: topics.topic("smalltalk", rng, part)),
    "facts": (11, lambda rng, part: topics.topic("facts", rng, part)),
    "world": (9, world.fact),
    "capital_of": (0.5, world.reversed_capital),
    "sum": (14, sums.small_sum),
    "logic": (2, logic.puzzle),
    "story": (1.5, story),
    "haiku": (1, haiku),
    "list": (2.5, a_list),
    "outside": (8, outside.unknown),
    "echo": (0.7, echo.said_back),
    "language": (3, languages.foreign),
    "memory": (16, lambda rng, part: remembered(rng, part, _something_else)),
}


_UNITS = (56, 28, 12, 4)  # how often a chat has one to four
_REACTS = {  # the share of answers that people react to, by topic or by the kind of the answer
    **{"story": 0.6, "list": 0.6, "haiku": 0.5, "concept": 0.45, "program": 0.5, "closed": 0.15},
    **{"sum": 0.25, "told": 0.1, "memory": 0.25},
    **{f"smalltalk.{name}": 0.6 for name in ("sad", "insult", "joke", "how_are_you")},
}
_REACTS_ELSE = 0.38
_LEADS = 0.4  # the share of them that another topic answers, where there is one
_FIRST_ONLY = {
    "smalltalk.repeat_unclear",
    "smalltalk.yes_no",
    "smalltalk.laugh",
}  # reactions are better later
_OF_MODEL = ("name", "name", "age", "where", "fav_colour", "fav_animal", "fav_food")  # topics
_HEARD = Turn("memory.fact.tell", "", "I will remember that.", ())  # what a reaction to a fact leans on
_GREETS = 0.1  # the share of chats that begin with a greeting


@dataclass(frozen=True)
class Dialogue:
    """Turns of one chat, or a plain text when there are no turns."""

    turns: list[Turn]
    system: str | None = None
    text: str = ""


def _typed(turn: Turn, rng: random.Random, part: Part) -> str:
    """The question as a user may type it; what the answer copies stays unchanged."""
    if turn.copied == (turn.question,):
        return turn.question
    while True:
        text = dressed(turn.question, rng, part, alone="|" in turn.kind)
        if all(word in text for word in turn.copied):
            return text


def _drawn(rng: random.Random, part: Part, names: list[str]) -> list[Turn]:
    """Turns of one of the sources with these names."""
    while True:
        _, source = SOURCES[rng.choices(names, [SOURCES[name][0] for name in names])[0]]
        if turns := source(rng, part):
            return turns


def _something_else(rng: random.Random, part: Part) -> list[Turn]:
    """What stands between a fact and the question about it: a short word, the same of the model, or any."""
    if rng.random() < 0.35 and (said := reaction([_HEARD], rng, part)) and said.kind != "closed|bye":
        return [said]
    if rng.random() < 0.12 and (same := topics.named("smalltalk", rng.choice(_OF_MODEL), rng, part)):
        return same
    return _later(rng, part, [name for name in SOURCES if name != "memory"])


def _later(rng: random.Random, part: Part, names: list[str]) -> list[Turn]:
    """Turns that can stand after others: without those that would lean on them."""
    while (turns := _drawn(rng, part, names))[0].kind in _FIRST_ONLY:
        pass
    return turns


def unit(rng: random.Random, part: Part, before: Sequence[Turn] = ()) -> list[Turn]:
    """A question, with those that lean on it and on the turns before, as people type them."""
    turns = (_later if before else _drawn)(rng, part, list(SOURCES))
    if before and before[-1].kind == "closed|dislike" and not turns[0].copied and rng.random() < 0.6:
        turns[0] = replace(turns[0], question=f"{rng.choice(FOLLOW['asked_again'])} {turns[0].question}")
    turns = [replace(turn, question=_typed(turn, rng, part)) for turn in turns]
    while rng.random() < _reacts(turns[-1]) and (said := _said_to([*before, *turns], rng, part)):
        turns.append(replace(said, question=_typed(said, rng, part)))
        if said.kind == "closed|bye":
            break
    return turns


def _said_to(turns: list[Turn], rng: random.Random, part: Part) -> Turn | None:
    """What a person types who has just read the last answer."""
    if rng.random() < _LEADS and (led := leaning.next_topic(turns, rng, part)):
        return led
    said = reaction(turns, rng, part)
    return None if said and leaning.leads(turns[-1], said.question) else said


def _reacts(turn: Turn) -> float:
    return _REACTS.get(turn.kind, _REACTS.get(kind_of(turn), _REACTS_ELSE))


def _greeting(rng: random.Random, part: Part) -> list[Turn]:
    """Hello; how are you? fine, thanks."""
    turns = topics.named("smalltalk", "hello", rng, part)
    if rng.random() < 0.4:
        turns += topics.named("smalltalk", "how_are_you", rng, part)
    if turns and rng.random() < 0.4 and (said := reaction(turns, rng, part)) and said.kind != "closed|bye":
        turns.append(said)
    return [replace(turn, question=_typed(turn, rng, part)) for turn in turns]


def _plain(rng: random.Random, part: Part) -> str:
    """Text without a chat around it: a story, worked sums, or a few sentences of the dictionary."""
    kind = rng.random()
    if kind < 0.3:
        return tale(rng.choice(themes(part)), rng)
    if kind < 0.6:
        return sums.practice(rng, part)
    known = [concept["what"] for concept in topics.CONCEPTS]
    known += [entry["answer"][0] for name in ("keys", "commands", "facts") for entry in topics.TOPICS[name]]
    known += [world.animal_sentence(row) for row in world.WORLD["animals"]]
    known += [fact.answer for name in ("capital", "thing_what", "opposite") for fact in world.facts(name)]
    return " ".join(rng.sample(known, rng.randint(1, 5)))


def dialogue(rng: random.Random, part: Part) -> Dialogue:
    """One chat of one to four units; one text in twenty is plain."""
    if rng.random() < 0.05:
        return Dialogue([], text=_plain(rng, part))
    turns = _greeting(rng, part) if rng.random() < _GREETS else []
    for _ in range(rng.choices((1, 2, 3, 4), _UNITS)[0]):
        turns += unit(rng, part, turns)
        if turns[-1].kind == "closed|bye":
            break
    system = rng.choice(table("frames")["system"]) if rng.random() < 0.04 else None
    return Dialogue(turns, system)


def dialogues(seed: int, part: Part, banned: frozenset[str] = frozenset()) -> Iterator[Dialogue]:
    """Dialogues without end. banned: questions and pairs of questions, normal, that must not occur."""
    number = 0
    while True:
        made = dialogue(random.Random(f"{seed}/{part}/{number}"), part)
        number += 1
        asked = [normal(turn.question) for turn in made.turns]
        pairs = (f"{first}\n{second}" for first, second in itertools.pairwise(asked))
        if banned.isdisjoint(asked) and banned.isdisjoint(pairs):
            yield made


def main() -> None:
    """Show thirty dialogues of each part."""
    for part in ("train", "test"):
        chats = dialogues(1, part)
        for _ in range(30):
            chat = next(chats)
            print(f"--- {part}", chat.system or "")
            print(chat.text, end="\n" if chat.text else "")
            for turn in chat.turns:
                print(f"  {turn.kind}\n  > {turn.question}\n  < {turn.answer!r}  {turn.keys}")


if __name__ == "__main__":
    main()
