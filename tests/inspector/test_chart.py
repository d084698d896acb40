"""The chart along a text: what is drawn, in a terminal and in files."""

import dataclasses
import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from typing import Any

import pytest
from readings import reading, trace_of

from ropechat.inspector import chart
from ropechat.inspector.chart import bars, course_of
from ropechat.inspector.draws import RecordedDraws
from ropechat.inspector.rope.blocks import Plot, Table
from ropechat.inspector.scored_text import ScoredText
from ropechat.inspector.spec import InspectSpec
from ropechat.trace import TokenDistribution
from ropechat.util.width import cell_width

PIECES = ["The", " cat", " sat", "\n", "\x1b[31m", "日本", " down"]


def of(rows: Sequence[tuple[float, Sequence[tuple[int, float]], float]], name: str = "") -> ScoredText:
    """Tokens with the ids 1, 2, ...: of each its probability, candidates, and entropy in bits.

    The varentropy is a fourth of the entropy, in bits^2.
    """
    trace = trace_of(["", *(f" w{n}" for n in range(1, len(rows) + 1))])
    tokens = []
    for token, (prob, top, entropy) in zip(trace.tokens[1:], rows, strict=True):
        listed = tuple((id, math.log(p)) for id, p in top)
        nats = entropy * math.log(2)
        squared = entropy / 4 * math.log(2) ** 2
        row = TokenDistribution(token.index - 1, listed, 0.0, nats, sum(p for _, p in top), squared)
        tokens.append(dataclasses.replace(token, logprob=math.log(prob), entropy=nats, row=row))
    return ScoredText(RecordedDraws(tuple(tokens), trace.meta), name)


ROWS = [(0.5, [(1, 0.5), (9, 0.25)], 1.5), (0.125, [(8, 0.5), (7, 0.25)], 2.0), (0.0625, [(3, 0.0625)], 4.0)]


def test_what_is_drawn() -> None:
    found = course_of(of(ROWS), "bit")
    assert found.at == [1, 2, 3]
    assert found.values["surprisal"] == pytest.approx([1, 3, 4])
    assert found.values["entropy"] == pytest.approx([1.5, 2, 4])
    assert found.values["varentropy"] == pytest.approx([0.375, 0.5, 1])
    assert found.values["chosen"] == pytest.approx([0.5, 0.125, 0.0625])
    assert found.values["runner-up"][:2] == pytest.approx([0.25, 0.5])  # the best that is not the chosen one
    assert found.values["rest"][:2] == pytest.approx([0.25, 0.375])
    assert found.values["runner-up"][2] is None  # the only candidate is the chosen one
    assert found.values["rest"][2] is None
    nats = course_of(of(ROWS), "nat")
    assert nats.values["surprisal"] == pytest.approx([n * math.log(2) for n in (1, 3, 4)])
    assert nats.values["entropy"] == pytest.approx([n * math.log(2) for n in (1.5, 2, 4)])
    assert nats.values["varentropy"] == pytest.approx([n / 4 * math.log(2) ** 2 for n in (1.5, 2, 4)])
    assert nats.values["chosen"] == found.values["chosen"]
    bare = of(ROWS)
    bare_rows = (dataclasses.replace(token, row=None, entropy=None) for token in bare)
    bare = ScoredText(RecordedDraws(tuple(bare_rows), bare.meta), "")
    assert chart.known([course_of(bare, "bit")]) == ("surprisal", "chosen")  # as a record of others has it


def test_only_what_sums_cover_is_drawn() -> None:
    assert course_of(reading(PIECES), "bit").at == [1, 2, 3, 4, 5, 6]
    assert course_of(reading(PIECES, roles=("user",)), "bit").at == []


def test_the_peaks_are_the_most_surprising_tokens_in_their_order() -> None:
    probs = [0.5, 0.1, 0.9, 0.2, 0.01, 0.3, 0.4]
    found = course_of(of([(prob, [(99, 0.05)], 1.0) for prob in probs]), "bit")
    assert [token.index for token in found.peaks] == [2, 4, 5, 6, 7]


def test_bars() -> None:
    assert bars([0.0, 1e-9, 0.25, 0.5, 0.5625, 1.0, 2.0]) == ["    ▁██", " ▁▄████"]
    assert bars([]) == ["", ""]


def lines(texts: Sequence[ScoredText], width: int = 80, unit: str = "bit") -> list[str]:
    return list(chart.lines([course_of(text, unit) for text in texts], width, unit))


