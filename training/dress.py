"""How people really type: words around the question, other words, small letters, typing errors."""

import random
import re

from training.material import table
from training.patterns import Part

_FRAMES: dict[str, list[str]] = {**table("frames")}
_SAME: dict[str, list[str]] = table("frames")["same"]
_WORD = re.compile(r"[a-z']+")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def indirect(text: str, rng: random.Random, part: Part) -> str:
    """`What is a token` as `can you tell me what a token is`, and the like."""
    lead = rng.choice(_FRAMES["lead" if part == "train" else "held_lead"])
    if asked := re.fullmatch(r"(what|who)(?: is|'s|s) ((?:\S+ ){0,5}\S+)", text):
        return f"{lead} {asked[1]} {asked[2]} is"
    if asked := re.fullmatch(r"how (?:do|can|could) (?:i|you|we) (.+)", text):
        return f"{lead} how {rng.choice(('to', 'i can', 'to', 'one can'))} {asked[1]}"
    if asked := re.fullmatch(r"(where|what|how) (?:does|do) (.+?) (live|mean|work|say|eat)", text):
        return f"{lead} {asked[1]} {asked[2]} {asked[3]}{'' if rng.random() < 0.4 else 's'}"
    if re.match(r"(what|which|how|where|who|why|when) ", text):
        return lead + rng.choice((": ", ", ", " ")) + text
    return text


def framed(text: str, rng: random.Random, part: Part) -> str:
    """With words before or after; those of evaluation are never used in training."""
    held = "held_" if part != "train" else ""
    roll = rng.random()
    if roll < 0.12:
        return indirect(text, rng, part)
    if roll < 0.3:
        return rng.choice(_FRAMES[held + "before"]) + text
    if roll < 0.42:
        return text + rng.choice(_FRAMES[held + "after"])
    return text


def reworded(text: str, rng: random.Random) -> str:
    """Some words replaced by others that mean the same."""

    def other(match: re.Match[str]) -> str:
        choices = _SAME.get(match[0])
        return rng.choice(choices) if choices and rng.random() < 0.4 else match[0]

    return _WORD.sub(other, text)


def mistyped(text: str, rng: random.Random) -> str:
    """One typing error in a word of four letters or more: swapped, lost, doubled or wrong letters."""
    places = [match.span() for match in re.finditer(r"[A-Za-z]{4,}", text)]
    if not places:
        return text
    start, end = rng.choice(places)
    at = rng.randrange(start + 1, end - 1)
    kind = rng.randrange(4)
    if kind == 0:
        return text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    if kind == 1:
        return text[:at] + text[at + 1 :]
    if kind == 2:
        return text[:at] + text[at] + text[at:]
    return text[:at] + rng.choice(_LETTERS) + text[at + 1 :]


def _is_question(text: str) -> bool:
    first = text.split(" ", 1)[0].lower().strip(",.!")
    asks = "what what's whats who which where when why how is are do does can could will would should did was"
    return first in asks.split()


def typed(text: str, rng: random.Random) -> str:
    """Capital letters and punctuation, or not."""
    style = rng.random()
    if text and text[-1] not in ".!?:)":
        mark = "?" if _is_question(text) or rng.random() < 0.2 else rng.choice(["", ".", "!"])
        text += mark if style < 0.55 else ""
    if style < 0.5:
        text = text[:1].upper() + text[1:]
    elif style < 0.78:
        text = text.lower()
    elif style < 0.785:
        text = text.upper()
    return re.sub(r"\bi\b", "I", text) if style < 0.4 else text


def dressed(text: str, rng: random.Random, part: Part, *, alone: bool = False) -> str:
    """A question as a user may type it; alone: without words around it."""
    text = reworded(text, rng)
    text = typed(text if alone else framed(text, rng, part), rng)
    return mistyped(text, rng) if rng.random() < 0.09 else text
