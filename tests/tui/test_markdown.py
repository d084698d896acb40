"""Markdown as rows: right whatever the text, the same however it arrives, and cheap to go on with."""

import random

import pytest
from reading import DOCUMENT
from rich.cells import cell_len

from ropechat.tui.render import block_layout as layout
from ropechat.tui.render.blocks import to_display
from ropechat.tui.render.markdown import MarkdownText
from ropechat.util.markdown import inline as inline_module
from ropechat.util.markdown.spans import StyledSpan

PARTS = [
    "word ", "longerword", "*", "**", "`", "```\n", "~~~py\n", "\n", "\n\n", "- ", "  - ", "1. ", "> ", "# ",
    "| a | b |\n", 
    "|--|:-:|\n", "[x](http://y)", "![", "](", "<b>", "&amp;", "&#8238;", "\\", "---\n", "===\n", "你好",
    "👩\u200d👧", "e\u0301", "    ", "_a_", "~~s~~", "***\n", "|", "x" * 30, "def f(): '''\n",
    "\\(", "\\)", "\\[x\\]",
]  # fmt: skip


def rows(text: str, width: int = 40) -> list[str]:
    prose = MarkdownText(text, width)
    prose.close()
    return ["".join(piece.text for piece in prose.pieces(row)).rstrip() for row in range(prose.count)]


def pieces(prose: MarkdownText) -> list[tuple[StyledSpan, ...]]:
    return [tuple(prose.pieces(row)) for row in range(prose.count)]


def offsets(prose: MarkdownText) -> list[int]:
    return [prose.offset(row) for row in range(prose.count)]


def look(text: str, wanted: str) -> str:
    """The look of the piece that holds a text."""
    prose = MarkdownText(text, 80)
    prose.close()
    return next(piece.look for row in pieces(prose) for piece in row if wanted in piece.text)


def fuzz(seed: int) -> tuple[str, int, random.Random]:
    draw = random.Random(seed)
    text = to_display("".join(draw.choice(PARTS) for _ in range(draw.randrange(2, 70))))
    return text, draw.choice([8, 13, 21, 40, 80]), draw


def test_blocks() -> None:
    assert rows("# One\n\ntext\nnext") == ["One", "", "text", "next"]
    assert rows("Title\n===\ntext") == ["Title", "text"]
    assert rows("a\n\n***\n\nb") == ["a", "", "─" * 40, "", "b"]
    assert rows("- a\n- b\n  - c\n\n    d\n* e") == ["• a", "• b", "  • c", "", "    d", "• e"]
    assert rows("7. seven\n8. eight") == ["7. seven", "8. eight"]
    assert rows("> a\n> b\n\nc") == ["▎ a", "▎ b", "", "c"]
    assert rows("a\n\n> b\n>\n> c") == ["a", "", "▎ b", "▎", "▎ c"]
    assert rows("- a\n  > b") == ["• a", "  ▎ b"]
    assert rows("    code\n\n      more\ntext") == ["  code", "", "    more", "", "text"]


def test_what_is_no_list_stays_text() -> None:
    assert rows("It was\n2024. A year.") == ["It was", "2024. A year."]
    assert rows("-no\n*also not*") == ["-no", "also not"]
    assert rows("1.5 is a number") == ["1.5 is a number"]


def test_inline() -> None:
    text = "a **b** `c *d*` ~~e~~ \\*f\\* <i>g</i> a_b_c"
    assert rows(text) == ["a b c *d* e *f* <i>g</i> a_b_c"]
    assert look("a **b *c***", "c") == "strong em"
    assert look("`x`", "x") == "code"
    assert look("two **lines\nof bold** end", "of bold") == "strong"


def test_maths_keeps_its_signs() -> None:
    assert rows(r"so \(a_1^2 + b_1^2\) is \[c*d*e\].", 80) == [r"so \(a_1^2 + b_1^2\) is \[c*d*e\]."]
    assert look(r"so \(a_1\)", "a_1") == "code"
    assert rows(r"a \(b", 80) == ["a (b"]  # no end: an escaped bracket


def test_links_show_where_they_lead() -> None:
    assert rows("[bank](http://evil.example)", 60) == ["bank (http://evil.example)"]
    assert rows("<http://a.example>", 60) == ["http://a.example"]
    assert rows("[x](javascript:alert)", 60) == ["[x](javascript:alert)"]
    assert rows("![cat](c.png)", 60) == ["cat (c.png)"]


def test_entities_cannot_smuggle_controls() -> None:
    joined = "\n".join(rows("&#27;[31m &#8238;x &#155; &#x202e; &lt;b&gt;", 80))
    assert "<b>" in joined
    assert not any(ord(character) in (0x1B, 0x9B, 0x202E) for character in joined)


def test_tables_fit() -> None:
    table = "| name | n |\n|:--|--:|\n| a | 1 |\n| *bb* | 22 |"
    assert rows(table) == ["name │  n", "─────┼───", "a    │  1", "bb   │ 22"]
    wide = "| k | v |\n|---|---|\n| key | " + "word " * 9 + "|"
    assert rows(wide, 24)[2:] == ["key │ word word word", "    │ word word word", "    │ word word word"]
    many = "| aa | bb | cc |\n|--|--|--|\n| one | two | three |"
    assert rows(many, 14) == ["aa: one", "bb: two", "cc: three", "────────"]
    assert rows("| a | b |\nno table") == ["| a | b |", "no table"]
    assert rows("a\n\n| h |\n|---|\n| x |\n\nb") == ["a", "", "h", "─", "x", "", "b"]


