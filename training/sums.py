"""Sums of numbers up to 999, the table of twenty, counting. Some pairs of sums and differences are held out.

Long sums are worked in steps that are easy each: the hundreds, the tens, the ones.
"""

import random
import re
from collections.abc import Callable

from training.material import table
from training.patterns import Part, draw, fill, part_of
from training.turns import Turn, follow

_SUMS = table("sums")
_WORDS: list[str] = _SUMS["numbers"]
_TENS: list[str] = _SUMS["tens"]
_SIZES: list[tuple[tuple[int, int], tuple[int, int]]] = [  # of the two numbers of a sum or a difference
    ((0, 20), (0, 20)),
    ((10, 99), (10, 99)),
    ((10, 99), (0, 9)),
    ((100, 999), (0, 99)),
    ((100, 999), (100, 999)),
]
_OFTEN = (24, 46, 12, 8, 10)  # how often two numbers have these sizes
_TABLE = 20  # the table of products goes up to this factor
_PRIMES = [n for n in range(2, 100) if all(n % d for d in range(2, n))]


def in_words(number: int) -> str:
    """A number below a hundred in words: forty-two."""
    tens, ones = divmod(number, 10)
    if number <= 20:
        return _WORDS[number]
    return f"{_TENS[tens]}-{_WORDS[ones]}" if ones else _TENS[tens]


def shown(number: int, rng: random.Random) -> str:
    """A number as people write it: in digits, or below a hundred in words."""
    if not 0 <= number < 100 or rng.random() > (0.25 if number <= 20 else 0.08):
        return str(number)
    word = in_words(number)
    return word if rng.random() < 0.6 else word.replace("-", " ")


def _key(number: int) -> str:
    word = f"|{_WORDS[number]}" if 0 <= number <= 20 else ""
    return rf"(?<![\d.])(?:{number}{word})(?!\d)(?! [-+*/])"


def _pair(rng: random.Random, part: Part, sign: str) -> tuple[int, int] | None:
    """Two numbers whose sum belongs to the part."""
    for _ in range(60):
        if sign in "+-":
            a, b = (rng.randint(*size) for size in rng.choices(_SIZES, _OFTEN)[0])
            if sign == "-":
                a, b = max(a, b), min(a, b)
            if (a <= 20 and rng.random() < 0.15) or (sign == "+" and rng.random() < 0.5):
                a, b = b, a  # the larger number may come second, and a difference be below zero
        elif sign == "*" and rng.random() < 0.25:
            a, b = rng.sample([rng.randint(2, 9), rng.randint(21, 99)], 2)
        else:
            low, high = rng.choice(((0, 10), (0, _TABLE), (2, _TABLE), (11, _TABLE)))
            a, b = rng.randint(low, high), rng.randint(max(low, 1), high)
        if sign in "*/" or a + b < 12 or part_of(str(a), sign, str(b)) == part:
            return a, b
    return None


def _leading(number: int) -> int:
    """The largest part that stands for one digit: 300 of 345, 40 of 45, 5 of 5."""
    unit = int(10 ** (len(str(number)) - 1))
    return number - number % unit


def _product(a: int, b: int) -> str:
    """`12 * 13 = 12 * 10 + 12 * 3 = 120 + 36 = 156`: the second factor of two digits in its parts."""
    if max(a, b) <= 10 or not a % 10 or not b % 10:
        return f"{a} * {b} = {a * b}"
    if b > 10:
        first, rest = _leading(b), b - _leading(b)
        return f"{a} * {b} = {a} * {first} + {a} * {rest} = {a * first} + {a * rest} = {a * b}"
    first, rest = _leading(a), a - _leading(a)
    return f"{a} * {b} = {first} * {b} + {rest} * {b} = {first * b} + {rest * b} = {a * b}"


def worked(a: int, sign: str, b: int, c: int) -> str:
    """`23 + 48 = 63 + 8 = 71`: the large parts first, as one does it in the head; easy sums in one go."""
    if sign == "*":
        return _product(a, b)
    steps = [f"{a} {sign} {b}"]
    while sign in "+-" and c >= 0 and (part := _leading(b)) != b:
        a, b = a + part if sign == "+" else a - part, b - part
        steps.append(f"{a} {sign} {b}")
    return " = ".join([*steps, str(c)])


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
    if sign in "+-" and rng.random() < 0.3 and (another := _sum(kind, rng, part)):
        return [*turns, *another[:3]]
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
    if question is None or result > 1998:
        return None
    return Turn(f"sum.then_{name}", question, f"{worked(c, sign, b, result)}.", (_key(result),)), result


