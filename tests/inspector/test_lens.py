"""The heat map of the lens and the table of heads: layout, records, hostile tokens."""

import json
import math
import re
from typing import Any

import numpy as np
import pytest

from ropechat.errors import CancelledError, MemoryLimitError, RequestError
from ropechat.inspector import attention, attention_map, lens, lens_page
from ropechat.inspector.spec import InspectWatcher
from ropechat.trace import LensRow
from ropechat.util.width import cell_width

NAMES = {0: b" the", 1: b"\x1b[31m", 2: b"\xff\xfe", 3: "日本".encode(), 4: b"\n", 5: b""}
IDS = [0, 1, 2, 3, 4]


def rows(layers: list[int]) -> list[LensRow]:
    return [
        LensRow(
            i,
            layer,
            None if i == 5 else 10**layer,
            None if i == 5 else -1.0 - layer,
            0.5,
            ((i % 6, -0.1), (0, -3.0)),
        )
        for i in range(1, 6)
        for layer in layers
    ]


def heat_map(layers: list[int], width: int, color: bool = False) -> list[str]:
    at = lens.layout(layers, len(IDS), width, color=color)
    return "".join(lens.table(rows(layers), IDS, NAMES.__getitem__, at)).splitlines()


@pytest.mark.parametrize("width", [30, 60, 80, 100, 160])
def test_the_heat_map_fits(width: int) -> None:
    layers = lens.layers_that_fit(range(6), len(IDS), width)
    assert layers[-1] == 5
    assert layers == sorted(set(layers))
    lines = heat_map(layers, width)
    assert len(lines) == 1 + 5 + 1
    assert all(cell_width(line) <= width for line in lines)
    assert not any(character in "".join(lines) for character in "\x1b\n")


def test_every_layer_is_shown_where_there_is_room() -> None:
    assert lens.layers_that_fit(range(4), 9, 100) == [0, 1, 2, 3]
    assert lens.layers_that_fit(range(32), 9, 100) == [0, 8, 16, 23, 31]
    assert lens.layers_that_fit(range(32), 9, 10) == [31]


def test_a_cell_is_the_best_token_and_the_rank_of_the_texts_token() -> None:
    header, *tokens, following, bits = heat_map([0, 2, 5], 100)
    assert header.split() == ["#", "token", "0", "2", "5"]
    assert tokens[2].split() == ["3", "日本", "日本", "1", "日本", "100", "日本", "100k"]
    assert following.split()[:2] == ["→", "next"]
    assert bits.split() == ["bits/token", *(f"{(1 + layer) / math.log(2):.2f}" for layer in (0, 2, 5))]


def test_colours_change_nothing_else() -> None:
    plain, painted = heat_map([0, 3], 80), heat_map([0, 3], 80, color=True)
    assert "\x1b[32m" in painted[1]
    stripped = [re.sub(r"\x1b\[\d+m", "", line).rstrip() for line in painted]
    assert stripped == plain


def test_lens_records_are_json() -> None:
    broken = LensRow(1, 0, 4000, -math.inf, math.nan, ((0, -math.inf),))
    first, *records = [
        json.loads(line) for line in lens.json_lines([broken], {"ids": IDS}, NAMES.__getitem__)
    ]
    assert (first["schema"], first["ids"], first["stage"]) == ("ropechat.lens/1", IDS, "raw")
    assert records == [
        {
            "i": 1,
            "layer": 0,
            "rank": 4000,
            "logprob": None,
            "entropy": None,
            "top": [[0, None]],
            "top_text": [" the"],
        }
    ]


def test_the_page_holds_no_element_of_a_token() -> None:
    names = dict.fromkeys(range(6), b'<script>alert("1")</script>\x1b]0;x\x07')
    html = "".join(lens_page.render(rows([0, 3]), IDS, [0, 3], "<b>title</b>", names.__getitem__, 9))
    plain = "".join(lens_page.render(rows([0, 3]), IDS, [0, 3], "title", lambda id: b"a", 9))
    assert re.findall(r"<[a-z/]+", html) == re.findall(r"<[a-z/]+", plain)
    assert "\x1b" not in html
    assert plain.count('<td class="t') == 5 * 2
    assert plain.count("entropy 0.72 bits") == 5 * 2


