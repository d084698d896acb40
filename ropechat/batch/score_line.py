"""The request of a row to score: a prompt and a completion, or choices of which one may be right."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ropechat.batch.line import TRUNCATE, LineRequest, names_of, reject

COMPLETION, CHOICES, ANSWER = "completion", "choices", "answer"
MAX_CHOICES = 1000
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def scored_request(
    fields: Mapping[str, Any],
    parse: Callable[[Mapping[str, Any]], LineRequest],
    common: Sequence[str] = (),
) -> LineRequest:
    """The request of a row. parse: of the fields without those of the score. Raises LineError.

    common: the choices of all rows, whose own ones are data then. After a text that does not end in a space
    they begin with one.
    """
    if common:
        return _of_common(fields, parse, common)
    given = [name for name in (COMPLETION, CHOICES) if fields.get(name) is not None]
    if len(given) != 1:
        got = " and ".join(given) or names_of(fields)
        reject(f"{COMPLETION}: must be given, or {CHOICES}, but not both (got {got})")
    choices = _choices(fields[CHOICES]) if given == [CHOICES] else (_text(COMPLETION, fields[COMPLETION]),)
    answer = _answer(fields.get(ANSWER), choices) if given == [CHOICES] else None
    taken = (COMPLETION, CHOICES, ANSWER) if given == [CHOICES] else (COMPLETION, CHOICES)
    request = parse({name: value for name, value in fields.items() if name not in taken})
    return _checked(request, choices, answer, is_pair=given == [COMPLETION])


def _of_common(
    fields: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], LineRequest], common: Sequence[str]
) -> LineRequest:
    answer = _answer(fields.get(ANSWER), common)
    request = parse(fields)
    unused = tuple(name for name in request.unused if name != ANSWER)
    content = request.content
    spaced = isinstance(content, str) and not content[-1:].isspace()
    choices = tuple(f" {text}" if spaced else text for text in common)
    return _checked(dataclasses.replace(request, unused=unused), choices, answer, is_pair=False)


def _checked(
    request: LineRequest, choices: tuple[str, ...], answer: int | None, *, is_pair: bool
) -> LineRequest:
    """The request with what is scored. Raises LineError for what is not possible then."""
    refused = {
        "turns": request.turns or None,
        "chat_template_kwargs": request.template_vars or None,
        "fail_below": request.fail_below,
        TRUNCATE: request.truncate,
    }
    for name, value in refused.items():
        if value is not None:
            reject(f"{name}: not possible with --score")
    if request.samples not in (None, 1):
        reject(f"n: must be 1 with --score (got {request.samples})")
    if isinstance(request.content, list) and any(isinstance(part, int) for part in request.content):
        reject("prompt: must be text or messages with --score (got ids)")
    return dataclasses.replace(request, samples=1, choices=choices, answer=answer, is_pair=is_pair)


def _text(field: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        reject(f"{field}: must be a string of at least one character (got {value!r:.40})")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        reject(f"{field}: must be valid Unicode (got a lone surrogate at character {error.start})")
    return value


def _choices(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_CHOICES:
        reject(f"{CHOICES}: must be a list of 1 to {MAX_CHOICES} strings (got {value!r:.40})")
    return tuple(_text(f"{CHOICES}[{number}]", text) for number, text in enumerate(value))


def _answer(value: object, choices: Sequence[str]) -> int | None:
    """The index of the right choice: given as such, as its text, or as its letter."""
    if value is None or value == "":
        return None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(choices):
        return value
    if isinstance(value, str):
        texts, said = [text.strip() for text in choices], value.strip()
        if texts.count(said) == 1:
            return texts.index(said)
        index = _LETTERS.find(said.upper()) if len(said) == 1 else -1
        index = int(said) if said.isdecimal() and len(said) < 5 else index
        if 0 <= index < len(choices):
            return index
    reject(
        f"{ANSWER}: must be a choice: its text, its letter (A, B, ...) or its index, 0 to {len(choices) - 1} "
        f"(got {value!r:.40})"
    )
