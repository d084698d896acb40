"""The RoPE view in each format: what fits a terminal, what files hold, and that nothing in them acts."""

import csv
import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from golden_cases import GOLDEN

from ropechat.inspector.rope import output, term
from ropechat.inspector.rope.blocks import Curve, Heat, Note, Plot, Table, View
from ropechat.inspector.rope.report import CONFIG_VIEWS, ViewOptions, config_views
from ropechat.util.width import cell_width

HOSTILE = "a<script>x</script>&\"'\x1b[31m\n\u202e"
SMALL = ViewOptions(max_distance=300)


@pytest.fixture(scope="module")
def views() -> list[View]:
    return list(config_views(GOLDEN / "gemma3_text_old", CONFIG_VIEWS, SMALL))


def test_every_view_is_there(views: list[View]) -> None:
    assert [view.name for view in views] == ["model", *CONFIG_VIEWS]
    for name in (
        "gpt2_old",
        "dtransformer_rope",
        "smollm3_old",
        "llama_yarn_new",
        "deepseek_v2_old",
        "phi_old",
    ):
        assert len(list(config_views(GOLDEN / name, CONFIG_VIEWS, SMALL))) == 1 + len(CONFIG_VIEWS)


@pytest.mark.parametrize("width", [40, 80, 132])
def test_lines_fit_the_terminal(views: list[View], width: int) -> None:
    lines = list(term.render(views, width))
    assert max(map(cell_width, lines)) <= width
    assert not any("\x1b" in line for line in lines)
    has_plot = any("└" in line for line in lines)
    assert has_plot == (width >= term.NARROW)


def test_colour_changes_no_width(views: list[View]) -> None:
    lines = list(term.render(views, 80, color=True))
    assert any("\x1b[" in line for line in lines)
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    assert max(map(cell_width, plain)) <= 80


def test_a_curve_is_where_its_values_are() -> None:
    x = np.arange(0.0, 101.0)
    rising = Plot("p", "x", "y", (Curve("c", x, x),))
    lines = list(term.block_lines(rising, 80))
    body = [line.split("│", 1)[1].ljust(71) for line in lines if "│" in line]
    assert body[-1][0] not in " "
    assert body[0][-1] not in " "
    assert not body[0][:40].strip()
    assert not body[-1][40:].strip()
    assert "100 │" in next(line for line in lines if "│" in line)


def test_curves_differ_without_colour() -> None:
    x = np.arange(0.0, 101.0)
    one, other = (
        [line for line in term.block_lines(Plot("p", "x", "y", curves), 80) if "│" in line]
        for curves in ((Curve("a", x, 0 * x),), (Curve("b", x[:1], 0 * x[:1]), Curve("a", x, 0 * x)))
    )
    assert sum(map(len, map(str.split, one))) < sum(map(len, map(str.split, other)))


def test_equal_values_and_empty_curves_are_drawn() -> None:
    empty = np.zeros(0)
    for plot in (
        Plot("p", "x", "y", (Curve("c", np.ones(3), np.ones(3)),)),
        Plot("p", "x", "y", (Curve("c", empty, empty),)),
        Plot("p", "x", "y", (Curve("c", np.ones(1), np.ones(1)),), x_log=True, y_log=True),
    ):
        assert list(term.block_lines(plot, 80))
        assert "".join(output.svg_text([View("v", "t", (plot,))], "t"))


def test_json_is_strict_and_whole(views: list[View]) -> None:
    text = "".join(output.json_text(views, "t"))

    def refuse(name: str) -> None:
        raise AssertionError(name)

    found = json.loads(text, parse_constant=refuse)
    assert [view["name"] for view in found["views"]] == ["model", *CONFIG_VIEWS]
    pairs = [
        block
        for block in found["views"][1]["blocks"]
        if block["kind"] == "table" and block["name"].startswith("pairs")
    ]
    assert len(pairs) == 2
    for table in pairs:
        assert len(table["rows"]) == 8
        assert all(len(row) == len(table["columns"]) for row in table["rows"])


def test_csv_has_a_line_per_value(views: list[View]) -> None:
    text = "".join(output.csv_text(views, "t"))
    rows = list(csv.reader(text.splitlines()))
    assert rows[0] == list(output.CSV_COLUMNS)
    assert all(len(row) == 5 for row in rows)
    keys = [tuple(row[:4]) for row in rows[1:]]
    assert len(set(keys)) == len(keys)
    turns = [float(row[4]) for row in rows if row[0] == "bands" and row[3] == "turns"]
    assert turns
    assert all(np.isfinite(turns))


def hostile_view() -> View:
    x = np.arange(3.0)
    return View(
        "v",
        HOSTILE,
        (
            Note(HOSTILE),
            Table(HOSTILE, (HOSTILE, "b"), ((HOSTILE, 1.0),)),
            Plot(HOSTILE, HOSTILE, HOSTILE, (Curve(HOSTILE, x, x), Curve("b", x, x))),
            Heat(HOSTILE, HOSTILE, HOSTILE, x, x, np.ones((3, 3)), 0.0, 1.0),
        ),
    )


def test_svg_is_a_picture_without_script(views: list[View]) -> None:
    for some in (views, [hostile_view()]):
        text = "".join(output.svg_text(some, HOSTILE))
        root = ET.fromstring(text)
        tags = {element.tag.rpartition("}")[2] for element in root.iter()}
        assert tags <= {"svg", "style", "g", "path", "polyline", "text"}
        attributes = {name for element in root.iter() for name in element.attrib}
        assert not any(name.startswith("on") or "href" in name for name in attributes)
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_html_escapes_and_requests_nothing(views: list[View]) -> None:
    text = "".join(output.html_text([*views, hostile_view()], HOSTILE))
    assert "<script>x" not in text
    assert "\x1b" not in text
    assert "default-src 'none'" in text
    assert not re.search(r'\s(src|href|style)="', text)
    assert text.count("<svg") == text.count("</svg>") > 5


def test_a_terminal_gets_no_control_characters() -> None:
    for width in (40, 80):
        assert not any("\x1b" in line or "\u202e" in line for line in term.render([hostile_view()], width))