def _in_words(kind: str, rng: random.Random, part: Part) -> list[Turn] | None:
    """Apples that a person gets, loses or shares; prices; ages."""
    sign, counts = _PROBLEMS[kind]
    wording = draw(_SUMS[kind], rng, part)
    top = 12 if sign in "*/" else rng.choice((10, 20, 99))
    a, b = rng.randint(2, top), rng.randint(2, min(top, 50))
    if sign == "-":
        a, b = max(a, b), min(a, b)
    if wording is None or (sign in "+-" and a + b >= 12 and part_of(str(a), sign, str(b)) != part):
        return None
    a, c = {"+": (a, a + b), "-": (a, a - b), "*": (a, a * b), "/": (a * b, a)}[sign]
    thing = rng.choice(_SUMS["things"])
    slots = {"a": shown(a, rng), "b": shown(b, rng), "thing": thing, "name": rng.choice(_SUMS["names"])}
    answer = f"{worked(a, sign, b, c)}, so the answer is {c}{f' {thing}' if counts else ''}."
    return [Turn(f"sum.{kind}", fill(wording, **slots), answer, (_key(c),))]


_PROBLEMS = {  # the sign, and whether the result counts things
    "get": ("+", True),
    "lose": ("-", True),
    "each": ("*", False),
    "share": ("/", False),
    "age": ("+", False),
}


def _row(first: int, last: int, step: int = 1) -> str:
    step = step if first <= last else -step
    return ", ".join(map(str, range(first, last + step, step))) + "."


def _compare(a: int, b: int) -> tuple[str, int]:
    if a == b:
        return f"Neither: {a} and {b} are equal.", a
    return f"{max(a, b)} is larger than {min(a, b)}.", max(a, b)


def _number(rng: random.Random) -> int:
    return rng.randint(1, rng.choice((20, 100, 100, 999)))


def _is_prime(a: int) -> tuple[str, str]:
    """Answer and key."""
    if a in _PRIMES:
        return f"Yes, {a} is a prime number.", "yes"
    least = next((d for d in range(2, a) if a % d == 0), None)
    return f"No, {a} is not prime" + (f": {a} = {least} * {a // least}." if least else "."), "no"


def _made(kind: str, rng: random.Random) -> tuple[dict[str, int], str, str]:
    """Numbers of the question, the answer, the key."""
    a, b = _number(rng), _number(rng)
    if kind == "bigger":
        answer, key = _compare(a, b)
        return {"a": a, "b": b}, answer, _key(key)
    if kind in ("after", "before"):
        c = a + 1 if kind == "after" else a - 1
        return {"a": a}, f"{c} comes {kind} {a}.", _key(c)
    if kind in ("count", "count_down"):
        a = rng.choice((rng.randint(3, 20), 5, 10, 10, 20))
        return {"a": a}, _row(1, a) if kind == "count" else _row(a, 0), _key(a)
    if kind == "count_from":
        a = rng.randint(1, 60)
        b = a + rng.randint(3, 12)
        return {"a": a, "b": b}, _row(a, b), _key(b)
    if kind == "multiples":
        a = rng.choice((2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12))
        return {"a": a}, _row(a, 10 * a, a), _key(10 * a)
    if kind in ("double", "triple"):
        a = rng.randint(1, 100 if kind == "double" else 33)
        c = a * (2 if kind == "double" else 3)
        return {"a": a}, f"{kind.capitalize()} {a} is {c}.", _key(c)
    if kind == "half":
        a = rng.choice((rng.randint(1, 20), rng.randint(1, 100) * 2))
        shown_half = f"{a / 2:g}"
        return {"a": a}, f"Half of {a} is {shown_half}.", rf"is {re.escape(shown_half)}\."
    if kind in ("square", "root"):
        a = rng.randint(1, _TABLE)
        if kind == "root":
            return (
                {"a": a * a},
                f"The square root of {a * a} is {a}, because {a} * {a} = {a * a}.",
                f"is {a},",
            )
        return {"a": a}, _product(a, a) + ".", _key(a * a)
    if kind == "percent":
        a = rng.choice((10, 50, 25, 20, 100))
        c = rng.randint(1, 20)
        b = c * 100 // a
        return {"a": a, "b": b}, f"{a} percent of {b} is {c}.", rf"is {c}\."
    if kind == "three":
        a, b, c = (rng.randint(1, 20) for _ in range(3))
        return {"a": a, "b": b, "c": c}, f"{a} + {b} + {c} = {a + b} + {c} = {a + b + c}.", _key(a + b + c)
    if kind == "rest":
        b = rng.randint(2, 10)
        a = rng.randint(1, 9) * b + rng.randint(1, b - 1)
        if b in (2, 4, 5, 10):
            return {"a": a, "b": b}, f"{a} / {b} = {a / b:g}.", rf"= {a / b:g}\."
        return {"a": a, "b": b}, f"{a} / {b} = {a // b}, remainder {a % b}.", f"= {a // b}, remainder {a % b}"
    if kind == "by_zero":
        return {"a": a, "b": 0}, "No number can be divided by 0.", "divided by 0"
    if kind == "prime":
        a = rng.randint(1, rng.choice((20, 100)))
        return {"a": a}, *_is_prime(a)
    a = _number(rng)
    return {"a": a}, f"{a} is {'odd' if a % 2 else 'even'}.", r"\bodd\b" if a % 2 else r"\beven\b"