def test_code_is_coloured_and_long_lines_go_on() -> None:
    text = "```python\ndef f():\n    return 'x'\n```"
    assert look(text, "def") == "block keyword"
    assert look(text, "'x'") == "block string"
    assert look("```nosuchlanguage\ndef\n```", "def") == "block"
    label = " " * 12 + "⧉ copy"
    assert rows("```\n" + "x" * 25 + "\n```", 20) == [label, "  " + "x" * 16, "↳ " + "x" * 9]
    assert rows("```\n**not bold**")[1:] == ["  **not bold**"]
    assert rows("```python title\nx\n```", 20) == [" " * 5 + "python ⧉ copy", "  x"]
    assert rows("```a-long-name\nx\n```", 14) == ["", "  x"]
    assert rows("    indented", 20) == ["  indented"]


def test_diffs_have_colours() -> None:
    text = "```diff\n@@ -1 +1 @@\n-old\n same\n+new\n```"
    assert look(text, "-old") == "block error"
    assert look(text, "+new") == "block string"
    assert look(text, " same") == "block"


def test_headings_differ() -> None:
    looks = [look(f"{'#' * level} title", "title") for level in (1, 2, 3)]
    assert looks == ["heading major first", "heading major", "heading"]


def test_boxes_of_tasks() -> None:
    assert rows("- [ ] open\n- [x] *done*\n- [X] too\n- [y] none\n- [ ]no\n1. [ ] a number") == [
        *("☐ open", "☑ done", "☑ too", "• [y] none", "• [ ]no", "1. [ ] a number"),
    ]
    assert look("- [x] *done*", "done") == "em"


def test_colours_of_a_string_over_many_lines() -> None:
    text = "```python\nx = '''\n" + "inside = 1\n" * 150 + "'''\ndone = 1\n```"
    assert look(text, "inside") == "block string"
    assert look(text, "done") == "block"


@pytest.mark.parametrize("width", [12, 24, 60])
def test_places_are_those_of_the_source(width: int) -> None:
    prose = MarkdownText(DOCUMENT, width)
    prose.close()
    for row in pieces(prose):
        for text, look, at in row:
            exact = at < 0 or look in ("marker", "url") or "&" in DOCUMENT[at : at + 1] or "|" in text
            assert exact or DOCUMENT[at : at + len(text)] == text, (text, at)


@pytest.mark.parametrize("text", ["`\n`*c ", "d`\n `\n e f", "`` a`b ``c", "` `` `x", "a `b\nc` d"])
def test_places_around_code(text: str) -> None:
    prose = MarkdownText(text, 40)
    prose.close()
    for piece in (piece for row in pieces(prose) for piece in row):
        assert text[piece.at : piece.at + len(piece.text)].replace("\n", " ") == piece.text, piece


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(150))
def test_growing_equals_laying_out_at_once(seed: int) -> None:
    text, width, draw = fuzz(seed)
    if seed < 10:
        text, width = DOCUMENT, (8, 15, 40, 60, 100)[seed % 5]
    grown = MarkdownText("", width)
    at = 0
    while at < len(text):
        step = draw.randrange(1, 9)
        before = pieces(grown)
        changed = grown.append(text[at : at + step])
        assert pieces(grown)[:changed] == before[:changed]
        if draw.random() < 0.2:
            assert 0 <= grown.row_at(draw.randrange(len(text))) < grown.count
        at += step
    grown.close()
    whole = MarkdownText(text, width)
    whole.close()
    assert pieces(grown) == pieces(whole)
    assert [grown.offset(row) for row in range(grown.count)] == [
        whole.offset(row) for row in range(whole.count)
    ]


@pytest.mark.parametrize("seed", range(150))
def test_rows_fit_and_places_never_go_back(seed: int) -> None:
    text, width, _ = fuzz(1000 + seed)
    prose = MarkdownText(text, width)
    prose.close()
    assert offsets(prose) == sorted(offsets(prose))
    for row in pieces(prose):
        deep = sum(cell_len(piece.text) for piece in row if piece.look in ("quote", "marker", ""))
        assert sum(cell_len(piece.text) for piece in row) <= max(width, deep + 8), (text, row)


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    ["- item *a* of it\n", "| a | `b` |\n", "text of a poem *so*\n", "> quoted *words*\n", "word *and* "],
)
def test_a_long_block_costs_no_more_per_line(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = 0
    original = inline_module._Walk.__init__

    def counting(self: object, lines: list[tuple[str, int]], look: str) -> None:
        nonlocal parsed
        parsed += sum(len(text) for text, _ in lines)
        original(self, lines, look)  # type: ignore[arg-type]

    monkeypatch.setattr(inline_module._Walk, "__init__", counting)
    prose = MarkdownText("| x | y |\n|---|---|\n" if line.startswith("|") else "", 60)

    def cost(lines: int) -> int:
        nonlocal parsed
        parsed = 0
        for _ in range(lines):
            prose.append(line)
        return parsed

    first, _, later = cost(100), cost(200), cost(100)
    assert later < 2 * first + 20 * inline_module.MAX_PARSED
    assert later < 100 * 2 * max(inline_module.MAX_PARSED, layout.MAX_GROUP_LINES * len(line))


def test_hostile_text_ends() -> None:
    for text in (
        "[" * 5000,
        "![" * 2000,
        "*a " * 3000,
        ">" * 3000,
        "- " * 2000,
        "`" * 4001,
        "|" * 4000,
        "\\" * 4000,
    ):
        prose = MarkdownText(text, 80)
        prose.close()
        assert prose.count
