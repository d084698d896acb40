"""Scores of a text, what is wanted first: the same numbers as `Engine.score`, in any order."""

import math
import random

import pytest

from ropechat.engine.engine import Engine
from ropechat.inspector.text_reader import TextReader

TEXT = "The cat sat on the mat.\nIt was a größere cat — 猫 — than the other one.\n" * 12


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load("builtin")


def bits_of(engine: Engine, text: str, window: int) -> list[float]:
    trace = engine.score(text, top_k=0, special="text", window=window)
    return [math.nan if t.logprob is None else -t.logprob / math.log(2) for t in trace.tokens]


@pytest.mark.parametrize("window", [32, 100, 4096])
def test_scores_are_those_of_score(engine: Engine, window: int) -> None:
    reader = TextReader.of(engine, TEXT, window)
    while reader.step(engine):
        pass
    assert reader.is_done
    wanted = bits_of(engine, TEXT, window)
    assert len(reader) == len(wanted) == reader.scored + 1
    assert list(reader.bits[1:]) == pytest.approx(wanted[1:], rel=1e-6)


def test_what_is_visible_comes_first(engine: Engine) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    reader = TextReader.of(engine, TEXT, 64)
    while not reader.is_encoded:
        reader.step(engine)
    while not reader.is_done:
        offset = draw.randrange(len(reader.data))
        token = max(1, reader.token_at(offset))
        was_unknown = math.isnan(reader.bits[token])
        reader.look_at(offset)
        reader.step(engine)
        assert not (was_unknown and math.isnan(reader.bits[token]))
    assert list(reader.bits[1:]) == pytest.approx(bits_of(engine, TEXT, 64)[1:], rel=1e-6)


def test_candidates_are_computed_when_they_are_asked_for(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropechat.inspector.text_reader.KEPT", 8)
    reader = TextReader.of(engine, TEXT, 64)
    while reader.step(engine):
        pass
    assert reader.detail(5) is None
    assert reader.step(engine)
    detail = reader.detail(5)
    assert detail is not None
    assert detail.row is not None
    assert detail.id == reader.ids[5] == engine.score(TEXT, special="text").tokens[5].id
    assert reader.detail(0) is None  # it has no context
    assert not reader.step(engine)


def test_a_change_keeps_the_scores_before_it(engine: Engine) -> None:
    old = TextReader.of(engine, TEXT, 64)
    while old.step(engine):
        pass
    place = len(TEXT) // 2
    changed = TEXT[:place] + "XYZZY" + TEXT[place:]
    reader = TextReader.of(engine, changed, 64)
    reader.take_over(old)
    assert reader.scored > 0.3 * len(reader)
    while reader.step(engine):
        pass
    assert list(reader.bits[1:]) == pytest.approx(bits_of(engine, changed, 64)[1:], rel=1e-6)


def test_places(engine: Engine) -> None:
    reader = TextReader.of(engine, "ab\ncd", None)
    while reader.step(engine):
        pass
    for offset in range(len(reader.data)):
        begin, end = reader.span(reader.token_at(offset))
        assert begin <= offset < end
