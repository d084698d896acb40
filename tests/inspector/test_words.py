"""Words of a scored text, their probabilities, and the spans that are unsure."""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from readings import reading, spelled, trace_of

from ropechat.inspector import by_line, by_word
from ropechat.inspector.by_word import Word, line_of, unsure, words_of
from ropechat.inspector.draws import RecordedDraws
from ropechat.inspector.scored_text import ScoredText
from ropechat.inspector.spec import InspectSpec, InspectWatcher
from ropechat.util.width import cell_width


def scored(pieces: Sequence[str | bytes]) -> ScoredText:
    """A text whose tokens all have a score: i bits, from 1."""
    trace = trace_of(["", *pieces])
    return ScoredText(RecordedDraws(trace.tokens[1:], trace.meta))


def texts(pieces: Sequence[str | bytes]) -> list[str]:
    return [word.text for word in words_of(scored(pieces))]


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (["The", " cat", " sat"], ["The", " cat", " sat"]),
        ([" Farr", "iner", "'s", " bakery"], [" Farriner's", " bakery"]),
        ([" don", "’", "t", " well", "-", "known"], [" don’t", " well-known"]),
        (["'", "quoted", "'"], ["'", "quoted", "'"]),
        ([" Rome", ".", "\n", "It"], [" Rome", ".", "\n", "It"]),
        ([" Rome", ".\n", "It"], [" Rome", ".\n", "It"]),  # a token is not divided
        ([" Rome", ".\n\nIt", "s"], [" Rome", ".\n\nIts"]),
        ([" ", "1", "3", ",", "2", " and", " 3", ".", "1", "4", "."], [" 13,2", " and", " 3.14", "."]),
        ([" a", ".", "b"], [" a", ".", "b"]),
        (["(", '",', ")"], ['(",)']),
        (["a", "\n   ", " return"], ["a", "\n   ", " return"]),
        (["a", "\n    ", "return"], ["a", "\n    ", "return"]),
        (["a", "\n", "    re", "turn"], ["a", "\n", "    return"]),
        (["a", "  "], ["a", "  "]),
        (["a", "\n", "\n", "b"], ["a", "\n", "\n", "b"]),
        (["a", "\n\n", "b"], ["a", "\n\n", "b"]),
        ([" snake", "_", "case"], [" snake_case"]),
        (["日", "本語", "だ"], ["日", "本語", "だ"]),
        ([b"\xe6\x97", b"\xa5", "a"], ["日", "a"]),
        ([" naï", "ve", "—", "so"], [" naïve", "—", "so"]),
        (["हि", "न्", "दी", " है"], ["हिन्दी", " है"]),
        (["a", "。", "！", "b"], ["a", "。！", "b"]),
    ],
)
def test_words(pieces: list[str | bytes], words: list[str]) -> None:
    assert texts(pieces) == words


def test_a_word_has_the_product_of_its_tokens() -> None:
    found = list(words_of(reading(["A", " b", " Farr", "in", "er", "\n", " z"], name="a.txt")))
    assert [word.text for word in found] == [" b", " Farriner", "\n", " z"]  # A has no score
    one = found[1]
    assert one.tokens == 3
    assert one.bits == pytest.approx(2 + 3 + 4)
    assert one.prob == pytest.approx(2.0**-9)
    assert one.first_prob == pytest.approx(2.0**-2)
    assert (one.number, one.line, one.span, one.words) == (2, 1, (3, 12), 1)
    assert [word.number for word in found] == [1, 2, 3, 4]
    assert [word.line for word in found] == [1, 1, 1, 2]
    record = by_word.record(one)
    assert record["file"] == "a.txt"
    assert record["logprob"] == pytest.approx(-9 * math.log(2))
    assert (record["bits"], record["prob"]) == pytest.approx((9, 2.0**-9))
    assert record["first_prob"] == pytest.approx(0.25)


def test_a_word_begins_in_the_line_of_its_first_character() -> None:
    found = list(words_of(reading(["x", "y", " a", "\n\nb", "\n", "c", "\r\n d", " e"])))
    assert [(word.text, word.line) for word in found] == [
        *((" a", 1), ("\n\nb", 3), ("\n", 3), ("c", 4)),
        *(("\r\n d", 5), (" e", 5)),
    ]


