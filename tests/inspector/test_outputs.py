"""What `inspect` writes: pages, pictures, CSV, JSON lines, and sums by line."""

import csv
import html.parser
import io
import json
import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from hostile_html import strings
from readings import reading, spelled, trace_of

from ropechat.inspector import by_line, records, strip, table, trace_page
from ropechat.inspector.draws import RecordedDraws
from ropechat.inspector.look_up import Found, Strings, look_up
from ropechat.inspector.scored_text import ScoredText, Summary
from ropechat.inspector.spans import DIGITS
from ropechat.trace import TokenScore
from ropechat.util.text import clean, visible
from ropechat.util.width import cell_width

PIECES = ["The", " cat", " sat", b"\xe6\x97", b"\xa5", "\n", "\tx", "<b>"]
OURS = {
    *("html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "div", "fieldset", "legend"),
    *("label", "input", "span", "i", "output", "main", "section", "pre", "dl", "dt", "dd", "aside", "script"),
}


class Parsed(html.parser.HTMLParser):
    """The elements, attributes and tokens of a page."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.labels: list[str] = []
        self._inside: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        assert not {name for name in given if name.startswith("on") or name in ("style", "src", "href")}
        if tag not in ("meta", "input"):
            self._inside.append(tag)
        if tag == "span" and "title" in given:
            self.texts.append("")
            self.labels.append(given.get("data-label", ""))

    def handle_endtag(self, tag: str) -> None:
        assert self._inside.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._inside[-2:] == ["pre", "span"]:
            self.texts[-1] += data


def page_of(one: ScoredText) -> str:
    return "".join(trace_page.render([one], "title"))


def block(source: str, name: str) -> Any:
    return json.loads(re.findall(f'<script type="application/json" id="{name}">(.*)</script>', source)[0])


def test_the_page_says_the_text_and_the_numbers() -> None:
    source = page_of(reading(PIECES))
    parsed = Parsed(source)
    assert "".join(parsed.texts) == "The cat sat日\n\tx<b>"
    assert parsed.texts[3:5] == ["", "日"]
    assert parsed.labels[3] == "⟨E6⟩⟨97⟩"
    assert parsed.labels[-1] == "next"
    assert 'title="1.00 bits, rank 2\n60.7% ·cat\n22.3% ·sat\n8.2% ⟨E6⟩⟨97⟩"' in source
    assert "default-src &#x27;none&#x27;" in source or "default-src 'none'" in source


def test_the_page_read_back_gives_the_numbers_of_the_json_lines() -> None:
    source = page_of(reading(PIECES))
    rows, words = block(source, "rows"), block(source, "words")
    found = [json.loads(line) for line in records.json_lines(reading(PIECES))]
    tokens, following = found[1:-2], found[-2]
    assert len(rows) == len(tokens) + 1
    for row, token in zip(rows, tokens, strict=False):
        assert row[0] == token["id"]
        assert words[str(row[0])] == visible(bytes(token["bytes"]))
        if token["logprob"] is None:
            assert row == [token["id"]]
            continue
        assert row[1:4] == [round(token["logprob"], DIGITS), token["rank"], round(token["entropy"], DIGITS)]
        assert row[4] == [number for id, p in token["top"] for number in (id, round(p, DIGITS))]
    assert rows[-1][4] == [number for id, p in following["top"] for number in (id, round(p, DIGITS))]


def test_500_hostile_strings_make_no_element() -> None:
    pieces = strings()
    one = reading(pieces, name=pieces[1], model=pieces[2], dtype=pieces[3])
    source = "".join(trace_page.render([one], pieces[0]))
    parsed = Parsed(source)
    assert set(parsed.tags) <= OURS
    assert parsed.tags.count("script") == 3
    assert len(parsed.texts) == len(pieces) + 1
    expected = [clean(piece.encode("utf-8", "surrogatepass").decode("utf-8", "replace")) for piece in pieces]
    assert "".join(parsed.texts) == "".join(expected)
    assert block(source, "words")
    data = re.findall('<script type="application/json" id="[a-z]+">(.*)</script>', source)
    assert len(data) == 2
    assert not set("<>&") & set("".join(data)), "no parser of HTML sees more than text"
    assert source == clean(source)
    tree = ElementTree.fromstring("".join(strip.render([reading(pieces, name=pieces[1], model=pieces[2])])))
    tags = {element.tag.removeprefix("{http://www.w3.org/2000/svg}") for element in tree.iter()}
    assert tags <= {"svg", "rect", "text", "title", "path"}


def test_a_token_costs_at_most_250_bytes() -> None:
    pieces = ["word", " of", " a", " text", " that", " goes", " on", ".\n"] * 250
    few, many = (len(page_of(reading(part, top_k=5))) for part in (pieces[:1000], pieces))
    assert (many - few) / 1000 <= 250


def test_the_picture_is_readable_without_colour() -> None:
    source = "".join(strip.render([reading(["a", "bb", "\n", "c" * 200])]))
    tree = ElementTree.fromstring(source)
    space = "{http://www.w3.org/2000/svg}"
    bars = [float(one.get("height", "0")) for one in tree.iter(f"{space}rect") if one.get("fill") is None]
    assert bars[:2] == pytest.approx([10 / 12, 20 / 12], abs=0.06)  # of one and of two bits
    shown = "".join("".join(one.itertext()) for one in tree.iter(f"{space}text"))
    assert shown.count("c") >= 200
    width = float(tree.get("width", "0"))
    for one in tree.iter(f"{space}text"):
        assert float(one.get("x", "0")) + float(one.get("textLength", "8")) <= width


def test_csv_has_a_row_for_each_token() -> None:
    lines = "".join(records.csv_lines([reading(PIECES, name="a.txt")], 2))
    rows = list(csv.DictReader(io.StringIO(lines)))
    assert [row["token"] for row in rows] == [
        visible(piece if isinstance(piece, bytes) else piece.encode()) for piece in PIECES
    ]
    assert rows[0]["logprob"] == rows[0]["top1_id"] == ""
    assert float(rows[2]["surprisal_bits"]) == pytest.approx(2.0)
    assert (rows[2]["file"], rows[2]["top2_id"], rows[2]["top2_token"]) == ("a.txt", "3", "⟨E6⟩⟨97⟩")
    assert bytes.fromhex(rows[3]["bytes"]) == b"\xe6\x97"
    for row in rows[1:]:
        assert float(row["entropy_bits"]) == pytest.approx(float(row["entropy"]) / math.log(2))


def test_json_lines_end_with_the_sums() -> None:
    trace = trace_of(PIECES)
    lines = records.json_lines(ScoredText(trace, "", spelled(PIECES)))
    meta, *tokens, following, summary = [json.loads(line) for line in lines]
    assert meta["roles"] == ["text"]
    assert len(meta["text_sha256"]) == 64
    assert tokens[1]["top_text"] == [" cat", " sat", "\ufffd"]
    assert following["top_text"][0] == "The"
    assert summary["summary"] is True
    assert (summary["tokens"], summary["scored"]) == (8, 7)
    assert (summary["nll"], summary["ppl"]) == (trace.nll(), trace.ppl())
    assert summary["bits_per_byte"] == trace.bits_per_byte()
    assert summary["by_role"]["text"]["nll"] == trace.nll()
    assert summary["bits"] == pytest.approx(trace.nll() / math.log(2))
    for token in [*tokens[1:], following]:
        assert token["entropy_bits"] == pytest.approx(token["entropy"] / math.log(2))


def test_the_table_has_probabilities_and_one_unit() -> None:
    head, *lines = table.render(reading(PIECES), 100)
    assert head.split() == ["#", "token", "bytes", "prob", "surprisal", "rank", "entropy"]
    token = next(token for token in reading(PIECES) if token.index == 2)
    assert token.logprob is not None
    assert token.entropy is not None
    (line,) = [line for line in lines if line.startswith(" 2 ")]
    shown = f"{math.exp(token.logprob):.1%} {-token.logprob / math.log(2):.2f} bit "
    assert " ".join(line.split()).endswith(f"{shown}{token.rank} {token.entropy / math.log(2):.2f} bit")
    assert "nat" not in lines[-1]
    assert f"{trace_of(PIECES).nll() / math.log(2):.2f} bits" in lines[-1]


def test_the_table_in_nats() -> None:
    head, *lines = table.render(reading(PIECES), 100, unit="nat")
    assert head.split() == ["#", "token", "bytes", "prob", "logprob", "rank", "entropy"]
    token = next(token for token in reading(PIECES) if token.index == 2)
    (line,) = [line for line in lines if line.startswith(" 2 ")]
    shown = f"25.0% {token.logprob:.3f} {token.rank} {token.entropy:.2f} nat"
    assert " ".join(line.split()).endswith(shown)
    assert not any("bit" in line for line in lines)
    sums = trace_of(PIECES)
    expected = f"{sums.nll():.2f} nats, perplexity {sums.ppl():.2f}, {sums.bits_per_byte() * math.log(2):.3f}"
    assert lines[-1].endswith(f"{expected} nats/byte")


def test_a_newline_is_marked_where_it_is() -> None:
    source = page_of(reading(["a", "b\n", "\n\n", "c\nd"]))
    assert '>b<i class="newline"></i>\n</span>' in source
    assert '><i class="newline"></i>\n<i class="newline"></i>\n</span>' in source
    assert '>c<i class="newline"></i>\nd</span>' in source


def test_sums_of_tokens_without_text_have_no_bits_per_byte() -> None:
    worst = TokenScore(0, 1, b"", "", (0, 0), "special", -1.0, 2, 1.0, None)
    (line,) = list(by_line.table([by_line.Line("", 1, (0, 0), "", 1, 1.0, 0, worst)], 80))[1:]
    assert line.split()[:3] == ["1", "1.4", "–"]
    summary = Summary(("special",))
    for number in range(3):
        one = TokenScore(number, 1, b"", "", (0, 0), "special", -1.0 if number else None, 2, 1.0, None)
        summary.add(one)
    assert summary.line() == "3 tokens, 2 scored: 2.89 bits, perplexity 2.72"


def as_csv(lines: list[by_line.Line]) -> Iterator[str]:
    return by_line.render(lines, "csv", lambda _: iter(()), by_line.record, by_line.COLUMNS)


def test_sums_by_line() -> None:
    pieces = ["a", "b\n", "\n", "c", "d\ne", "f\n", "g"]
    lines = list(by_line.lines_of(reading(pieces)))
    assert [(line.number, line.text, line.tokens) for line in lines] == [
        (1, "ab", 1),
        (2, "", 1),
        (3, "cd", 2),
        (4, "ef", 1),
        (5, "g", 1),
    ]
    assert [line.bits for line in lines] == pytest.approx([1, 2, 3 + 4, 5, 6])
    assert [line.worst.id for line in lines] == [1, 2, 4, 5, 6]
    assert sum(line.bits for line in lines) == pytest.approx(sum(range(1, 7)))
    first = list(by_line.chosen(lines, "bits", 2))
    assert [line.number for line in first] == [3, 5]
    assert [line.number for line in by_line.chosen(lines, "line", 2)] == [1, 2]
    per_byte = [line.number for line in by_line.chosen(lines, "bits-per-byte", None)]
    assert per_byte == sorted(range(1, 6), key=lambda n: (-lines[n - 1].bits_per_byte, n))
    record = by_line.record(lines[2])
    assert (record["line"], record["worst"]["token"], record["text"]) == (3, "d\ne", "cd")
    assert record["span"] == (4, 7)
    rows = list(csv.DictReader(io.StringIO("".join(as_csv(lines)))))
    assert [row["line"] for row in rows] == list("12345")
    nats = list(by_line.table(lines, 80, "nat"))
    assert nats[0].split()[:3] == ["line", "nats", "n/byte"]
    assert nats[3].split()[:3] == ["3", "4.9", "1.21"]  # 7 bits in 4 bytes
    assert nats[3].split()[4] == "2.8"
    shown = list(by_line.table(lines, 80))
    assert shown[3].split()[:3] == ["3", "7.0", "1.75"]
    assert len(shown) == 6
    assert "██████████" in shown[3]
    wide = list(by_line.lines_of(reading(["x", "日本語" * 40 + "\t\x1b[31m\n", "b"], name="a/long/name.txt")))
    other = list(by_line.lines_of(reading(["y", "z\n"], name="b.txt")))
    for width in (40, 59, 60, 75, 76, 100):
        drawn = list(by_line.table(wide + other, width))
        assert max(map(cell_width, drawn)) <= width
        assert "\x1b" not in "".join(drawn)


def test_the_sums_of_lines_are_those_of_the_text() -> None:
    text = [f"{n % 7}\n" if n % 5 == 0 else f"w{n}" for n in range(300)]
    one = reading(text)
    total = math.fsum(line.nll for line in by_line.lines_of(one))
    assert total == pytest.approx(one.summary.counted.nll, rel=1e-12)


def test_the_table_shows_what_was_looked_up() -> None:
    first, whole = -math.log(2), -2 * math.log(2)
    seen: list[list[int]] = []

    class Given(Strings):
        def __init__(self) -> None:
            """Without an engine."""

        def watch(
            self, tokens: Iterable[TokenScore], before: Sequence[int] = ()
        ) -> Iterator[tuple[TokenScore, Sequence[Found]]]:
            yield from ((token, [Found(" Lyon\n", (1, 2), first, 7, None)]) for token in tokens)

        def after(self, ids: Sequence[int]) -> list[Found]:
            seen.append(list(ids))
            return [Found(" Lyon\n", (1, 2), first, 7, whole)]

    lines = list(table.render(ScoredText(trace_of(PIECES), "", spelled(PIECES), Given(), [99]), 80))
    assert seen == [[99, *range(len(PIECES))]]
    shown = [line.split() for line in lines if "·Lyon⏎" in line]
    assert shown[0] == [
        "?",
        "50.0%",
        "1.00",
        "bit",
        "rank",
        "7",
        "·Lyon⏎",
        "(the",
        "first",
        "of",
        "2",
        "tokens)",
    ]
    assert shown[-1] == ["?", "25.0%", "2.00", "bit", "rank", "7", "·Lyon⏎", "(2", "tokens)"]
    assert len(shown) == len(PIECES) + 1


def test_a_looked_up_string_has_the_probability_of_the_logits() -> None:
    import numpy as np

    from ropechat.engine.engine import Engine

    engine = Engine.load("builtin", threads=1)
    text = "The capital of France is"
    ids = engine.tokenizer.encode(text)
    for found in look_up(engine, ids, [" Paris", " Lyon", "."]):
        assert engine.tokenizer.decode(list(found.ids)) == found.text
        logits = engine.logits([*ids, *found.ids]).astype(np.float64)[len(ids) - 1 :]
        total = 0.0
        for row, id in zip(logits, found.ids, strict=False):
            top = row.max()
            total += row[id] - top - math.log(math.fsum(np.exp(row - top)))
        assert found.logprob == pytest.approx(total, abs=1e-12)
        assert found.rank == 1 + int((logits[0] > logits[0][found.ids[0]]).sum())


def test_a_page_names_the_number_of_its_first_token() -> None:
    tokens = list(reading(PIECES))[2:]
    behind = RecordedDraws(tuple(tokens), dict(reading(PIECES).meta), None, {})
    source = "".join(trace_page.render([ScoredText(behind, "", spelled(PIECES))], "title"))
    assert '<pre class="tokens" data-first="2">' in source
    assert '<pre class="tokens" data-first="0">' in page_of(reading(PIECES))