def _other(kind: str, rng: random.Random, part: Part) -> list[Turn] | None:
    """Counting, neighbours, doubles, halves, squares, primes."""
    wording = draw(_SUMS["divided" if kind in ("rest", "by_zero") else kind], rng, part)
    if wording is None:
        return None
    numbers, answer, key = _made(kind, rng)
    slots = {name: shown(number, rng) for name, number in numbers.items()}
    return [Turn(f"sum.{kind}", fill(wording, **slots), answer, (key,))]


_KINDS: dict[str, tuple[float, Callable[[str, random.Random, Part], list[Turn] | None]]] = {
    "plus": (14, _sum),
    "minus": (11, _sum),
    "times": (12, _sum),
    "divided": (3, _sum),
    "get": (1.5, _in_words),
    "lose": (1.5, _in_words),
    "each": (1, _in_words),
    "share": (1, _in_words),
    "age": (0.6, _in_words),
    "bigger": (1.5, _other),
    "after": (1, _other),
    "before": (0.8, _other),
    "count": (0.7, _other),
    "count_from": (0.4, _other),
    "count_down": (0.5, _other),
    "multiples": (0.6, _other),
    "double": (0.9, _other),
    "triple": (0.4, _other),
    "half": (0.9, _other),
    "square": (0.5, _other),
    "root": (0.5, _other),
    "percent": (0.6, _other),
    "three": (0.8, _other),
    "rest": (0.7, _other),
    "by_zero": (0.15, _other),
    "prime": (0.9, _other),
    "even": (0.7, _other),
}


def small_sum(rng: random.Random, part: Part) -> list[Turn] | None:
    """Any of these."""
    kind = rng.choices(list(_KINDS), [weight for weight, _ in _KINDS.values()])[0]
    return _KINDS[kind][1](kind, rng, part)


def practice(rng: random.Random, part: Part) -> str:
    """Some worked sums and differences, one after another."""
    rows = []
    for _ in range(rng.randint(4, 9)):
        sign = rng.choice("++-")
        if pair := _pair(rng, part, sign):
            a, b = pair
            rows.append(f"{worked(a, sign, b, a + b if sign == '+' else a - b)}.")
    return " ".join(rows)


def big_question(rng: random.Random, part: Part) -> str | None:
    """A sum that is too big for the model."""
    kind = rng.choice(("plus", "minus", "times", "divided"))
    wording = draw(_SUMS[kind], rng, part)
    if wording is None:
        return None
    top = rng.choice((5000, 10_000, 1_000_000))
    a = rng.randint(1001, top)
    b = rng.randint(2 if kind == "divided" else 101, top)
    if kind == "times":
        a, b = rng.randint(21, rng.choice((99, 999, top))), rng.randint(21, 999)
    return fill(wording, a=str(a), b=str(b))
