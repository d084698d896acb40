"""What an answer is unsure of: its choice, fields, or words."""

import math
from typing import Any

import pytest

from ropechat.engine.certainty import Answer
from ropechat.inspector.unsure import unsure_parts

SPELLING = {1: b"In", 2: b" 9", 3: b"11", 4: b" caf\xc3", 5: b"\xa9", 6: b".", 7: b" END", 9: b"</s>"}
STOPS = frozenset({9})


def parts(
    text: str, tokens: dict[int, float], certainty: dict[str, Any], below: float
) -> list[dict[str, Any]]:
    """The records. tokens: id -> probability."""
    logprobs = [math.log(prob) for prob in tokens.values()]
    answer = Answer(text, [*tokens], logprobs, [1.0] * len(tokens))
    return [part.record for part in unsure_parts(answer, certainty, below, SPELLING.__getitem__, STOPS)]


def test_words_are_judged_by_the_product_of_their_tokens() -> None:
    tokens = {1: 0.9, 2: 0.5, 3: 0.5, 4: 0.4, 5: 1.0, 6: 0.9, 9: 0.01}
    first, second = parts("In 911 café.", tokens, {}, 0.3), parts("In 911 café.", tokens, {}, 0.45)
    assert [(part["text"], part["prob"], part["tokens"], part["span"]) for part in first] == [
        (" 911", pytest.approx(0.25), 2, (2, 6))
    ]
    assert [(part["text"], part["prob"]) for part in second] == [(" 911 café", pytest.approx(0.1))]


def test_what_a_stop_string_cut_does_not_count() -> None:
    assert parts("In", {1: 0.9, 7: 0.1}, {}, 0.5) == []
    assert parts("", {9: 0.1}, {}, 0.5) == []


def test_a_choice_and_fields_are_judged_by_their_confidence() -> None:
    tokens = {1: 0.001}
    assert parts("In", tokens, {"confidence": 0.7, "choices": {"In": 0.7}}, 0.7) == []
    assert parts("In", tokens, {"confidence": 0.6}, 0.7) == [{"text": "In", "prob": 0.6}]
    fields = {"a": {"confidence": 0.2}, "b[0]": {"confidence": 0.8}}
    assert parts("In", tokens, {"confidence": 0.2, "fields": fields}, 0.5) == [{"field": "a", "prob": 0.2}]
    cut: dict[str, Any] = {"confidence": None, "fields": {}}
    assert [part["text"] for part in parts("In", tokens, cut, 0.5)] == ["In"]
