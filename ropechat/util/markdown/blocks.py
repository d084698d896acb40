"""Markdown's blocks, line by line: the block of a line is known when the line ends and does not change later.

The rules are CommonMark's (0.31, sections 3 to 5; for tables GFM's, 4.10), but for these: a line break in a
paragraph is one on the screen, a heading's underline has three characters or more, and there are no link
reference definitions and no HTML blocks. Long lists, tables and fences cost no more per line than short ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from ropechat.util.markdown.spans import NOWHERE, StyledSpan

if TYPE_CHECKING:
    from typing import Literal

    Kind = Literal["text", "heading", "rule", "code", "table"]

MAX_NESTING = 10  # quotes and lists within each other; deeper ones stay text
_QUOTE = re.compile(r" {0,3}> ?")
_ITEM = re.compile(r"( {0,3})([-*+]|\d{1,9}[.)])( +|$)")
_TASK = re.compile(r"\[([ xX])\] +")
_BOXES = {" ": "☐ ", "x": "☑ "}
_HEADING = re.compile(r" {0,3}(#{1,6})(?: +|$)")
_CLOSING = re.compile(r"(?:^| +)#+ *$")
_RULE = re.compile(r" {0,3}(?:(?:\* *){3,}|(?:- *){3,}|(?:_ *){3,})$")
_UNDERLINE = re.compile(r" {0,3}(?:={3,}|-{3,}) *$")
_FENCE = re.compile(r"( {0,3})(`{3,}|~{3,}) *([^`]*)$")
_BAR = re.compile(r"(?<!\\)\|")
_DELIMITERS = re.compile(r" {0,3}\|? *:?-+:? *(?:\| *:?-+:? *)*\|? *$")


@dataclass
class Container:
    """A quote, or a list item of which `width` columns of indentation are part."""

    width: int = 0
    marker: StyledSpan | None = None  # None: a quote
    fresh: bool = True  # it has no row yet

    @property
    def room(self) -> str:
        """Spaces as wide as the marker."""
        return " " * (len(self.marker.text) if self.marker else 0)


@dataclass
class MarkdownBlock:
    """A block with its own layout: lines as (text, place in the source), and the spans before them."""

    kind: Kind
    first: tuple[StyledSpan, ...] = ()  # before the first row
    rest: tuple[StyledSpan, ...] = ()  # before the others
    gap: tuple[StyledSpan, ...] = ()  # before a blank row above it
    spaced: bool = False  # a blank row above
    lines: list[tuple[str, int]] = field(default_factory=list)
    level: int = 0  # of a heading
    info: str = ""  # of a fence: the language
    fence: str = ""  # what ends it; "" for indented code
    indent: int = 0  # of the fence


@dataclass(frozen=True)
class Change:
    """The effect of a line: it opened a block, continued one, or changed the kind of one."""

    opened: MarkdownBlock | None = None
    extended: MarkdownBlock | None = None
    added: int = 1  # lines that it got
    retitled: MarkdownBlock | None = None  # a paragraph that turned out to be a heading or a table's header
    shortened: MarkdownBlock | None = (
        None  # a paragraph whose last line turned out to be the header of `opened`
    )


class BlockParser:
    """Assigns lines to blocks; holds the open containers and the open block."""

    def __init__(self) -> None:
        self.containers: list[Container] = []
        self.leaf: MarkdownBlock | None = None  # the block that the next line may continue
        self._blank = True  # nothing, or a blank line, came before
        self._begun = False
        self._last: Kind | None = None
        self._held: list[int] = []  # blank lines that indented code may go on after
        self._may_head = False  # the paragraph's last line may be a table's header

    def fork(self) -> BlockParser:
        """A copy on which a line can be tried."""
        copy = BlockParser()
        copy.containers = [replace(container) for container in self.containers]
        copy.leaf = self.leaf and replace(self.leaf, lines=list(self.leaf.lines))
        copy._blank, copy._begun, copy._last = self._blank, self._begun, self._last
        copy._held, copy._may_head = list(self._held), self._may_head
        return copy

    def push(self, line: str, at: int) -> Change:
        """Add a complete line that begins at `at`."""
        place, matched = self._enter(line)
        leaf = self.leaf
        in_code = leaf is not None and leaf.kind == "code" and matched == len(self.containers)
        if leaf is not None and in_code and (change := self._code(leaf, line, place, at)):
            return change
        if not line[place:].strip(" "):
            return self._empty_line(matched)
        opened, place = self._open_containers(line, place, at, matched)
        lazy = matched < len(self.containers) and not opened
        body = line[place:]
        may_be_underlined = leaf is not None and leaf.kind == "text" and not lazy and not self._is_bare
        goes_on = not opened and not self._begins_block(body, may_be_underlined)
        if leaf is not None and leaf.kind == "text" and goes_on and not (lazy and self._is_bare):
            return self._extend(leaf, body, at + place, lazy)
        if leaf is not None and leaf.kind == "table" and goes_on and not lazy and not body.startswith("    "):
            leaf.lines.append((body, at + place))
            return Change(extended=leaf)
        self.containers[matched:] = opened
        return self._begin(body, at + place)

    @property
    def _is_bare(self) -> bool:
        """Whether the open block is a quote's or list item's first line without text, not yet a paragraph."""
        return self.leaf is not None and self.leaf.kind == "text" and not self.leaf.lines[-1][0]

    def _enter(self, line: str) -> tuple[int, int]:
        """(where the line's content begins, how many of the open containers it is within)."""
        place = matched = 0
        for container in self.containers:
            if container.marker is None:
                match = _QUOTE.match(line, place)
                if match is None:
                    break
                place = match.end()
            elif not line[place:].strip(" "):
                place = min(place + container.width, len(line))
            elif line[place : place + container.width].strip(" ") == "":
                place += container.width
            else:
                break
            matched += 1
        return place, matched

    def _open_containers(self, line: str, place: int, at: int, matched: int) -> tuple[list[Container], int]:
        opened: list[Container] = []
        while matched + len(opened) < MAX_NESTING:
            if match := _QUOTE.match(line, place):
                opened.append(Container())
                place = match.end()
                continue
            match = _ITEM.match(line, place)
            if match is None or _RULE.match(line, place):
                break
            if (
                self.leaf is not None
                and self.leaf.kind == "text"
                and not opened
                and self._keeps(match, matched, line[match.end() :])
            ):
                break
            blanks = len(match[3])
            width = len(match[1]) + len(match[2]) + (blanks if 0 < blanks < 5 else 1)
            mark, begin = "• " if len(match[2]) == 1 else match[2] + " ", at + match.start(2)
            place = min(place + width, len(line))
            if (task := _TASK.match(line, place)) and len(match[2]) == 1:
                mark, place = _BOXES[task[1].lower()], task.end()
            opened.append(Container(width, StyledSpan(mark, "marker", begin)))
        return opened, place

    def _keeps(self, match: re.Match[str], matched: int, rest: str) -> bool:
        """Whether the paragraph continues despite this marker, which would begin a list."""
        if matched < len(self.containers):
            return False
        return not rest.strip(" ") or match[2].rstrip(".)") not in ("-", "*", "+", "1")

    def _begins_block(self, body: str, may_be_underlined: bool) -> bool:
        if _HEADING.match(body) or _FENCE.match(body):
            return True
        return bool(_RULE.match(body)) and not (may_be_underlined and _UNDERLINE.match(body))

    def _extend(self, leaf: MarkdownBlock, body: str, at: int, lazy: bool) -> Change:
        self._blank = False
        header = leaf.lines[-1][0] if self._may_head and not lazy else ""
        below = "|" in header and not body.startswith("    ") and _DELIMITERS.match(body)
        if below and len(split_cells(body)) == len(split_cells(header)):
            del leaf.lines[: not leaf.lines[0][0]]
            return self._tabulate(leaf, (body, at))
        if not lazy and not self._is_bare and _UNDERLINE.match(body):
            del leaf.lines[: not leaf.lines[0][0]]
            leaf.kind, leaf.level = "heading", 1 if "=" in body else 2
            self._last, self.leaf = "heading", None
            return Change(retitled=leaf)
        stripped = body.lstrip(" ")
        leaf.lines.append((stripped, at + len(body) - len(stripped)))
        self._may_head = not lazy and len(body) - len(stripped) < 4
        return Change(extended=leaf)

    def _tabulate(self, leaf: MarkdownBlock, delimiters: tuple[str, int]) -> Change:
        """The paragraph's last line is the header of a table."""
        if len(leaf.lines) == 1:
            leaf.kind = self._last = "table"
            leaf.lines.append(delimiters)
            return Change(retitled=leaf)
        self.leaf = self._new_block("table", leaf.lines.pop(), delimiters)
        return Change(opened=self.leaf, shortened=leaf)

    def _empty_line(self, matched: int) -> Change:
        if self._is_bare and self.containers[-1].marker and matched == len(self.containers):
            matched -= 1  # a list item begins with one blank line at most
        del self.containers[matched:]
        self.leaf, self._blank = None, True
        return Change()

    def _code(self, leaf: MarkdownBlock, line: str, place: int, at: int) -> Change | None:
        """Take in a line within code; None if the line ends the code."""
        body, added = line[place:], 1
        if leaf.fence:
            match = _FENCE.match(body)
            if match and match[2].startswith(leaf.fence) and not match[3].strip(" "):
                self.leaf, self._blank = None, False
                return Change()
        elif not body.strip(" "):
            self._held.append(at + place)  # blank lines at the end do not belong to it
            return Change()
        elif not body.startswith("    "):
            self.leaf, self._blank = None, self._blank or bool(self._held)
            return None
        added = 1 + len(self._held)
        leaf.lines += [("", blank) for blank in self._held]
        self._held.clear()
        cut = min(leaf.indent, len(body) - len(body.lstrip(" ")))
        leaf.lines.append((body[cut:], at + place + cut))
        return Change(extended=leaf, added=added)

    def _begin(self, body: str, at: int) -> Change:
        stripped = body.lstrip(" ")
        place = at + len(body) - len(stripped)
        if match := _HEADING.match(body):
            text = _CLOSING.sub("", body[match.end() :])
            block = self._new_block("heading", (text, at + match.end()))
            block.level = len(match[1])
        elif match := _FENCE.match(body):
            block = self._new_block("code")
            block.fence, block.info, block.indent = match[2], match[3].strip(" "), len(match[1])
        elif _RULE.match(body):
            block = self._new_block("rule")
        elif body.startswith("    ") and stripped:
            block = self._new_block("code", (body[4:], at + 4))
            block.indent = 4
        else:
            block = self._new_block("text", (stripped, place))
            self._may_head = True
        self.leaf = block if block.kind in ("text", "code") else None
        self._held.clear()
        return Change(opened=block)

    def _new_block(self, kind: Kind, *lines: tuple[str, int]) -> MarkdownBlock:
        first: list[StyledSpan] = []
        rest: list[StyledSpan] = []
        gap: list[StyledSpan] = []
        item = any(container.fresh and container.marker for container in self.containers)
        for container in self.containers:
            if container.marker is None:
                bar = StyledSpan("▎ ", "quote", NOWHERE)
                first.append(bar)
                rest.append(bar)
                if not container.fresh:
                    gap = list(rest)
                container.fresh = False
                continue
            room = StyledSpan(container.room, "", NOWHERE)
            first.append(container.marker if container.fresh else room)
            rest.append(room)
            container.fresh = False
        apart = self._blank or kind in ("code", "table", "rule") or self._last in ("code", "table", "rule")
        apart = apart or (kind == "heading" and not item)
        spaced = apart and self._begun
        block = MarkdownBlock(kind, tuple(first), tuple(rest), tuple(gap), spaced, list(lines))
        self._begun, self._blank, self._last = True, False, kind
        return block


def split_cells(line: str) -> list[tuple[str, int]]:
    """The cells of a table's row, each (text, where in the line); a backslash keeps a bar as text."""
    bars = [match.start() for match in _BAR.finditer(line)]
    edges = [-1, *bars, len(line)]
    cells = [(line[start + 1 : end], start + 1) for start, end in pairwise(edges)]
    if cells and not cells[0][0].strip(" "):
        cells = cells[1:]
    if cells and not cells[-1][0].strip(" "):
        cells = cells[:-1]
    return [(text.strip(" "), at + len(text) - len(text.lstrip(" "))) for text, at in cells]


def fenced_code(text: str) -> list[str]:
    """The texts of the fenced code blocks of a Markdown text."""
    parser, found, at = BlockParser(), [], 0
    for line in text.split("\n"):
        if (opened := parser.push(line, at).opened) is not None and opened.fence:
            found.append(opened)
        at += len(line) + 1
    return ["\n".join(line for line, _ in block.lines).rstrip("\n") for block in found]
