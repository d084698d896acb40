"""Markdown inside one block: emphasis, code, links. HTML and other markup stays text."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt

from ropechat.util.markdown.spans import NOWHERE, StyledSpan, join_styles
from ropechat.util.text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

MAX_PARSED = 2000  # characters parsed at once: the parser takes time by their square in the worst case
_TARGET = re.compile(r"\]\((?:[^()\\\n]|\\.|\([^()\n]*\))*\)")
_LOOKS = {"em_open": "em", "strong_open": "strong", "s_open": "strike", "link_open": "link"}
_MATH = {r"\(": r"\)", r"\[": r"\]"}
_TRIGGERS = re.compile(r"[\\`*_~\[!<&]")


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    made = MarkdownIt("commonmark", {"maxNesting": 20}).enable("strikethrough")
    made.inline.ruler.before("escape", "math_inline", _math)
    return made.disable(["html_inline", "text_join"])


def _math(state: StateInline, silent: bool) -> bool:
    r"""Maths between \( and \), or \[ and \], on one line stays as it is: its underscores are no emphasis."""
    opening = state.src[state.pos : state.pos + 2]
    if opening not in _MATH:
        return False
    end = state.src.find(_MATH[opening], state.pos + 2)
    if end < 0 or "\n" in state.src[state.pos : end]:
        return False
    if not silent:
        state.push("math_inline", "", 0).content = state.src[state.pos : end + 2]
    state.pos = end + 2
    return True


def parse_inline(text: str, base: int, look: str = "") -> list[StyledSpan]:
    """One line of Markdown as pieces; `base` is where it begins in the source."""
    return [piece for line in parse_inline_lines([(text, base)], look) for piece in line]


def parse_inline_lines(lines: Sequence[tuple[str, int]], look: str = "") -> list[list[StyledSpan]]:
    """The lines of one paragraph, each (text, where it begins), as pieces; emphasis may go on over a line."""
    if not any(_TRIGGERS.search(text) for text, _ in lines):
        return [[StyledSpan(text.rstrip(" "), look, at)] for text, at in lines]
    found: list[list[StyledSpan]] = []
    group: list[tuple[str, int]] = []
    size = 0
    for text, at in lines:
        if group and size + len(text) > MAX_PARSED:
            found += _Walk(group, look).lines
            group, size = [], 0
        if len(text) > MAX_PARSED:
            found.append(_long(text, at, look))
            continue
        group.append((text, at))
        size += len(text)
    return found + _Walk(group, look).lines if group else found


def _long(text: str, at: int, look: str) -> list[StyledSpan]:
    """A very long line, parsed in parts that end at spaces outside of emphasis if possible."""
    found: list[StyledSpan] = []
    start = 0
    while start < len(text):
        end = len(text) if len(text) - start <= MAX_PARSED else find_part_end(text, start)
        found += _Walk([(text[start:end], at + start)], look).lines[0]
        start = end
    return found


def find_part_end(text: str, start: int) -> int:
    """Where a part of a long line that begins at `start` may end."""
    blanks = [
        start + match.end() for match in re.finditer(r"[^ ] +(?=[^ ])", text[start : start + MAX_PARSED])
    ]
    for blank in blanks[: -len(blanks) // 2 : -max(1, len(blanks) // 6)]:
        pieces = _Walk([(text[start:blank], start)], "").lines[0]
        if not any(not piece.look and _TRIGGERS.search(piece.text) for piece in pieces):
            return blank
    return blanks[-1] if blanks else start + MAX_PARSED


class _Walk:
    """From the parser's tokens to pieces with places, found by walking along the source."""

    def __init__(self, lines: Sequence[tuple[str, int]], look: str) -> None:
        self.lines: list[list[StyledSpan]] = [[]]
        self._source = "\n".join(text for text, _ in lines)
        self._starts = [0]  # of the lines in the joined text
        for text, _ in lines:
            self._starts.append(self._starts[-1] + len(text) + 1)
        self._bases = [at for _, at in lines]
        self._at = 0
        self._looks = [look]
        self._urls: list[tuple[str, bool]] = []
        for token in _parser().parseInline(self._source)[0].children or ():
            self._take(token)
        while len(self.lines) < len(lines):
            self.lines.append([])

    def _put(self, text: str, at: int, more: str = "") -> None:
        if at >= 0:
            number = bisect_right(self._starts, at) - 1
            at += self._bases[number] - self._starts[number]
        self.lines[-1].append(StyledSpan(one_line(text), join_styles(self._looks[-1], more), at))

    def _past(self, wanted: str, in_code: bool = False) -> int:
        """Go behind the next `wanted`; returns where it began. In code a line end is a space."""
        source = self._source.replace("\n", " ") if in_code else self._source
        found = source.find(wanted, self._at) if wanted else -1
        if found < 0:
            return self._at
        self._at = found + len(wanted)
        return found

    def _take(self, token: Token) -> None:
        kind = token.type
        if kind == "text":
            if token.content:
                self._put(token.content, self._past(token.content))
        elif kind == "text_special":
            self._put(token.content, self._past(token.markup))
        elif kind == "math_inline":
            self._put(token.content, self._past(token.content), "code")
        elif kind == "code_inline":
            self._past(token.markup)
            self._put(token.content, self._past(token.content, in_code=True), "code")
            self._past(token.markup)
        elif kind in ("softbreak", "hardbreak"):
            self._past("\n")
            if len(self.lines) < len(self._bases):
                self.lines.append([])
        elif kind == "image":
            self._image(token)
        elif kind == "link_open":
            self._open_link(token)
        elif kind == "link_close":
            self._close_link()
        elif kind in _LOOKS:
            self._past(token.markup)
            self._looks.append(join_styles(self._looks[-1], _LOOKS[kind]))
        elif kind.endswith("_close"):
            self._past(token.markup)
            self._looks.pop()

    def _open_link(self, token: Token) -> None:
        automatic = token.markup == "autolink"
        self._past("<" if automatic else "[")
        self._urls.append((str(token.attrs.get("href", "")), automatic))
        self._looks.append(join_styles(self._looks[-1], "link"))

    def _close_link(self) -> None:
        """Show the whole address after the text of a link, which may be misleading."""
        url, automatic = self._urls.pop()
        self._looks.pop()
        if automatic:
            self._past(">")
            return
        start = self._skip_target()
        if "".join(piece.text for piece in self.lines[-1]).rstrip().endswith(url):
            return
        verbatim = start is not None and self._source.startswith(url, start + 2)
        self._put(f" ({url})", start if start is not None and verbatim else NOWHERE, "url")

    def _image(self, token: Token) -> None:
        self._past("![")
        alt = token.content or "image"
        self._put(alt, self._at if token.content else NOWHERE, "link")
        self._skip_target()
        self._put(f" ({token.attrs.get('src', '')})", NOWHERE, "url")

    def _skip_target(self) -> int | None:
        match = _TARGET.search(self._source, self._at)
        if match is None:
            return None
        self._at = match.end()
        return match.start()