def test_the_words_of_a_text_have_all_its_bits() -> None:
    one = scored([f" w{n}" if n % 3 else f"x{n}.\n" for n in range(60)])
    assert math.fsum(word.nll for word in words_of(one)) == pytest.approx(one.summary.counted.nll, rel=1e-12)


def test_a_word_with_a_token_that_does_not_count_is_left_out() -> None:
    assert [word.text for word in words_of(reading(["Far", "mer", " b"]))] == [" b"]
    trace = trace_of(["", "x", "ab", "cd", " e"])
    tokens = [dataclasses.replace(trace.tokens[1], role="special"), *trace.tokens[2:]]
    draws = RecordedDraws(tuple(tokens), trace.meta)
    assert [word.text for word in words_of(ScoredText(draws))] == ["abcd", " e"]  # the roles divide
    draws = RecordedDraws(tuple(tokens), {**trace.meta, "roles": ("special",)})
    assert [word.text for word in words_of(ScoredText(draws))] == ["x"]


def test_a_continuation_begins_with_a_word() -> None:
    trace = trace_of(["a\nNew", "ton", " b", "\nc"])
    found = list(words_of(ScoredText(RecordedDraws(trace.tokens[1:], trace.meta))))
    assert [(word.text, word.span, word.line) for word in found] == [
        *(("ton", (5, 8), 1), (" b", (8, 10), 1), ("\nc", (10, 12), 2)),
    ]


def test_spans_beyond_the_text_end() -> None:
    trace = trace_of(["", " ab", "c", " d"])
    for text in ("", " a", None):
        draws = RecordedDraws(trace.tokens[1:], {**trace.meta, "text": text})
        assert sum(word.tokens for word in words_of(ScoredText(draws))) == 3


def of(*probs: float, file: str = "") -> list[Word]:
    """Words w1, w2, ... with these probabilities."""
    trace = trace_of(["", *(f" w{n}" for n in range(1, len(probs) + 1))])
    tokens = [
        dataclasses.replace(token, logprob=math.log(prob))
        for token, prob in zip(trace.tokens[1:], probs, strict=True)
    ]
    return list(words_of(ScoredText(RecordedDraws(tuple(tokens), trace.meta), file)))


def test_unsure_words_that_follow_one_another_are_one_span() -> None:
    words = of(0.9, 0.25, 0.125, 0.5, 0.25, 0.9, 0.25)
    found = list(unsure(words, 0.5))
    assert [(one.text, one.words, one.number, one.tokens) for one in found] == [
        *((" w2 w3", 2, 2, 2), (" w5", 1, 5, 1), (" w7", 1, 7, 1)),
    ]
    assert found[0].prob == pytest.approx(0.25 * 0.125)
    assert found[0].first_prob == pytest.approx(0.25)
    assert found[0].span == (words[1].span[0], words[2].span[1])
    assert list(unsure(words, 0.125)) == []  # below, not at, the threshold
    assert [one.words for one in unsure(words, 1.0)] == [7]
    both = [*of(0.1, file="a"), *of(0.1, file="b")]
    assert [one.file for one in unsure(both, 0.5)] == ["a", "b"]
    both = [*of(0.1, file="a"), of(0.1, 0.1, file="b")[1]]
    assert [one.file for one in unsure(both, 0.5)] == ["a", "b"]


def test_a_gap_in_the_words_divides_a_span() -> None:
    one, gap, other = of(0.1, 0.1, 0.1)
    assert [word.words for word in unsure([one, other], 0.5)] == [1, 1]
    assert [word.words for word in unsure([one, gap, other], 0.5)] == [3]
    trace = trace_of(["", " a", "<s>", " c"])
    tokens = [trace.tokens[1], dataclasses.replace(trace.tokens[2], role="special"), trace.tokens[3]]
    draws = RecordedDraws(tuple(tokens), trace.meta)
    assert [span.text for span in unsure(words_of(ScoredText(draws)), 1.0)] == [" a", " c"]


