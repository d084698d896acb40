"""Strings that are looked up in the place of each token: the numbers of the logits, in every output."""

import csv
import io
import json
import math
import re
from collections.abc import Sequence

import numpy as np
import pytest

from ropechat.engine.engine import Engine
from ropechat.errors import RequestError
from ropechat.inspector import records, trace_page
from ropechat.inspector.look_up import Found, Strings, ids_of
from ropechat.inspector.scored_text import ScoredText
from ropechat.trace import Pair, TokenScore

TEXT = "The capital of France is Paris. The cat sat on the mat.\n"
WANTED = [" Paris", " Lyon", ".", "x"]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load("builtin", threads=1)


def logprobs(engine: Engine, ids: Sequence[int]) -> np.ndarray:
    rows = engine.logits(ids).astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


def reading(engine: Engine, text: str | Pair, *, whole: bool, window: int | None = None) -> ScoredText:
    strings = Strings(engine, WANTED, whole=whole)
    stream = engine.score_stream(
        text, top_k=2, special="text", look_up=strings.first_ids, window=window, stride=window and 5
    )
    return ScoredText(stream, "", engine.token_bytes, strings, stream.before)


def places(given: ScoredText) -> list[tuple[TokenScore, Sequence[Found]]]:
    return [(token, given.found) for token in given]


def chain(engine: Engine, before: Sequence[int], ids: Sequence[int]) -> float:
    rows = logprobs(engine, [*before, *ids])[len(before) - 1 :]
    return math.fsum(rows[place, id] for place, id in enumerate(ids))


def test_a_string_has_its_logprob_and_rank_in_each_place(engine: Engine) -> None:
    ids = engine.tokenizer.encode(TEXT)
    rows = logprobs(engine, ids)
    seen = places(reading(engine, TEXT, whole=False))
    assert seen[0][1] == []  # it has no context
    for place, (_, found) in enumerate(seen[1:]):
        assert [one.text for one in found] == WANTED
        for one in found:
            assert engine.tokenizer.decode(list(one.ids)) == one.text
            assert one.first == pytest.approx(rows[place, one.ids[0]], abs=1e-12)
            assert one.rank == 1 + int((rows[place] > rows[place, one.ids[0]]).sum())
            assert one.logprob == (one.first if len(one.ids) == 1 else None)


def test_the_whole_string_is_the_chain_of_its_tokens(engine: Engine) -> None:
    ids = engine.tokenizer.encode(TEXT)
    quick, seen = places(reading(engine, TEXT, whole=False)), places(reading(engine, TEXT, whole=True))
    assert [token for token, _ in seen] == [token for token, _ in quick]
    for place, ((_, found), (_, first)) in enumerate(zip(seen, quick, strict=True)):
        assert [(one.first, one.rank) for one in found] == [(one.first, one.rank) for one in first]
        for one in found:
            assert one.logprob == pytest.approx(chain(engine, ids[:place], one.ids), abs=1e-9)


def test_a_windowed_text_has_the_context_of_its_windows(engine: Engine) -> None:
    ids = engine.tokenizer.encode(TEXT)
    for token, found in places(reading(engine, TEXT, whole=True, window=9))[1:]:
        before = ids[token.index - token.context : token.index]
        for one in found:
            assert one.logprob == pytest.approx(chain(engine, before, one.ids), abs=1e-9)


def test_the_context_of_a_pair_counts(engine: Engine) -> None:
    given = reading(engine, Pair("The capital of France is", " Paris."), whole=True)
    (_, found), *_ = places(given)
    before = engine.tokenizer.encode("The capital of France is")
    row = engine.logits(before)[-1]
    assert found[0].rank == 1 + int((row > row[found[0].ids[0]]).sum())
    assert found[0].logprob == pytest.approx(chain(engine, before, found[0].ids), abs=1e-9)
    ids = engine.tokenizer.encode("The capital of France is Paris.")
    after = given.looked_up()[1]
    assert after.logprob == pytest.approx(chain(engine, ids, after.ids), abs=1e-9)


def test_the_tokens_are_those_of_a_new_line(engine: Engine) -> None:
    assert list(ids_of(engine, " Paris")) == engine.tokenizer.encode("\n Paris")[1:]
    assert engine.tokenizer.decode(list(ids_of(engine, "\n\n"))) == "\n\n"
    with pytest.raises(RequestError, match="at least one character"):
        ids_of(engine, "")


def test_an_id_outside_the_vocabulary_is_refused(engine: Engine) -> None:
    with pytest.raises(RequestError, match="below the vocabulary size"):
        engine.score(TEXT, look_up=[10**6])


@pytest.mark.parametrize("whole", [False, True])
def test_every_output_has_the_numbers(engine: Engine, whole: bool) -> None:
    lines = [json.loads(line) for line in records.json_lines(reading(engine, TEXT, whole=whole))]
    tokens = [record for record in lines if "i" in record]
    after = next(record for record in lines if "next" in record)
    assert list(after["lookup"]) == WANTED
    assert "lookup" not in tokens[0]
    page = "".join(trace_page.render([reading(engine, TEXT, whole=whole)], ""))
    assert _block(page, "strings") == [[text.replace(" ", "·"), len(ids_of(engine, text))] for text in WANTED]
    rows = _block(page, "rows")
    table = "".join(records.csv_lines([reading(engine, TEXT, whole=whole)], 2, len(WANTED)))
    cells = list(csv.DictReader(io.StringIO(table)))
    assert len(rows) == len(cells) == len(tokens) + 1
    assert cells[-1]["role"] == "next"
    for record, row, cell in zip([*tokens[1:], after], rows[1:], cells[1:], strict=True):
        for place, (text, one) in enumerate(record["lookup"].items()):
            values = [one["first_logprob"], one["rank"], one["logprob"]]
            assert row[5][3 * place : 3 * place + 3] == [
                value if value is None else round(value, 5) + 0.0 for value in values
            ]
            named = [cell[f"lookup{place + 1}_{name}"] for name in ("first_logprob", "rank", "logprob")]
            assert named == ["" if value is None else str(value) for value in values]
            assert cell[f"lookup{place + 1}_string"] == text.replace(" ", "·")


def _block(page: str, name: str) -> list[list[float]]:
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    block: list[list[float]] = json.loads(found[1])
    return block
