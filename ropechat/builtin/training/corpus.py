"""The corpus: dialogues drawn from all sources by a seed.

`python -m ropechat.builtin.training.corpus` shows some.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ropechat.builtin.training import echo, languages, outside, program, sums, topics, world
from ropechat.builtin.training.dress import dressed
from ropechat.builtin.training.material import table
from ropechat.builtin.training.memory import remembered
from ropechat.builtin.training.patterns import Part, normal
from ropechat.builtin.training.stories import a_list, haiku, story, tale, themes
from ropechat.builtin.training.turns import Turn

Source = Callable[[random.Random, Part], list[Turn] | None]

SOURCES: dict[str, tuple[float, Source]] = {
    "smalltalk": (8, lambda rng, part: topics.topic("smalltalk", rng, part)),
    "program": (9, program.about),
    "ropechat": (13, lambda rng, part: topics.topic("ropechat", rng, part)),
    "facts": (4.5, lambda rng, part: topics.topic("facts", rng, part)),
    "concept": (13, topics.concept),
    "world": (9, world.fact),
    "capital_of": (0.5, world.reversed_capital),
    "sum": (11, sums.small_sum),
    "story": (1.5, story),
    "haiku": (1, haiku),
    "list": (2.3, a_list),
    "outside": (5, outside.unknown),
    "echo": (0.7, echo.said_back),
    "language": (1.8, languages.foreign),
    "memory": (12, lambda rng, part: remembered(rng, part, _something_else)),
}


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
        text = dressed(turn.question, rng, part)
        if all(word in text for word in turn.copied):
            return text


def _drawn(rng: random.Random, part: Part, names: list[str]) -> list[Turn]:
    """Turns of one of the sources with these names."""
    while True:
        _, source = SOURCES[rng.choices(names, [SOURCES[name][0] for name in names])[0]]
        if turns := source(rng, part):
            return turns


def _something_else(rng: random.Random, part: Part) -> list[Turn]:
    """What stands between a fact and the question about it."""
    return _drawn(rng, part, [name for name in SOURCES if name != "memory"])


def unit(rng: random.Random, part: Part) -> list[Turn]:
    """A question, with those that lean on it, as people type them."""
    turns = _drawn(rng, part, list(SOURCES))
    return [replace(turn, question=_typed(turn, rng, part)) for turn in turns]


def _plain(rng: random.Random, part: Part) -> str:
    """Text without a chat around it: a story, or a few sentences of the dictionary."""
    if rng.random() < 0.4:
        return tale(rng.choice(themes(part)), rng)
    known = [concept["what"] for concept in topics.CONCEPTS]
    known += [entry["answer"][0] for entry in topics.TOPICS["ropechat"] + topics.TOPICS["facts"]]
    known += [world.animal_sentence(row) for row in world.WORLD["animals"]]
    known += [fact.answer for name in ("capital", "thing_what", "opposite") for fact in world.facts(name)]
    return " ".join(rng.sample(known, rng.randint(1, 5)))


def dialogue(rng: random.Random, part: Part) -> Dialogue:
    """One chat of one to six units; one text in twenty is plain."""
    if rng.random() < 0.05:
        return Dialogue([], text=_plain(rng, part))
    units = rng.choices((1, 2, 3, 4, 5, 6), (58, 22, 10, 5, 3, 2))[0]
    turns = [turn for _ in range(units) for turn in unit(rng, part)]
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
