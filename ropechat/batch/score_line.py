"""The request of a row to score: a prompt and a completion, or choices of which one may be right."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from ropechat.batch.line import LineRequest, names_of, reject

COMPLETION, CHOICES, ANSWER = "completion", "choices", "answer"
MAX_CHOICES = 1000


def scored_request(
    fields: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], LineRequest]
) -> LineRequest:
    """The request of a row. parse: of the fields without those of the score. Raises LineError."""
    given = [name for name in (COMPLETION, CHOICES) if fields.get(name) is not None]
    if len(given) != 1:
        got = " and ".join(given) or names_of(fields)
        reject(f"{COMPLETION}: must be given, or {CHOICES}, but not both (got {got})")
    choices = _choices(fields[CHOICES]) if given == [CHOICES] else (_text(COMPLETION, fields[COMPLETION]),)
    answer = _answer(fields.get(ANSWER), len(choices)) if given == [CHOICES] else None
    taken = (COMPLETION, CHOICES, ANSWER) if given == [CHOICES] else (COMPLETION, CHOICES)
    request = parse({name: value for name, value in fields.items() if name not in taken})
    for name, value in (("turns", request.turns), ("chat_template_kwargs", request.template_vars)):
        if value:
            reject(f"{name}: not possible with --score")
    if request.samples not in (None, 1):
        reject(f"n: must be 1 with --score (got {request.samples})")
    if isinstance(request.content, list) and any(isinstance(part, int) for part in request.content):
        reject("prompt: must be text or messages with --score (got ids)")
    return dataclasses.replace(
        request, samples=1, choices=choices, answer=answer, is_pair=given == [COMPLETION]
    )


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


def _answer(value: object, choices: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < choices:
        reject(f"{ANSWER}: must be the index of a choice, 0 to {choices - 1} (got {value!r:.40})")
    return value
