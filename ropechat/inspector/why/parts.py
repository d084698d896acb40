"""Dividing a context: into messages or files, their paragraphs, sentences or lines, and words.

A part is a stretch of text without the white space around it. Leaving it out also removes the white space
behind it, of the last part that before it, so that what stays is spaced as it was.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Level = Literal["text", "paragraph", "sentence", "line", "word"]
"""What a context is divided into; text: messages or files as wholes."""
LEVELS: tuple[Level, ...] = ("text", "paragraph", "sentence", "line", "word")
Span = tuple[int, int]

_WIDE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Scripts that are written without spaces: a character counts as a word."""
_WORD = re.compile(rf"[{_WIDE}][\u0300-\u036f\ufe00-\ufe0f\u3099\u309a]*|[^\s{_WIDE}]+")
_LINE = re.compile(r"\n\s*")
_SENTENCE = re.compile(r"[.!?…]+[\"'”’»)\]*_]*\s+|[。！？]+[」』”’）]*\s*|\n\s*")


@dataclass(frozen=True, eq=False)
class Part:
    """A stretch of a context that is left out as a whole.

    level: of its units. units: (start, end) of each in characters; several are neighbours that are left out
    together. cut: the characters that go with them.
    """

    level: Level
    units: tuple[Span, ...]
    cut: Span

    @property
    def span(self) -> Span:
        """From the first unit's start to the last unit's end, in characters."""
        return self.units[0][0], self.units[-1][1]


def whole(text: str, texts: Sequence[Span]) -> Part:
    """The part with all texts of a context. texts: (start, end) of each; those without words are none."""
    units = tuple(span for span in texts if text[slice(*span)].strip())
    return Part("text", units, (units[0][0], units[-1][1]) if units else (0, 0))


def divide(text: str, part: Part, by: Level, most: int) -> list[Part]:
    """Divide a part into at most `most` parts of about equal length, none finer than `by`; [] if it is one.

    Of several units, these are the parts; of one, its paragraphs, or the next level that it has several of.
    """
    level, units = part.level, part.units
    while len(units) < 2:
        if (finer := _finer(level, by)) is None:
            return []
        level, units = finer, tuple(_split(text, part.span, finer))
    groups = _grouped(units, most)
    return [Part(level, group, cut) for group, cut in zip(groups, _cuts(groups), strict=True)]


def _finer(level: Level, by: Level) -> Level | None:
    """The level below; None if it is finer than wanted. Words are in sentences, unless they are in lines."""
    order = [one for one in LEVELS if one != ("sentence" if by == "line" else "line")]
    at = order.index(level) + 1
    return order[at] if at < len(order) and at <= order.index(by) else None


def every(text: str, part: Part, by: Level) -> list[Part]:
    """All parts of the finest level, each on its own, in their order."""
    parts = divide(text, part, by, len(text))
    return [finest for one in parts for finest in every(text, one, by)] or [part]


def _cuts(groups: Sequence[Sequence[Span]]) -> Iterator[Span]:
    for at, group in enumerate(groups):
        if at + 1 < len(groups):
            yield group[0][0], groups[at + 1][0][0]
        else:
            yield groups[at - 1][-1][1] if at else group[0][0], group[-1][1]


def _grouped(units: Sequence[Span], most: int) -> list[tuple[Span, ...]]:
    """Neighbouring units in at most `most` groups, of about the same number of characters."""
    if len(units) <= most:
        return [(unit,) for unit in units]
    total = sum(end - start for start, end in units)
    groups: list[list[Span]] = [[] for _ in range(most)]
    before = 0
    for start, end in units:
        middle = before + (end - start) / 2
        groups[min(most - 1, int(middle * most / total))].append((start, end))
        before += end - start
    return [tuple(group) for group in groups if group]


def _split(text: str, span: Span, level: Level) -> Iterator[Span]:
    """The units of a level in a stretch of text, without the white space around them."""
    if level == "word":
        yield from (found.span() for found in _WORD.finditer(text, *span))
        return
    start = span[0]
    for end in (*_ends(text, span, level), span[1]):
        unit = text[start:end]
        if body := unit.strip():
            first = start + len(unit) - len(unit.lstrip())
            yield first, first + len(body)
        start = end


def _ends(text: str, span: Span, level: Level) -> Iterator[int]:
    """Where units of a level end, with the white space behind them; before the end of the span."""
    for found in (_SENTENCE if level == "sentence" else _LINE).finditer(text, *span):
        breaks = found[0].count("\n")
        if level == "paragraph" and breaks < 2:
            continue
        # A full stop or a line break before a small letter is within a sentence.
        if level == "sentence" and breaks < 2 and text[found.end() : found.end() + 1].islower():
            continue
        yield found.end()