def found(learned: float = 0.0) -> dict[str, np.ndarray]:
    shape = (2, 3)
    return {
        "layers": np.array([0, 4]),
        "sink": np.full(shape, 0.25),
        "previous": np.full(shape, math.nan),
        "distance": np.arange(6.0).reshape(shape),
        "learned_sink": np.full(shape, learned),
        "mean": np.full((2, 3, 2), 0.5),
    }


def test_the_table_has_a_line_per_head() -> None:
    header, *lines = "".join(attention.table(found())).splitlines()
    assert header.split() == ["layer", "head", "sink", "previous", "distance"]
    assert [line.split()[:2] for line in lines] == [[str(n), str(h)] for n in (0, 4) for h in range(3)]
    assert lines[5].split() == ["4", "2", "25.0%", "███", "–", "5.0"]
    assert all(len(line) <= 80 for line in (header, *lines))
    header, *lines = "".join(attention.table(found(0.125))).splitlines()
    assert header.endswith("learned sink")
    assert lines[0].endswith("12.5%")


def test_attention_records_are_json() -> None:
    first, *records = [json.loads(line) for line in attention.json_lines(found(), {"ids": IDS})]
    assert (first["schema"], len(records)) == ("ropechat.attention/1", 6)
    assert records[5] == {
        "layer": 4,
        "head": 2,
        "sink": 0.25,
        "previous": None,
        "distance": 5.0,
        "learned_sink": 0.0,
        "mean": [0.5, 0.5],
    }


def mapped(count: int, width: int, **options: Any) -> list[str]:
    weights = [[1.0 / (at + 1)] * count for at in range(count)]
    ids = [at % 6 for at in range(count)]
    return "".join(attention_map.lines(weights, ids, NAMES.__getitem__, width, **options)).splitlines()


def test_the_map_of_a_head() -> None:
    weights = [[1.0, 9.0, 9.0], [0.04, 0.96, 9.0], [0.6, 0.0, 0.4]]
    shown = "".join(attention_map.lines(weights, [0, 3, 3], NAMES.__getitem__, 80)).splitlines()
    assert shown[0].startswith(" #  token         0    attends most to")
    assert shown[1].startswith(" 0  ·the          █    100% #0 ·the")
    assert shown[2].startswith(" 1  日本          ·█")
    assert shown[3].startswith(" 2  日本          ▓ ▓  ")
    assert re.search(r" 60% #0 ·the +40% #2 日本$", shown[3])
    assert shown[4] == "from · 1%  ░ 5%  ▒ 15%  ▓ 35%  █ 65%"


@pytest.mark.parametrize(("count", "width"), [(1, 30), (5, 30), (40, 60), (200, 100), (300, 160)])
def test_the_map_fits(count: int, width: int) -> None:
    shown = mapped(count, width)
    assert len(shown) == count + 2
    assert all(cell_width(line) <= width for line in shown)
    assert not any(character in "".join(shown) for character in "\x1b\n")
    grouped = re.search(r", (\d+) tokens in a column$", shown[-1])
    assert (grouped is not None) == (count >= 40)
    assert [re.sub(r"\x1b\[[\d;]+m", "", line) for line in mapped(count, width, color=True)] == shown


def test_the_map_as_records_and_page() -> None:
    weights = [[1.0, 0.0], [0.25, 0.75]]
    meta, *found = map(json.loads, attention_map.json_lines(weights, [0, 3], NAMES.__getitem__, {"layer": 1}))
    assert (meta["schema"], meta["layer"], meta["tokens"]) == (
        "ropechat.attention_map/1",
        1,
        [" the", "日本"],
    )
    assert found == [{"i": 0, "weights": [1.0]}, {"i": 1, "weights": [0.25, 0.75]}]
    names = dict.fromkeys(range(6), b'<script>alert("1")</script>\x1b]0;x\x07')
    html = "".join(attention_map.render(weights, [0, 3], names.__getitem__, "<b>title</b>"))
    plain = "".join(attention_map.render(weights, [0, 3], lambda id: b"a", "title"))
    assert re.findall(r"<[a-z/]+", html) == re.findall(r"<[a-z/]+", plain)
    assert re.findall(r'<td class="(t\d)" title="([^"]*)">', plain) == [
        *(("t9", "#0 a to #0 a: 100.0%"), ("t2", "#1 a to #0 a: 25.0%"), ("t7", "#1 a to #1 a: 75.0%")),
    ]
    with pytest.raises(RequestError, match="at most 256 tokens"):
        attention_map.check(257, "html")
    attention_map.check(257, "jsonl")
    with pytest.raises(MemoryLimitError, match="--attention-map: must be at most"):
        attention_map.check(20_000, "jsonl")


