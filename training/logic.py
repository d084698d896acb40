"""Small puzzles: what follows, who is the tallest, the next number, the odd one out."""

import random

from training.material import article, capital, table
from training.patterns import Part, draw, fill
from training.turns import Turn, literal

_LOGIC = table("logic")
_NAMES: list[str] = table("sums")["names"]
_KINDS = {"all": 2.0, "most": 2.0, "two": 1.0, "next": 3.0, "odd_one": 2.0}


def _all(rng: random.Random) -> tuple[dict[str, str], str, str]:
    """Slots of the question, the answer, its key word."""
    x, xs, y, ys = rng.choice(_LOGIC["kinds"])
    a = rng.choice([*_NAMES, "Socrates", "Rex"])
    answer = f"{a} is {article(y)}, because all {xs} are {ys}."
    return {"a": a, "x": x, "xs": xs, "y": y, "ys": ys}, answer, a


def _most(rng: random.Random) -> tuple[dict[str, str], str, str]:
    a, b, c = rng.sample(_NAMES, 3)
    more, most, _, least = rng.choice(_LOGIC["degrees"])
    wanted, who = rng.choice(((most, a), (least, c)))
    return {"a": a, "b": b, "c": c, "more": more, "most": wanted}, f"{who} is the {wanted}.", who


def _two(rng: random.Random) -> tuple[dict[str, str], str, str]:
    a, b = rng.sample(_NAMES, 2)
    more, _, less, _ = rng.choice(_LOGIC["degrees"])
    if rng.random() < 0.5:
        more, less = less, more
    other, who = rng.choice(((less, b), (less, b), (more, a)))
    return {"a": a, "b": b, "more": more, "other": other}, f"{who} is {other}.", who


def _next(rng: random.Random) -> tuple[dict[str, str], str, str]:
    if rng.random() < 0.2:
        first = rng.choice((1, 2, 3, 5))
        row = [first * 2**at for at in range(5)]
        rule = "Each number is doubled"
    else:
        step = rng.choice((1, 2, 2, 3, 4, 5, 5, 10, 10))
        first = rng.choice((1, 2, 3, 5, step, step, rng.randint(1, 30)))
        row = [first + step * at for at in range(5)]
        if rng.random() < 0.2:
            row = row[::-1]
        rule = f"{step} is {'added' if row[0] < row[1] else 'taken away'} each time"
    shown, last = row[:-1], row[-1]
    return {"row": ", ".join(map(str, shown))}, f"{rule}: {last} comes next.", str(last)


def _odd_one(rng: random.Random) -> tuple[dict[str, str], str, str]:
    names = list(_LOGIC["groups"])
    group, other = rng.sample(names, 2)
    odd = rng.choice(_LOGIC["groups"][other])
    row = [*rng.sample(_LOGIC["groups"][group], 3), odd]
    rng.shuffle(row)
    return {"row": ", ".join(row)}, f"{capital(odd)} does not belong: the others are {group}.", odd


_MADE = {"all": _all, "most": _most, "two": _two, "next": _next, "odd_one": _odd_one}


def puzzle(rng: random.Random, part: Part) -> list[Turn] | None:
    """One of these, with what the answer copies."""
    kind = rng.choices(list(_KINDS), list(_KINDS.values()))[0]
    wording = draw(_LOGIC[kind], rng, part)
    if wording is None:
        return None
    slots, answer, key = _MADE[kind](rng)
    return [Turn(f"logic.{kind}", fill(wording, **slots), answer, literal(key))]
