"""Wrapping: rows are right for any text, and growing gives the same rows as wrapping at once."""

import ast
import random
from itertools import pairwise
from pathlib import Path

import pytest
from rich.cells import cell_len

import ropechat
from ropechat.store.queries import Summary
from ropechat.tui.format.lists import chat_line, persona_line
from ropechat.tui.render.wrap import WrappedText, wrap
from ropechat.util.width import fit, graphemes

FAMILY = "👩\u200d👩\u200d👧"
ALPHABET = [
    "a",
    "bc",
    "word ",
    " ",
    "  ",
    "\n",
    "你",
    "好。",
    FAMILY,
    "e\u0301",
    "☺️",
    "👍🏽",
    "🇩🇪",
    "supercalifragil",
    "क्षि",
]


def rows(flow: WrappedText) -> list[str]:
    return [flow.row_text(row) for row in flow.rows]


def test_words_move_whole_and_blanks_hang() -> None:
    assert rows(WrappedText("the quick brown fox", 10)) == ["the quick ", "brown fox"]
    assert rows(WrappedText("ab    cd", 3)) == ["ab    ", "cd"]
    assert rows(WrappedText("", 10)) == [""]
    assert rows(WrappedText("a\n\nb\n", 10)) == ["a", "", "b", ""]


def test_words_longer_than_a_row_are_cut() -> None:
    assert rows(WrappedText("see abcdefghijklm ok", 5)) == ["see ", "abcde", "fghij", "klm ", "ok"]
    assert rows(WrappedText("    abcdefghij", 8)) == ["    abcd", "efghij"]  # an indent alone makes no row


def test_wide_characters_break_anywhere_but_not_before_a_full_stop() -> None:
    assert rows(WrappedText("你好世界", 5)) == ["你好", "世界"]
    assert rows(WrappedText("你好。", 5)) == ["你", "好。"]


def test_characters_are_never_split() -> None:
    assert rows(WrappedText(FAMILY * 3, 4)) == [FAMILY * 2, FAMILY]
    assert rows(WrappedText("e\u0301" * 5, 3)) == ["e\u0301" * 3, "e\u0301" * 2]
    assert rows(WrappedText("🇩🇪🇫🇷", 3)) == ["🇩🇪", "🇫🇷"]
    assert [span[:2] for span in graphemes("🇩🇪🇫🇷a")] == [(0, 2), (2, 4), (4, 5)]


@pytest.mark.parametrize("seed", range(60))
def test_growing_equals_wrapping_at_once(seed: int) -> None:
    draw = random.Random(seed)
    width = draw.choice([1, 2, 3, 5, 8, 13, 40])
    parts = [draw.choice(ALPHABET) for _ in range(draw.randrange(1, 120))]
    grown = WrappedText("", width)
    for part in parts:
        for character in part if draw.random() < 0.5 else [part]:  # tokens may end inside a character
            before = rows(grown)
            changed = grown.append(character)
            assert rows(grown)[:changed] == before[:changed]
    text = "".join(parts)
    whole = WrappedText(text, width)
    assert rows(grown) == rows(whole)
    assert grown.rows == whole.rows
    assert grown.text == text


@pytest.mark.parametrize("seed", range(60))
def test_a_beginning_has_the_rows_of_its_text_alone(seed: int) -> None:
    draw = random.Random(500 + seed)
    width = draw.choice([1, 2, 3, 5, 8, 13, 40])
    text = "".join(draw.choice(ALPHABET) for _ in range(draw.randrange(1, 120)))
    whole = WrappedText(text, width)
    before = rows(whole)
    for _ in range(20):
        length = draw.randint(0, len(text))
        begun = whole.beginning(length)
        assert begun.rows == WrappedText(text[:length], width).rows
        assert begun.text == text[:length]
        begun.append(text[length:])
        assert begun.rows == whole.rows
    assert rows(whole) == before


@pytest.mark.parametrize("seed", range(40))
def test_rows_tile_the_text_and_fit(seed: int) -> None:
    draw = random.Random(1000 + seed)
    width = draw.choice([2, 3, 5, 8, 13, 40])
    line = "".join(draw.choice(ALPHABET) for _ in range(80)).replace("\n", "")
    spans = wrap(line, 0, width)
    assert spans[0][0] == 0
    assert spans[-1][1] == len(line)
    assert all(left[1] == right[0] for left, right in pairwise(spans))
    starts = {start for start, _, _ in graphemes(line)} | {len(line)}
    for start, end in spans:
        assert start in starts
        assert cell_len(line[start:end].rstrip(" ")) <= width


def test_row_at_finds_the_row_of_each_character() -> None:
    flow = WrappedText("the quick brown fox\n\njumps over", 6)
    for number, row in enumerate(flow.rows):
        for offset in range(flow.offset(number), flow.offset(number) + row.end - row.start):
            assert flow.row_at(offset) == number


CLUSTERS = ["a", "日", "e\u0301", "☺\ufe0f", "👍🏽", "🇩🇪", "👨\u200d👩\u200d👧\u200d👦", "क्षि"]


def test_fitted_text_is_as_wide_as_the_screen_says() -> None:
    """Titles in lists are measured as Textual draws them: emoji of several characters too."""
    rng = random.Random(14)
    for _ in range(500):
        text = "".join(rng.choices(CLUSTERS, k=rng.randrange(30)))
        width = rng.randrange(1, 40)
        fitted = fit(text, width)
        assert cell_len(fitted) == width
        kept, cut, rest = fitted.partition("…")
        assert text.startswith(kept if cut else kept.rstrip(" "))
        if cut:
            assert len(kept) in [0, *(end for _, end, _ in graphemes(text))]
            assert rest in ("", " ")


def test_titles_stand_in_columns() -> None:
    for title in ("".join(CLUSTERS), "".join(CLUSTERS) * 9):
        assert cell_len(chat_line(Summary("c", title, 0.0, 0.0, 1, False), "", "", 40)[1][0]) == 40
        assert cell_len(persona_line(title, False, 24)[1][0]) == 24


def test_the_chat_has_one_measure_of_width() -> None:
    for file in (Path(ropechat.__file__).parent / "tui").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "ropechat.util.text":
                assert not {"cells", "fit"} & {alias.name for alias in node.names}, file
