"""Small sums: up to a hundred, the table of ten, counting. Some pairs of numbers are held out."""

import random
from collections.abc import Callable

from ropechat.builtin.training.material import table
from ropechat.builtin.training.patterns import Part, draw, fill, part_of
from ropechat.builtin.training.turns import Turn, follow

_SUMS = table("sums")
_WORDS: list[str] = _SUMS["numbers"]
_TOPS = (10, 10, 20, 20, 20, 100, 100, 100)  # the largest number of a sum: small ones come often


def shown(number: int, rng: random.Random) -> str:
    """A number as people write it: in digits, or up to twenty in words."""
    return _WORDS[number] if number <= 20 and rng.random() < 0.25 else str(number)


def _key(number: int) -> str:
    word = f"|{_WORDS[number]}" if 0 <= number <= 20 else ""
    return rf"(?<!\d)(?:{number}{word})(?!\d)(?! [-+*/])"


def _pair(rng: random.Random, part: Part, sign: str) -> tuple[int, int] | None:
    """Two numbers whose sum belongs to the part."""
    for _ in range(60):
        if sign == "+":
            c = rng.randint(0, rng.choice(_TOPS))
            a = rng.randint(0, c)
            b = c - a
        elif sign == "-":
            a = rng.randint(0, rng.choice(_TOPS))
            b = rng.randint(0, a)
        else:
            a, b = rng.randint(0, 10), rng.randint(1, 10)
        if sign in "*/" or a + b < 12 or part_of(str(a), sign, str(b)) == part:
            return a, b
    return None


def worked(a: int, sign: str, b: int, c: int) -> str:
    """`23 + 48 = 63 + 8 = 71`: the tens first, as one does it in the head; easy sums in one go."""
    tens, ones = b - b % 10, b % 10
    between = "" if sign not in "+-" or not tens or not ones else f"{a + tens if sign == '+' else a - tens}"
    return f"{a} {sign} {b} = {between} {sign} {ones} = {c}" if between else f"{a} {sign} {b} = {c}"


def _sum(kind: str, rng: random.Random, part: Part) -> list[Turn] | None:
    """plus, minus, times, divided; now and then a second step from the result."""
    sign = {"plus": "+", "minus": "-", "times": "*", "divided": "/"}[kind]
    wording, pair = draw(_SUMS[kind], rng, part), _pair(rng, part, sign)
    if wording is None or pair is None:
        return None
    a, b = pair
    if sign == "/":
        a, c = a * b, a
    else:
        c = {"+": a + b, "-": a - b, "*": a * b}[sign]
    question = fill(wording, a=shown(a, rng), b=shown(b, rng))
    turns = [Turn(f"sum.{kind}", question, worked(a, sign, b, c) + ".", (_key(c),))]
    while len(turns) < 4 and rng.random() < 0.35:
        step = _step(c, rng, part)
        if step is None:
            break
        turns.append(step[0])
        c = step[1]
    return turns


