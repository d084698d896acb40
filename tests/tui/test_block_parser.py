"""Markdown's blocks as markdown-it-py finds them, but for the differences that outline.py states."""

import random
import re
from typing import Any

import pytest
from markdown_it import MarkdownIt
from markdown_it.rules_block import table

from ropechat.tui.render.markdown import MarkdownText
from ropechat.util.markdown.blocks import BlockParser, MarkdownBlock, split_cells

Found = list[tuple[Any, ...]]  # path, kind, and what the block holds; see `blocks`
BLOCKS = MarkdownIt("commonmark").enable("table").disable(["html_block", "reference"])
TABLES_LAST = MarkdownIt("commonmark").disable(["html_block", "reference"])
TABLES_LAST.block.ruler.after("list", "table_last", table, {"alt": ["paragraph", "reference"]})
"""markdown-it looks for tables before quotes and lists; GitHub's parser looks for quotes and lists first."""

BEFORE = ["", "", "", "", "> ", "- ", "  ", "    ", "1. ", "2) ", "* ", "   ", ">", "> > ", "- - "]
LINES = [
    *("a", "a", "b c", "text:", "", "", "# h", "## h #", "---", "===", "***", "+ x"),
    *("```", "~~~", "```py", "| a | b |", "|---|---|", "| 1 | 2 |", "x | y", "-|-"),
]


class Watched(BlockParser):
    """Notes paragraphs that go on outside their quote or list in a way that parsers disagree on."""

    is_disputed = False

    def _extend(self, leaf: MarkdownBlock, body: str, at: int, lazy: bool) -> Any:
        """markdown-it ends some paragraphs at an indented line, and others at what looks like a table."""
        self.is_disputed |= lazy and ("|" in body or body.startswith("    "))
        return super()._extend(leaf, body, at, lazy)


def blocks(text: str) -> tuple[Found, bool]:
    """Blocks as (path, kind, ...), and whether they are disputed.

    path: q for each quote around the block, i for each list item, I for an item that begins with the block.
    """
    outline, chunks, at = Watched(), [], 0
    for line in text.split("\n"):
        change = outline.push(line, at)
        at += len(line) + 1
        chunks += [change.opened] if change.opened else []
    return [block(chunk) for chunk in chunks], outline.is_disputed


def block(chunk: MarkdownBlock) -> tuple[Any, ...]:
    path = "".join(
        "q" if rest.look == "quote" else "I" if first.look == "marker" else "i"
        for first, rest in zip(chunk.first, chunk.rest, strict=True)
    )
    lines = [text for text, _ in chunk.lines]
    match chunk.kind:
        case "text":
            return path, "text", stripped(lines)
        case "heading":
            return path, "heading", chunk.level, stripped(lines)
        case "code":
            return path, "code", chunk.info, "".join(f"{line}\n" for line in lines)
        case "table":
            header, _, *rest = [[text for text, _ in split_cells(line)] for line in lines]
            count = len(header)
            return path, "table", [(row + [""] * count)[:count] for row in [header, *rest]]
    return path, chunk.kind


def stripped(lines: list[str]) -> str:
    return "\n".join(line.strip() for line in lines).strip()


def expected(text: str, parser: MarkdownIt) -> Found:
    """What markdown-it finds, in the form of `blocks`."""
    found: Found = []
    path: list[str] = []
    rows: list[list[str]] | None = None

    def add(*what: object) -> None:
        found.append(("".join(path), *what))
        path[:] = [step.lower() for step in path]

    tokens = parser.parse(text + "\n")
    for before, token in zip([None, *tokens], tokens, strict=False):
        match token.type:
            case "blockquote_open":
                path.append("q")
            case "list_item_open":
                path.append("I")
            case "blockquote_close":
                path.pop()
            case "list_item_close":
                if path[-1] == "I":
                    add("text", "")
                path.pop()
            case "table_open":
                rows = []
            case "tr_open" if rows is not None:
                rows.append([])
            case "inline" if rows is not None:
                rows[-1].append(token.content)
            case "table_close":
                add("table", rows)
                rows = None
            case "inline":
                content = stripped(token.content.split("\n"))
                level = before.tag[1:] if before is not None and before.type == "heading_open" else ""
                add(*(("heading", int(level), content) if level else ("text", content)))
            case "hr":
                add("rule")
            case "fence" | "code_block":
                add("code", token.info.strip(), token.content)
    return found


