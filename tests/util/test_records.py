"""Records as JSON lines, CSV and tables."""

import csv
import io
import json
import math

from ropechat.util.records import ByteValues, Column, Csv, Table, TokenText, bar, cells, json_line, number
from ropechat.util.width import cell_width

RECORD = {
    "i": 3,
    "token": TokenText(b" \xe6"),
    "bytes": ByteValues(b" \xe6"),
    "span": (1, 3),
    "kl": math.inf,
    "same": True,
    "worst": {"bits": 2.5},
    "a": {"rank": 1, "top": [[7, math.nan]]},
    "text": "\x1b[2J",
}


def test_json_has_the_text_and_no_infinite_number() -> None:
    assert json.loads(json_line(RECORD)) == {
        **RECORD,
        "token": " \ufffd",
        "bytes": [32, 0xE6],
        "span": [1, 3],
        "kl": None,
        "a": {"rank": 1, "top": [[7, None]]},
    }


def test_cells_are_flat_and_visible() -> None:
    found = cells(RECORD)
    assert (found["token"], found["bytes"], found["start"], found["end"]) == ("·⟨E6⟩", "20e6", 1, 3)
    assert (found["worst_bits"], found["rank_a"], found["same"]) == (2.5, 1, 1)
    assert "\x1b" not in found["text"]


def test_csv_quotes_line_ends_and_leaves_out_what_a_row_lacks() -> None:
    for end in ("\n", "\r\n"):
        out = Csv(["a", "b", "c"], end=end)
        line = out.line({"a": "x\ry", "c": '"', "z": 1})
        assert line.endswith(f',,""""{end}')
        rows = list(csv.reader(io.StringIO(out.head + line, newline="")))
        assert rows == [["a", "b", "c"], ["x\ry", "", '"']]


def test_a_table_aligns_wide_text_and_never_cuts_a_number() -> None:
    out = Table(
        Column("#", 3, lambda row: str(row[0])),
        None,
        Column("name", -6, lambda row: row[1]),
        Column("rest", 0, lambda row: row[2]),
    )
    assert out.head == "  #  name    rest"
    assert out.line((7, "日本語語", "x")) == "  7  日本…   x"
    assert out.line((12345, "a", "")) == "12345  a       "


def test_numbers_and_bars() -> None:
    assert [number(value, ".1f") for value in (None, math.nan, math.inf, -math.inf, 1.25)] == [
        *("–", "–", "∞", "-∞", "1.2"),
    ]
    assert [bar(share, 2) for share in (0.0, 0.5, 1.0, 9.0, math.nan)] == ["  ", "█ ", "██", "██", "  "]
    assert all(cell_width(bar(at / 100, 7)) == 7 for at in range(101))