def _step(c: int, rng: random.Random, part: Part) -> tuple[Turn, int] | None:
    """A sum that goes on from the last result."""
    name = rng.choices(("plus", "minus", "times", "divided", "double", "half"), (6, 5, 3, 1.5, 1, 1))[0]
    sign = {"plus": "+", "minus": "-", "times": "*", "divided": "/", "double": "*", "half": "/"}[name]
    b = 2 if name in ("double", "half") else rng.randint(1, rng.choice((10, 10, 20, 100)))
    if sign in "*/":
        b = min(b, 10)
    if not 0 <= c < 1000 or (sign == "*" and c > 100) or (sign == "-" and b > c) or (sign == "/" and c % b):
        return None
    result = {"+": c + b, "-": c - b, "*": c * b, "/": c // b}[sign]
    question = follow(f"then_{name}", rng, part, b=shown(b, rng))
    if question is None or result > 999:
        return None
    return Turn(f"sum.then_{name}", question, f"{worked(c, sign, b, result)}.", (_key(result),)), result


def _in_words(kind: str, rng: random.Random, part: Part) -> list[Turn] | None:
    """Apples that a person gets or loses."""
    sign = "+" if kind == "get" else "-"
    wording, pair = draw(_SUMS[kind], rng, part), _pair(rng, part, sign)
    if wording is None or pair is None or sum(pair) > 40:
        return None
    a, b = pair
    c = a + b if sign == "+" else a - b
    thing = rng.choice(_SUMS["things"])
    slots = {"a": shown(a, rng), "b": shown(b, rng), "thing": thing, "name": rng.choice(_SUMS["names"])}
    question = fill(wording, **slots)
    answer = f"{worked(a, sign, b, c)}, so the answer is {c} {thing}."
    return [Turn(f"sum.{kind}", question, answer, (_key(c),))]


def _row(first: int, last: int) -> str:
    step = 1 if first <= last else -1
    return ", ".join(map(str, range(first, last + step, step))) + "."


def _compare(a: int, b: int) -> tuple[str, int]:
    if a == b:
        return f"Neither: {a} and {b} are equal.", a
    return f"{max(a, b)} is larger than {min(a, b)}.", max(a, b)


def _other(kind: str, rng: random.Random, part: Part) -> list[Turn] | None:
    """Counting, neighbours, doubles, halves, even and odd."""
    wording = draw(_SUMS[kind], rng, part)
    if wording is None:
        return None
    a, b = rng.randint(1, 100), rng.randint(1, 100)
    if kind == "bigger":
        answer, key = _compare(a, b)
    elif kind in ("after", "before"):
        key = a + 1 if kind == "after" else a - 1
        answer = f"{key} comes {kind} {a}."
    elif kind in ("count", "count_down"):
        a = rng.randint(3, 20)
        answer, key = (_row(1, a), a) if kind == "count" else (_row(a, 0), 0)
    elif kind == "count_from":
        a, b = rng.randint(1, 30), rng.randint(3, 12)
        b += a
        answer, key = _row(a, b), b
    elif kind == "double":
        a = rng.randint(1, 50)
        answer, key = f"Double {a} is {2 * a}.", 2 * a
    elif kind == "half":
        key = rng.randint(1, 50)
        a = 2 * key
        answer = f"Half of {a} is {key}."
    else:
        answer = f"{a} is {'odd' if a % 2 else 'even'}."
        keys = (r"\bodd\b" if a % 2 else r"\beven\b",)
        return [Turn("sum.even", fill(wording, a=shown(a, rng)), answer, keys)]
    return [Turn(f"sum.{kind}", fill(wording, a=shown(a, rng), b=shown(b, rng)), answer, (_key(key),))]


_KINDS: dict[str, tuple[float, Callable[[str, random.Random, Part], list[Turn] | None]]] = {
    "plus": (8, _sum),
    "minus": (6, _sum),
    "times": (3.5, _sum),
    "divided": (1.5, _sum),
    "get": (1.5, _in_words),
    "lose": (1.5, _in_words),
    "bigger": (1.8, _other),
    "after": (1.5, _other),
    "before": (1.5, _other),
    "count": (0.7, _other),
    "count_from": (0.5, _other),
    "count_down": (0.5, _other),
    "double": (1.1, _other),
    "half": (1.1, _other),
    "even": (0.7, _other),
}


def small_sum(rng: random.Random, part: Part) -> list[Turn] | None:
    """Any of these."""
    kind = rng.choices(list(_KINDS), [weight for weight, _ in _KINDS.values()])[0]
    return _KINDS[kind][1](kind, rng, part)


def big_question(rng: random.Random, part: Part) -> str | None:
    """A sum that is too big for the model."""
    kind = rng.choice(("plus", "minus", "times", "divided"))
    wording = draw(_SUMS[kind], rng, part)
    if wording is None:
        return None
    top = rng.choice((1000, 1000, 10_000, 1_000_000))
    a = rng.randint(101, top)
    b = rng.randint(2 if kind == "divided" else 101, top)
    if kind == "times":
        b = rng.randint(11, 1000)
    return fill(wording, a=str(a), b=str(b))
