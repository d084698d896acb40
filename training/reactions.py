"""What people say to an answer: again, shorter, why, are you sure, thanks; and what was said before.

The wordings and the answers stand in material/reactions.toml. The slots of an answer are made from the turns
before; where one of them is unknown, the next text of the list is tried.
"""

import re
from typing import TYPE_CHECKING, Any

from training import commands, topics, world
from training.material import capital, table
from training.patterns import Part, as_typed, draw, fill
from training.program import fill_names
from training.turns import Turn, main_words

if TYPE_CHECKING:
    import random

REACTIONS: list[dict[str, Any]] = table("reactions")["reaction"]
_OTHER_TOPICS = ("smalltalk", "facts")  # all other files of topics are about the program
_PROGRAM = {
    "program",
    "bigger",
    *(name for name in topics.TOPICS if name not in _OTHER_TOPICS),
}
_ENTRIES = {f"{name}.{entry['id']}": entry for name, entries in topics.TOPICS.items() for entry in entries}
_ENTRIES |= {f"concept.{entry['names'][0]}": entry for entry in topics.CONCEPTS}
_ENTRIES |= {f"commands.{name}": commands.in_short(name) for name in commands.commands()}
_TOPIC_ANSWERS = {
    name.partition(".")[2]: entry["answer"][0] for name, entry in _ENTRIES.items() if "answer" in entry
}
_NTH = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh"]
_MAX_QUOTED, _MAX_REPEATED = 16, 45  # words of a question that is quoted, of an answer that is said again
_KEY = re.compile(r"\b(?:Ctrl\+\w|F\d+|Esc|Page Up|Tab)\b")
_HERO = re.compile(r"(?:small|lived an?|was an?) ([\w ]+?) (?:called|by the name of) (\w+)[.,]")


def kind_of(turn: Turn) -> str:
    """The kind of an answer, as reactions.toml names it."""
    first, *rest = turn.kind.partition("|")[0].split(".")
    if first == "memory":
        return "told" if rest[-1] in ("tell", "corrected") else "untold" if rest[-1] == "untold" else first
    return "program" if first in _PROGRAM else first


def _steps(answer: str) -> dict[str, str]:
    """The equation of a sum, and its steps."""
    found = re.match(r"(-?\d+ [-+*/] \d+) = ([-+*/\d =]*?)(-?\d+)[.,]", answer)
    if found is None:
        return {}
    slots = {"sum": f"{found[1]} = {found[3]}"}
    between = [term for term in found[2].split(" = ") if term]
    if "*" in found[1] and len(between) == 2:
        products = re.split(r" \+ ", between[0])
        values = between[1].split(" + ")
        made = [f"{product} = {value}" for product, value in zip(products, values, strict=True)]
        slots["steps"] = ", ".join([*made, f"{between[1]} = {found[3]}"])
    elif between and "*" not in found[1]:
        made, left, sign = [], int(found[1].split()[0]), found[1].split()[1]
        for term in between:
            value = int(term.split()[0])
            made.append(f"{left} {sign} {abs(value - left)} = {value}")
            left = value
        slots["steps"] = ", ".join([*made, f"{between[-1]} = {found[3]}"])
    return slots


def _items(answer: str, rng: "random.Random") -> dict[str, str]:
    """The items of a list that begins with 1."""
    items = re.findall(r"(?m)^(\d+)\. (.+)$", answer)
    if not items or items[0][0] != "1" or len(items) > len(_NTH):
        return {}
    at = rng.randrange(len(items))
    slots = {"n": str(at + 1), "nth": _NTH[at], "item": items[at][1]}
    return slots | {"item1": items[0][1], "count": str(len(items))}


def _hero(answer: str) -> dict[str, str]:
    """Who a story is about."""
    found = _HERO.search(answer)
    return {"theme": found[1], "Theme": capital(found[1]), "name": found[2]} if found else {}


def _about(turn: Turn) -> dict[str, str]:
    """More about the animal of an answer."""
    if not turn.kind.startswith("world.animal"):
        return {}
    for row in world.WORLD["animals"]:
        if re.search(rf"\b{row[0]}\b", turn.answer.lower()):
            return {"about": world.animal_sentence(row)}
    return {}


