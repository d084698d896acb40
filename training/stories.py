"""Short stories on a theme, haiku, lists: answers that are made, not looked up."""

import random
import re
from typing import Any

from training.material import article, capital, table
from training.patterns import Part, draw, fill, part_of
from training.turns import Turn, follow, literal

_S: dict[str, Any] = table("stories")
_IDEAS = {name: entry["items"] for entry in table("lists")["ideas"] for name in entry["names"]}
_LISTS: dict[str, list[str]] = table("world")["lists"] | _IDEAS
_PLURALS: dict[str, str] = {row[0]: row[1] for row in table("world")["animals"]} | dict(
    table("world")["pairs"]["plural"]
)
_KINDS = sorted(_LISTS)
_ASK_LIST: list[str] = table("lists")["ask"]
_ASK_SOME: list[str] = table("lists")["ask_some"]
_NUMBER = ["", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
_EXTRA = [row[0] for row in table("world")["things"] if row[1]] + [
    row[0] for row in table("world")["animals"]
]


def _plural(theme: str) -> str:
    """Several of a theme, as people type it."""
    return _PLURALS.get(theme, f"{theme}es" if theme.endswith(("s", "x", "ch", "sh")) else f"{theme}s")


def themes(part: Part) -> list[str]:
    """Themes of stories; some are held out."""
    return [theme for theme in dict.fromkeys(_S["themes"] + _EXTRA) if part_of("story", theme) == part]


_THEMES: dict[Part, list[str]] = {part: themes(part) for part in ("train", "dev", "test")}


def tale(theme: str, rng: random.Random) -> str:
    """A short story about a theme."""
    place = rng.choice(_S["places"])
    slots = {
        "x": theme,
        "name": rng.choice(_S["names"]),
        "place": place,
        "Place": capital(place),
        "helper": rng.choice([helper for helper in _S["helpers"] if helper != theme]),
        "thing": rng.choice(_S["objects"]),
        "food": rng.choice(_S["foods"]),
    }
    pieces = [rng.choice(_S["openings"]), *rng.choice(_S["problems"]), rng.choice(_S["endings"])]
    text = " ".join(fill(piece, **slots) for piece in pieces)
    return re.sub(rf"\b([Aa]) (?={theme[0]})", r"\1n ", text) if theme[0] in "aeiou" else text


def story(rng: random.Random, part: Part) -> list[Turn] | None:
    """Tell me a story about a fox; another one; now about an owl."""
    named = rng.random() < 0.8
    theme = rng.choice(_THEMES[part])
    wording = draw(_S["ask_story" if named else "ask_any_story"], rng, part)
    if wording is None:
        return None
    keys = literal(theme) if named else (r"\b(once|there)\b",)
    question = fill(wording, x=theme, xs=_plural(theme), ax=article(theme))
    turns = [Turn("story", question, tale(theme, rng), keys)]
    if rng.random() < 0.3:
        other = rng.choice(_THEMES[part])
        again = rng.random() < 0.4
        second = follow("another" if again else "about", rng, part, ax=article(other))
        if second is not None:
            seen = (r"\b(once|there)\b",) if again else literal(other)
            turns.append(Turn("story.then", second, tale(other, rng), seen))
    return turns


def _poem(theme: str | None, rng: random.Random) -> str:
    poems: dict[str, str] = _S["haiku"]
    if theme is None:
        return rng.choice(sorted(poems.values()))
    if theme in poems:
        return poems[theme]
    text = fill(rng.choice(_S["generic_haiku"]), x=theme)
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text) if theme[0] in "aeiou" else text


def haiku(rng: random.Random, part: Part) -> list[Turn] | None:
    """A haiku about rain; another one."""
    named = rng.random() < 0.8
    known = rng.random() < 0.7
    theme = rng.choice(sorted(_S["haiku"]) if known else _THEMES[part]) if named else None
    wording = draw(_S["ask_haiku" if named else "ask_any_haiku"], rng, part)
    if wording is None:
        return None
    answer = _poem(theme, rng)
    keys = [r"\n[^\n]+\n"]
    if theme is not None and theme in _S["haiku"]:
        keys += literal(answer.split("\n")[0].rstrip(".,:?"))
    elif theme is not None:
        keys += literal(theme)
    turns = [Turn("haiku", fill(wording, x=theme or "", xs=_plural(theme or "")), answer, tuple(keys))]
    if rng.random() < 0.25:
        second = follow("another", rng, part)
        others = sorted(text for text in _S["haiku"].values() if text != answer)
        if second is not None:
            turns.append(Turn("haiku.another", second, rng.choice(others), (r"\n[^\n]+\n",)))
    return turns


def _numbered(items: list[str], first: int = 1) -> str:
    return "\n".join(f"{at}. {item}" for at, item in enumerate(items, first))


def _keys(items: list[str], first: int = 1) -> tuple[str, ...]:
    """Each number with an item, none after the last; at least the first item must be one of the kind."""
    lines = [rf"(?m)^{at}\. \w" for at in range(first, first + len(items))]
    return (*lines, rf"(?s)^(?!.*\n{first + len(items)}\. )", rf"(?:{'|'.join(map(re.escape, items))})")


def _taken(kind: str, count: int, rng: random.Random) -> tuple[list[str], list[str]]:
    """The items of a list, and those that are left."""
    items = _LISTS[kind]
    start = 0 if rng.random() < 0.6 else rng.randrange(len(items))
    turned = items[start:] + items[:start]
    return turned[:count], turned[count:]


def a_list(rng: random.Random, part: Part) -> list[Turn] | None:
    """Name three fruits; two more; and vegetables."""
    kind = rng.choice(_KINDS)
    counted = rng.random() < 0.7
    most = min(len(_NUMBER) - 1, len(_LISTS[kind]))
    count = min(rng.choice((3, 3, 5, rng.randint(2, most))), most) if counted else min(4, most)
    wording = draw(_ASK_LIST if counted else _ASK_SOME, rng, part)
    if wording is None:
        return None
    number = _NUMBER[count] if rng.random() < 0.5 else str(count)
    items, rest = _taken(kind, count, rng)
    turns = [Turn("list", fill(wording, x=kind, n=number), _numbered(items), _keys(items))]
    if rng.random() < 0.35:
        second = _more_of(count, rest, rng, part) if rng.random() < 0.4 else _list_of(count, rng, part)
        turns += [second] if second else []
    return turns


def _more_of(count: int, rest: list[str], rng: random.Random, part: Part) -> Turn | None:
    number = rng.choice((1, 2))
    question = follow("list_one" if number == 1 else "list_more", rng, part) if len(rest) >= 2 else None
    if question is None:
        return None
    added = rest[:number]
    return Turn("list.more", question, _numbered(added, count + 1), _keys(added, count + 1))


def _list_of(count: int, rng: random.Random, part: Part) -> Turn | None:
    kind = rng.choice([name for name in _KINDS if len(_LISTS[name]) >= count])
    question = follow("list_other", rng, part, x=kind)
    items, _ = _taken(kind, count, rng)
    return (question and Turn("list.other", question, _numbered(items), _keys(items))) or None
