"""The parts of a row of the screen, in either view: pieces of text, each with a look and a place."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ropechat.util.width import cell_width, widen_to_graphemes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NOWHERE = -1  # the place of text that is not in the source: bars, bullets, padding


class StyledSpan(NamedTuple):
    """Text, its styles as names separated by spaces, and the place of its first character in the source."""

    text: str
    look: str = ""
    at: int = NOWHERE


class Mark(NamedTuple):
    """One more style for characters `start` to `end` of the source."""

    start: int
    end: int
    look: str


class Rows(Protocol):
    """A text laid out in rows for one width, growing at its end."""

    @property
    def count(self) -> int:
        """The number of rows."""

    def pieces(self, number: int) -> Sequence[StyledSpan]:
        """The spans of one row."""

    def offset(self, number: int) -> int:
        """Where in the source a row begins."""

    def row_at(self, offset: int) -> int:
        """The row that shows a character of the source."""

    def append(self, text: str) -> int:
        """Add source text; returns the number of the first row that changed."""

    def close(self) -> int:
        """Finish the text; returns the number of the first row that changed, or `count`."""


def join_styles(look: str, more: str) -> str:
    """Two lists of style names as one."""
    return f"{look} {more}" if look and more else look or more


def append_span(pieces: list[StyledSpan], text: str, look: str, at: int) -> None:
    """Append text to a row: to its last span if that has the same style or its character continues."""
    if pieces and (before := pieces[-1]).at + len(before.text) == at:
        clings = not text.isascii() and cell_width(before.text + text) != cell_width(
            before.text
        ) + cell_width(text)
        if before.look == look or clings:
            pieces[-1] = StyledSpan(before.text + text, before.look, before.at)
            return
    pieces.append(StyledSpan(text, look, at))


def cut_spans(pieces: Iterable[StyledSpan], start: int, end: int) -> list[StyledSpan]:
    """Characters `start` to `end` of a sequence of spans."""
    found: list[StyledSpan] = []
    place = 0
    for text, look, at in pieces:
        first, last = max(start - place, 0), min(end - place, len(text))
        if first < last:
            found.append(StyledSpan(text[first:last], look, at + first if at >= 0 else at))
        place += len(text)
        if place >= end:
            break
    return found


def overlay_marks(pieces: Iterable[StyledSpan], marks: Sequence[Mark]) -> list[StyledSpan]:
    """The spans with the styles of marks added; a mark never splits a user-perceived character."""
    if not marks:
        return list(pieces)
    found: list[StyledSpan] = []
    for piece in pieces:
        text, look, at = piece
        if at < 0 or not text:
            found.append(piece)
            continue
        over = [mark for mark in marks if mark.start < at + len(text) and mark.end > at]
        within = [(max(0, mark.start - at), min(len(text), mark.end - at)) for mark in over]
        spans = widen_to_graphemes(text, within)
        edges = sorted({0, len(text)}.union(*spans))
        looks = [look] * (len(edges) - 1)
        places = {edge: place for place, edge in enumerate(edges)}
        for (start, end), mark in zip(spans, over, strict=True):
            for place in range(places[start], places[end]):
                looks[place] = join_styles(looks[place], mark.look)
        found += [
            StyledSpan(text[start:end], here, at + start)
            for (start, end), here in zip(pairwise(edges), looks, strict=True)
        ]
    return found