def _slots(turns: list[Turn], rng: "random.Random") -> dict[str, str]:
    """What reactions to the last turn can speak about."""
    last = turns[-1]
    entry = _ENTRIES.get(last.kind.partition("|")[0], {})
    slots = {name: text for name, text in entry.items() if isinstance(text, str)}
    slots |= (
        _wrong(last, rng) | _steps(last.answer) | _items(last.answer, rng) | _hero(last.answer) | _about(last)
    )
    if len(last.answer.split()) <= _MAX_REPEATED:
        slots["answer"] = last.answer
    if "\n" not in last.answer:
        slots["first"] = re.split(r"(?<=[.!?]) ", last.answer)[0]
    if found := _KEY.search(last.answer):
        slots["pressed"] = found[0]
    elif found := re.search(r"(?<![\w/.])/[a-z]+\b", last.answer):
        slots["slash"] = found[0]
    for name, at in (("question", len(turns) - 1), ("began", 0), ("second", 1)):
        words = turns[min(at, len(turns) - 1)].question
        if len(words.split()) <= _MAX_QUOTED and not (name != "question" and len(turns) < at + 2):
            slots[name] = words
    if asked := [turn.question for turn in turns[1:] if _is_own(turn)]:
        slots["asked"] = asked[-1]
    return slots


def _is_own(turn: Turn) -> bool:
    """Whether a turn has a subject of its own, and is no reaction."""
    return "|" not in turn.kind or turn.kind.endswith("|then")


def _wrong(turn: Turn, rng: "random.Random") -> dict[str, str]:
    """What somebody could think instead of the answer."""
    kind = turn.kind.removesuffix(".follow").partition("|")[0]
    if sum_ := re.search(r"= (\d+)\.$", turn.answer):
        return {"wrong": str(int(sum_[1]) + rng.choice((1, 2, 3, 4, 5, 10, 100)))}
    if kind not in (
        "world.capital",
        "world.animal_baby",
        "world.opposite",
        "world.continent",
        "world.author",
    ):
        return {}
    other = rng.choice(world.facts(kind.removeprefix("world.")))
    word = other.keys[-1].replace("\\b", "").replace("\\", "")
    return {} if other.answer == turn.answer else {"wrong": word}


def _answer(reaction: dict[str, Any], turns: list[Turn], slots: dict[str, str]) -> str | None:
    """The first text that can be filled and says something new."""
    kind = kind_of(turns[-1])
    own = turns[-1].kind.partition(".")[0]
    name = own if kind == "program" and own in reaction["answer"] else kind
    texts: list[str] = reaction["answer"].get(name, [])
    if kind != "closed" or reaction.get("always"):
        texts = texts + reaction["answer"].get("other", [])
    for text in texts:
        if text.startswith("="):
            return str(_TOPIC_ANSWERS[text[1:]])
        needed = re.findall(r"\{(\w+)\}", text)
        if not all(name in slots for name in needed):
            continue
        answer = fill_names(fill(text, **slots))
        is_field = re.fullmatch(r"\{\w+\}", text) and text != "{answer}"
        if not is_field or all(answer != turn.answer for turn in turns):
            return answer
    return None


def reaction(turns: list[Turn], rng: "random.Random", part: Part) -> Turn | None:
    """A message that leans on the turns before."""
    slots = _slots(turns, rng)
    last = turns[-1]
    fitting = [
        (one, answer)
        for one in REACTIONS
        if ("after" not in one or re.search(one["after"], f"{last.kind}: {last.answer}"))
        and not last.kind.endswith(f"|{one['id']}")
        and (_is_own(last) or not one.get("direct"))
        and (answer := _answer(one, turns, slots)) is not None
    ]
    if not fitting:
        return None
    chosen, answer = rng.choices(fitting, [one["weight"] for one, _ in fitting])[0]
    wording = as_typed(chosen.get("typed", []), rng, part) or draw(chosen["ask"], rng, part)
    if wording is None or not all(name in slots for name in re.findall(r"\{(\w+)\}", wording)):
        return None
    base = "closed" if chosen.get("closes") else last.kind.partition("|")[0]
    return Turn(f"{base}|{chosen['id']}", fill(wording, **slots), answer, main_words(answer))