def test_the_lines_for_a_terminal() -> None:
    found = lines([of(ROWS)])
    assert found == [
        "surprisal   4.0 bit│ ▄█",
        "                   │▄██",
        "entropy     4.0 bit│  █",
        "                   │▆██",
        "varentropy 1.0 bit²│  █",
        "                   │▆██",
        "chosen         100%│",
        "                   │█▂▁",
        "runner-up      100%│",
        "                   │▄█",
        "rest           100%│",
        "                   │▄▆",
        "                   └ 1 to 3, 1 token in a column",
        "        1   1.0 bit   50.0%  ·w1",
        "        2   3.0 bit   12.5%  ·w2",
        "        3   4.0 bit    6.2%  ·w3",
        "3 tokens, 3 scored: 8.00 bits, perplexity 6.35, 0.889 bits/byte",
    ]
    nats = lines([of(ROWS)], unit="nat")
    assert nats[0] == "surprisal   2.8 nat│ ▄█"
    assert nats[4] == "varentropy 0.5 nat²│  █"
    assert nats[15] == "        3   2.8 nat    6.2%  ·w3"
    assert nats[-1].startswith("3 tokens, 3 scored: 5.55 nats")


def test_texts_have_the_same_scales() -> None:
    small = [(0.5, [(99, 0.25)], 1.0)]
    found = lines([of(ROWS, name="a.txt"), of(small, name="b.txt")])
    at = found.index("b.txt")
    assert found[0] == "a.txt"
    assert found[at + 1 : at + 3] == ["surprisal   4.0 bit│", "                   │▄"]
    assert lines([of(small, name="b.txt"), of(ROWS, name="a.txt")])[1] == "surprisal   4.0 bit│"


def test_a_column_is_the_mean_of_tokens_that_do_not_fit() -> None:
    rows = [(0.5, [(99, 0.25)], 1.0), (0.125, [(99, 0.25)], 3.0)] * 61 + [(0.5, [(99, 0.25)], 2.0)]
    found = lines([of(rows)], 82)
    assert found[0:2] == ["surprisal   2.0 bit│" + "█" * 61, "                   │" + "█" * 61 + "█"]
    assert found[2:4] == ["entropy     2.0 bit│" + "█" * 62, "                   │" + "█" * 62]
    assert found[12] == "                   └ 1 to 123, 2 tokens in a column"
    course = chart.Course("", values={"rest": [0.0, 1.0, None, 1.0, None]})
    assert chart._columns(course, "rest", 2) == [0.5, 1.0, 0.0]


def test_it_fits_and_acts_on_no_terminal() -> None:
    for width in (30, 60, 80, 100):
        drawn = lines([reading(PIECES * 40, name="a/long/name/of/a/file.txt" * 3), reading(["x"])], width)
        assert max(map(cell_width, drawn)) <= width
        assert "\x1b" not in "".join(drawn)


def written(texts: Sequence[ScoredText], form: str, **fields: Any) -> str:
    return "".join(InspectSpec(view="chart", form=form, **fields).render(texts, "t"))


def test_files() -> None:
    picture = written([of(ROWS)], "svg")
    ElementTree.fromstring(picture)
    found = re.findall(r">(surprisal|entropy|varentropy, bits²|chosen|runner-up|rest)<", picture)
    assert [one.partition(",")[0] for one in found] == [*chart.CURVES]
    source = written([of(ROWS, name="<b>")], "html")
    assert "<b>" not in source
    assert source.count("<polyline") == 6
    assert "varentropy, bits²" in source
    assert "<script>" in source
    assert "src=" not in source
    assert written([of(ROWS)], "table", width=80).splitlines() == lines([of(ROWS)])
    assert "nats" in written([of(ROWS)], "svg", unit="nat")


def test_the_curves_of_one_text_and_of_two() -> None:
    one = course_of(of(ROWS), "bit")
    amounts, squares, shares, _, peaks = chart.view([one], "bit").blocks
    assert isinstance(amounts, Plot)
    assert isinstance(squares, Plot)
    assert isinstance(shares, Plot)
    assert isinstance(peaks, Table)
    assert [curve.name for curve in amounts.curves] == ["surprisal", "entropy"]
    assert amounts.curves[0].x.tolist() == [1, 2, 3]
    assert amounts.curves[0].y.tolist() == pytest.approx([1, 3, 4])
    assert (squares.curves[0].name, squares.y_label) == ("varentropy", "varentropy, bits²")
    assert shares.curves[1].x.tolist() == [1, 2]  # without what is not known
    assert peaks.rows[2] == (3, "·w3", 4.0, "6.2%")
    both = chart.view([course_of(of(ROWS, name="a"), "bit"), course_of(of(ROWS[1:], name=""), "bit")], "bit")
    plots = [block for block in both.blocks if isinstance(block, Plot)]
    assert [plot.name for plot in plots] == [*chart.CURVES]
    assert [curve.name for curve in plots[0].curves] == ["a", "text 2"]
    assert [curve.x.tolist() for curve in plots[0].curves] == [[0, 1, 2], [0, 1]]


def test_a_text_without_scores() -> None:
    assert lines([reading(["x"])])[-1] == "1 token, none scored"
    ElementTree.fromstring(written([reading(["x"])], "svg"))


def test_two_candidates_are_asked_for_at_least() -> None:
    assert InspectSpec(view="chart").candidates == 5
    assert InspectSpec(view="chart", top_k=0).candidates == 2
    assert InspectSpec(view="chart", top_k=9).candidates == 9
