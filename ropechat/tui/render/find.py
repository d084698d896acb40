"""Finding text in a page: case only counts if the wanted text has capitals; blanks match line breaks."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

from ropechat.tui.render.blocks import to_display
from ropechat.tui.render.transcript_layout import TextPosition

if TYPE_CHECKING:
    from ropechat.tui.render.blocks import Block
    from ropechat.tui.render.transcript_layout import TranscriptLayout

MAX_MATCHES = 10_000  # matches
_MARKUP = r"[*_`~\\]*"  # allowed within what prose shows as one word


def compile_pattern(wanted: str) -> re.Pattern[str] | None:
    """A pattern that matches a text, also with Markdown marks in it; None for spaces only."""
    words = [_loose(word) for word in to_display(wanted).split()]
    flags = 0 if wanted != wanted.lower() else re.IGNORECASE
    return re.compile(rf"{_MARKUP}\s+{_MARKUP}".join(words), flags) if words else None


def contains(text: str, wanted: str) -> bool:
    """Whether a search for `wanted` finds something in a text."""
    pattern = compile_pattern(wanted)
    return pattern is not None and pattern.search(to_display(text)) is not None


def _loose(word: str) -> str:
    """A word with optional marks between letters. Also between marks they would make the search very slow."""
    parts = [re.escape(word[0])]
    for before, character in pairwise(word):
        parts += [_MARKUP if before.isalnum() and character.isalnum() else "", re.escape(character)]
    return "".join(parts)


class Finder:
    """The matches of one text in the transcript, and the current one."""

    def __init__(self, page: TranscriptLayout) -> None:
        self._page = page
        self._pattern: re.Pattern[str] | None = None
        self._spans: dict[int, list[tuple[int, int]]] = {}  # by block
        self.wanted = ""
        self.current: tuple[Block, int] | None = None

    @property
    def active(self) -> bool:
        """Whether a text is searched for."""
        return self._pattern is not None

    @property
    def count(self) -> int:
        """The number of matches."""
        return sum(len(spans) for spans in self._spans.values())

    @property
    def number(self) -> int:
        """The current match, from 1; 0 for none."""
        if self.current is None:
            return 0
        number = 0
        for block in self._page.blocks:
            spans = self.spans(block)
            if block is self.current[0]:
                return number + bisect_right(spans, self.current[1], key=lambda span: span[0])
            number += len(spans)
        return 0

    def want(self, wanted: str) -> None:
        """Search for another text; "" ends the search."""
        self.wanted, self._pattern, self.current = wanted, compile_pattern(wanted), None
        self._spans.clear()
        for block in self._page.blocks:
            self.look(block)

    def look(self, block: Block) -> None:
        """Find in a block that is new or has grown, or of which more or less is shown."""
        if self._pattern is None:
            return
        matches = self._pattern.finditer(block.text, block.hidden)
        found = [match.span() for match in matches if match.end() > match.start()]
        self._spans[id(block)] = found[:MAX_MATCHES]

    def begin_at(self, node: str) -> bool:
        """Go on from the beginning of a message; False if it is not shown."""
        block = next((block for block in self._page.blocks if block.node == node), None)
        self.current = None if block is None else (block, -1)
        return block is not None

    def forget(self, block: Block) -> None:
        """Drop the matches of a removed block."""
        self._spans.pop(id(block), None)
        if self.current and self.current[0] is block:
            self.current = None

    def spans(self, block: Block) -> list[tuple[int, int]]:
        """The matches in a block."""
        return self._spans.get(id(block), [])

    def go(self, step: int, start: TextPosition) -> TextPosition | None:
        """The next match in a direction, round the ends; from `start` if there was none before."""
        blocks = self._page.blocks
        if not self.count:
            return None
        if self.current is not None:
            index, offset = blocks.index(self.current[0]), self.current[1]
        else:
            index, offset = start.block, start.offset - (step > 0)
        for turn in range(len(blocks) + 1):
            number = (index + turn * step) % len(blocks)
            starts = [span[0] for span in self.spans(blocks[number])]
            if turn == 0:
                at = bisect_right(starts, offset)
                starts = starts[at:] if step > 0 else starts[: bisect_left(starts, offset)]
            if starts:
                self.current = (blocks[number], starts[0 if step > 0 else -1])
                return TextPosition(number, self.current[1])
        return None