class Capturing:
    """An engine whose weights name their tokens. asked: the rows of each pass; most: until a cancel."""

    def __init__(self, watcher: Any, most: int = 10_000) -> None:
        self.asked: list[range] = []
        self.watcher, self.most = watcher, most

    def capture(self, ids: Any, layers: Any, heads: Any, *, rows: range, what: Any) -> dict[str, Any]:
        assert (layers, heads, what, rows.stop) == ([3], [1], ["attn_row"], len(ids))
        if len(ids) > self.most:
            self.watcher.is_over = True
            raise CancelledError("cancelled")
        self.asked.append(rows)
        weights = np.array([[[[1000 * row + at for at in range(len(ids))] for row in rows]]], np.float32)
        return {"attn_row": weights, "notes": ["a note"]}


class Stopping(InspectWatcher):
    def __init__(self, after: int = 10_000) -> None:
        self.looks: list[int] = []
        self.after, self.is_over = after, False

    def looked(self, tokens: int) -> None:
        self.looks.append(tokens)

    @property
    def is_stopped(self) -> bool:
        return self.is_over or self.looks[-1:] >= [self.after]


def test_a_map_is_computed_in_growing_beginnings_and_a_stop_keeps_the_complete_ones() -> None:
    watcher, ids = Stopping(), list(range(300))

    def compute(engine: Any, watcher: InspectWatcher = watcher) -> Any:
        return attention_map.compute(engine, ids, 3, 1, lambda: watcher.is_stopped, watcher.looked)

    weights, notes = compute(engine := Capturing(watcher))
    assert engine.asked == [range(64), range(64, 256), range(256, 300)]
    assert (len(weights), weights[299][7], weights[63][63], notes) == (300, 299_007, 63_063, ["a note"])
    assert watcher.looks == [64, 256, 300]
    assert len(compute(Capturing(watcher, 299))[0]) == 256, "within a pass"
    between = Stopping(64)
    assert len(compute(Capturing(between), between)[0]) == 64
    for most, listener in ((63, Stopping()), (299, InspectWatcher())):  # nothing yet; cancelled by others
        with pytest.raises(CancelledError):
            compute(Capturing(listener, most), listener)


def test_a_string_that_is_looked_up_has_a_rank_in_each_layer() -> None:
    asked = [row._replace(looked_up=((-1.0, 7 * 10**row.layer),)) for row in rows([0, 3])]
    at = lens.layout([0, 3], len(IDS), 80, color=False, strings=(" Rome",))
    shown = "".join(lens.table(asked, IDS, NAMES.__getitem__, at)).splitlines()
    assert len(shown) == 1 + 2 * 5 + 1
    assert shown[2].split() == ["?", "·Rome", "7", "7000"]
    assert shown[2].index("7000") == shown[1].index("1000")  # below the rank of the text's token
    record = lens.record(asked[1], NAMES.__getitem__, (" Rome",))
    assert record["lookup"] == {" Rome": {"first_logprob": -1.0, "rank": 7000}}
    page = "".join(lens_page.render(asked, IDS, [0, 3], "t", NAMES.__getitem__, 10_000, (" Rome",)))
    assert page.count('<tr class="asked">') == 5
    assert 'class="t0" title="surprisal 1.44 bit' in page  # the best token has no tint
    assert '<td class="t9" title="36.8%"><small>7,000</small></td>' in page


def test_a_lens_that_is_stopped_has_the_tokens_so_far() -> None:
    at = lens.layout([0, 3], len(IDS), 80, color=False)
    shown = "".join(lens.table(rows([0, 3])[:4], IDS, NAMES.__getitem__, at)).splitlines()
    assert len(shown) == 1 + 2 + 1
    assert shown[-1].split() == ["bits/token", "1.44", "5.77"]
