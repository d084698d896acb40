"""Questions that lean on the answer before and are answered by another topic; whole small dialogues.

Both stand in material/dialogues.toml.
"""

import functools
import random
import re
from typing import Any

from training import memory, topics
from training.material import article, capital, table
from training.patterns import Part, draw, every_wording, fill, normal
from training.turns import Turn, follow, main_words

_D: dict[str, Any] = table("dialogues")
_TO: dict[str, dict[str, list[str]]] = _D["to"]
CHATS: list[dict[str, Any]] = _D["chat"]
_LAUGHS = tuple(f"closed|{name}" for name in ("lol", "nice", "explain_joke", "dislike", "thanks"))
_MOST = 3  # questions in a row that lead from topic to topic


@functools.cache
def _known() -> dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Topics by id: the kind of their turns, their answers, their keys."""
    known = {
        entry["id"]: (f"{name}.{entry['id']}", tuple(entry["answer"]), tuple(entry["keys"]))
        for name, entries in topics.TOPICS.items()
        for entry in entries
    }
    for entry in topics.CONCEPTS:
        name = entry["names"][0]
        known[name] = (f"concept.{name}", (entry["what"],), tuple(entry["keys"]))
    return known


@functools.cache
def _after() -> dict[str, list[str]]:
    """Topics that can come next, by the topic before."""
    found: dict[str, list[str]] = {}
    for wanted, entry in _TO.items():
        for name in entry["after"]:
            found.setdefault(name, []).append(wanted)
    return found


@functools.cache
def meanings(name: str) -> dict[str, list[str]]:
    """The topics that a question (as `normal` writes it) asks for after the topic of this name."""
    found: dict[str, list[str]] = {}
    for wanted in _after().get(name, []):
        for question in {normal(text) for pattern in _TO[wanted]["ask"] for text in every_wording(pattern)}:
            found.setdefault(question, []).append(wanted)
    return found


def leads(turn: Turn, question: str) -> bool:
    """Whether a question after this turn is answered by another topic."""
    return normal(question) in meanings(_name(turn))


def _name(turn: Turn) -> str:
    """The topic that a turn is about."""
    return turn.kind.partition("|")[0].partition(".")[2].removesuffix(".another")


def next_topic(turns: list[Turn], rng: random.Random, part: Part) -> Turn | None:
    """A question that leans on the last turn; its answer is that of a topic that was not read before."""
    if rng.random() < 0.6 and (more := _another(turns, rng, part)):
        return more
    seen = {_name(turn) for turn in turns}
    names = [name for name in _after().get(_name(turns[-1]), []) if name not in seen]
    if not names:
        return None
    wanted = rng.choice(names)
    question = draw(_TO[wanted]["ask"], rng, part)
    kind, answers, keys = _known()[wanted]
    return (question and Turn(f"{kind}|then", question, rng.choice(answers), keys)) or None


def _another(turns: list[Turn], rng: random.Random, part: Part) -> Turn | None:
    """One more joke: also after a laugh about the last one."""
    laughed = len(turns) > 1 and turns[-1].kind in _LAUGHS
    last = turns[-2] if laughed else turns[-1]
    name = _name(last)
    if name not in topics.AGAIN:
        return None
    question = follow("another", rng, part)
    heard = {turn.answer for turn in turns}
    others = [answer for answer in _known()[name][1] if answer not in heard]
    kind = f"{last.kind.partition('|')[0].removesuffix('.another')}.another"
    return (question and others and Turn(kind, question, rng.choice(others), last.keys)) or None


def led(rng: random.Random, part: Part) -> list[Turn] | None:
    """How do I export a chat? In which format? And where does the file go?"""
    names = [name for name in _after() if not _known()[name][0].startswith("concept.")]
    first = rng.choices(names, [len(_after()[name]) ** 0.5 for name in names])[0]
    turns = topics.named(_known()[first][0].partition(".")[0], first, rng, part)
    while turns and len(turns) <= _MOST and (said := next_topic(turns, rng, part)):
        turns.append(said)
        if rng.random() < 0.45:
            break
    return turns if len(turns) > 1 else None


def chat(rng: random.Random, part: Part) -> list[Turn] | None:
    """A whole dialogue of the material, with words in its slots."""
    chosen = rng.choices(CHATS, [len(one["said"]) for one in CHATS])[0]
    slots = _slots(rng)
    said: list[Any] = chosen["said"]
    turns: list[Turn] = []
    for asks, answer in zip(said[::2], said[1::2], strict=True):
        wording = draw(asks, rng, part)
        if wording is None:
            return None
        if answer.startswith("="):
            kind, answers, keys = _known()[answer[1:]]
            turns.append(Turn(f"{kind}|chat", fill(wording, **slots), rng.choice(answers), keys))
            continue
        text = fill(answer, **slots)
        used = tuple(slots[name] for name in re.findall(r"\{(\w+)\}", wording))
        kind = chosen.get("kind", "closed")
        turns.append(Turn(f"{kind}|chat", fill(wording, **slots), text, main_words(text), used))
    return turns


def _slots(rng: random.Random) -> dict[str, str]:
    """Names and things for a dialogue; two of each kind that differ."""
    slots: dict[str, str] = {}
    for name, words in memory.SLOTS.items():
        first, second = rng.sample(words, 2)
        slots |= {name: first, f"{name}2": second}
    slots |= {f"a_{name}": article(word) for name, word in slots.items()}
    return slots | {capital(name): capital(word) for name, word in slots.items()}
