"""The width of cleaned text on a terminal, by user-perceived characters; measured as Textual does.

rich is imported when a text has characters that may be wide or combining: 25 ms, which `run`, `inspect` and
`batch` do not wait for with most texts.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# One cell each: Latin letters, dashes, quotes, arrows, marks of control characters, boxes, blocks.
_NARROW = re.compile(
    "[\x20-\x7e\xa0-\xac\xae-\u02ff\u2010-\u2027\u2190-\u21ff\u23ce\u2400-\u2426\u2500-\u25fc\u27e8\u27e9]*"
)


def cell_width(text: str) -> int:
    """The width of a text in cells: wide characters take 2, combining ones 0."""
    if _NARROW.fullmatch(text):
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def graphemes(text: str) -> list[tuple[int, int, int]]:
    """(start, end, cells) of each user-perceived character; a flag's two letters stay together."""
    if _NARROW.fullmatch(text):
        return [(at, at + 1, 1) for at in range(len(text))]
    from rich.cells import split_graphemes

    spans, _ = split_graphemes(text)
    joined: list[tuple[int, int, int]] = []
    open_flag = False
    for start, end, size in spans:
        is_flag = end - start == 1 and 0x1F1E6 <= ord(text[start]) <= 0x1F1FF
        if is_flag and open_flag:
            joined[-1] = (joined[-1][0], end, joined[-1][2] + size)
            open_flag = False
        else:
            joined.append((start, end, size))
            open_flag = is_flag
    return joined


def widen_to_graphemes(text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans widened to whole user-perceived characters."""
    if text.isascii() or not spans:
        return spans
    starts = [start for start, _, _ in graphemes(text)] + [len(text)]
    return [
        (starts[bisect_right(starts, start) - 1], starts[bisect_left(starts, end)])
        if start < end
        else (start, end)
        for start, end in spans
    ]


def chop(text: str, width: int) -> Iterator[tuple[int, int]]:
    """(start, end) of pieces at most `width` cells wide; a character that is wider is one piece."""
    if text.isascii():
        yield from ((at, min(at + width, len(text))) for at in range(0, len(text), width))
        return
    start = column = 0
    for first, _, size in graphemes(text):
        if column and column + size > width:
            yield start, first
            start, column = first, 0
        column += size
    if text:
        yield start, len(text)


def fit(text: str, width: int) -> str:
    """Text cut (with …) between characters, or padded with spaces, to exactly `width` cells."""
    used = cell_width(text)
    if used <= width:
        return text + " " * (width - used)
    kept = used = 0
    for _, end, size in graphemes(text):
        if used + size > width - 1:
            break
        kept, used = end, used + size
    return text[:kept] + "…" + " " * (width - 1 - used)


def fit_end(text: str, width: int) -> str:
    """As `fit`, but cut at the beginning, which tells less of a path."""
    start, used = 0, cell_width(text)
    for _, end, size in graphemes(text):
        if used <= width - (start > 0):
            break
        start, used = end, used - size
    return fit("…" + text[start:] if start else text, width)


def character_at(text: str, column: int) -> int:
    """The index of the character drawn at a column; the length of the text beyond its end."""
    if text.isascii():
        return min(column, len(text))
    for start, _, size in graphemes(text):
        column -= size
        if column < 0:
            return start
    return len(text)