def shown(found: Found) -> Found:
    """Without the blocks that hold nothing: an item's marker goes to the block that follows within it."""
    kept: Found = []
    empty = ""
    for path, *what in found:
        for place, step in enumerate(empty[: len(path)]):
            if step.lower() != path[place].lower():
                break
            path = path[:place] + step + path[place + 1 :] if step == "I" else path
        empty = path if what == ["text", ""] else ""
        kept += [] if empty else [(path, *what)]
    return kept


def has_short_underline(text: str) -> bool:
    """A heading's underline has three characters or more here."""
    return any(re.fullmatch("[-=]{1,2}", line.strip("> ")) for line in text.split("\n"))


def agrees(text: str) -> bool:
    found, is_disputed = blocks(text)
    return is_disputed or shown(found) in [shown(expected(text, one)) for one in (BLOCKS, TABLES_LAST)]


@pytest.mark.parametrize(
    "text",
    [
        "Here is the table:\n| a | b |\n|---|---|\n| 1 | 2 |",
        "one\ntwo\nx | y\n-|-\n1 | 2\nend",
        "- text\n  | a | b |\n  |---|---|\n  | 1 | 2 |\n- next",
        "-\n  | a | b |\n  |---|---|",
        "> text\n> | a | b |\n> |---|---|",
        "text\n    | a | b |\n|---|---|",  # an indented line is no header
        "x | y\n    -|-",
        "| a | b |\n|---|---|\n    code\nc",
        "| a | b |\n|---|---|\n---",
        "> \ntext",  # a quote without text has no paragraph that goes on
        "- - \n  text",
        "-\n\n  text",  # a list item begins with one blank line at most
        "1. \n   ===",
        "> \n> ---",
        "> \n> a\n> ===",
        "text\n* \nmore",  # an empty item does not end a paragraph
        "- ```\n  \n  a\n  ```",  # a blank line of code has no item's indentation
    ],
)
def test_these_are_those_of_markdown_it(text: str) -> None:
    found, is_disputed = blocks(text)
    assert not is_disputed
    assert shown(found) == shown(expected(text, BLOCKS))


def test_any_text_has_the_blocks_of_markdown_it() -> None:
    seed = random.randrange(10**6)
    draw = random.Random(seed)
    compared = 0
    for number in range(2000):
        lines = [draw.choice(BEFORE) + draw.choice(LINES) for _ in range(draw.randrange(1, 8))]
        text = "\n".join(lines)
        if not has_short_underline(text):
            assert agrees(text), f"seed {seed}, text {number}: {text!r}"
            compared += 1
    assert compared > 1000


def test_the_comparison_can_fail() -> None:
    assert shown(blocks("a\n\nb")[0]) != shown(expected("a\nb", BLOCKS))
    assert shown(blocks("- a")[0]) != shown(expected("a", BLOCKS))
    assert shown(blocks("- a\n- b")[0]) != shown(expected("- a\n  b", BLOCKS))


def test_a_table_right_after_a_line_is_drawn_as_one() -> None:
    prose = MarkdownText("Here is the table:\n| a | b |\n|---|---|\n| 1 | 2 |", 40)
    prose.close()
    rows = ["".join(piece.text for piece in prose.pieces(row)).rstrip() for row in range(prose.count)]
    assert rows[:2] == ["Here is the table:", ""]
    assert not any("|" in row or "---" in row for row in rows[2:])
    assert rows[2].split() == ["a", "│", "b"]