def test_the_line_of_a_span() -> None:
    (span,) = unsure(of(0.25, 0.5, file="a.txt"), 0.6)
    assert line_of(span) == "a.txt:1: 12.5% in 2 tokens: ·w1·w2"
    (span,) = unsure(of(0.25), 0.6)
    assert line_of(span) == "line 1: 25.0% in 1 token: ·w1"


def rendered(words: list[Word], form: str) -> str:
    return "".join(
        by_line.render(words, form, lambda rows: by_word.table(rows, 80), by_word.record, by_word.COLUMNS)
    )


def test_records_and_table_of_words() -> None:
    words = of(0.25, 0.5)
    rows = list(csv.DictReader(io.StringIO(rendered(words, "csv"))))
    assert list(rows[0]) == list(by_word.COLUMNS)
    assert [(row["text"], row["start"], row["end"], row["words"]) for row in rows] == [
        *((" w1", "0", "3", "1"), (" w2", "3", "6", "1")),
    ]
    assert [float(row["prob"]) for row in rows] == pytest.approx([0.25, 0.5])
    records = [json.loads(line) for line in rendered(words, "jsonl").splitlines()]
    assert [record["bits"] for record in records] == pytest.approx([2, 1])
    assert set(records[0]) | {"file", "start", "end"} == {*by_word.COLUMNS, "span"}
    head, *lines = rendered(words, "table").splitlines()
    assert head.split() == ["line", "bits", "prob", "tokens", "text"]
    assert lines[0].split() == ["1", "2.00", "25.0%", "██▌", "1", "·w1"]
    head, *lines = by_word.table(words, 80, "nat")
    assert (head.split()[1], lines[0].split()[1]) == ("nats", "1.39")


def test_a_table_of_words_fits() -> None:
    words = [
        *words_of(reading(["x", "日本語" * 40 + "\t\x1b[31m\n", "b"], name="a/long/name/of/a/file.txt")),
        *words_of(reading(["y", "z" * 200], name="b.txt")),
    ]
    for width in (40, 59, 60, 80):
        drawn = list(by_word.table(words, width))
        assert max(map(cell_width, drawn)) <= width
        assert "\x1b" not in "".join(drawn)


class Told(InspectWatcher):
    def __init__(self) -> None:
        self.spans: list[str] = []
        self.heard: list[Any] = []

    @property
    def is_stopped(self) -> bool:
        return len(self.heard) >= 5

    def unsure(self, span: Word) -> None:
        self.spans.append(span.text)

    def scored(self, token: Any) -> None:
        self.heard.append(token.index)


@pytest.mark.parametrize("view", ["tokens", "lines", "words", "chart"])
def test_the_watcher_is_told_of_unsure_spans_in_each_view(view: Any) -> None:
    told, pieces = Told(), ["a", " b", " c", " d", " e", "f", " g"]
    spec = InspectSpec(fail_below=2.0**-2.5, view=view)
    one = ScoredText(trace_of(pieces), "n", spelled(pieces), observer=spec.watch("n", told))
    "".join(spec.render([one], ""))
    assert told.heard == [0, 1, 2, 3, 4]  # it stops when the watcher has stopped
    assert told.spans == [" d"]  # " ef" is not complete
    told = Told()
    one = ScoredText(trace_of(pieces[:5]), "n", spelled(pieces), observer=spec.watch("n", told))
    "".join(spec.render([one], ""))
    assert told.spans == [" d e"]
    assert InspectSpec().watch("n", told) is told


def test_below_keeps_the_unsure_words() -> None:
    spec = InspectSpec(view="words", form="csv", below=2.0**-2.5, sort="bits", head=1)
    pieces = ["a", " b", " c", " d", "", " e", " f"]
    out = "".join(spec.render([reading(pieces)], ""))
    assert [row["text"] for row in csv.DictReader(io.StringIO(out))] == [" d e f"]
    every = dataclasses.replace(spec, below=None, head=None)
    found = [row["text"] for row in csv.DictReader(io.StringIO("".join(every.render([reading(pieces)], ""))))]
    assert found == [" e", " f", " d", " c", " b"]
