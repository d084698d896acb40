"""Sums over the lines of a scored text: which lines surprise the model.

A token belongs to the line of its first byte, so a line's newline belongs to it. Only tokens of the roles
that sums cover count; a line without such tokens is left out.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from ropechat.inspector.scored_text import LN2, ScoredText
from ropechat.trace import TokenScore
from ropechat.util.records import Column, Csv, Table, TokenText, bar, cells, finite, json_line, number
from ropechat.util.text import one_line, visible
from ropechat.util.width import fit, fit_end

Sort = Literal["line", "bits", "bits-per-byte"]
L = TypeVar("L", bound="Line")
COLUMNS = (
    *("file", "line", "start", "end", "tokens", "nll", "bits", "bits_per_byte"),
    *("worst_i", "worst_token", "worst_bits", "text"),
)


@dataclass(frozen=True)
class Line:
    """The sums of one line."""

    file: str
    number: int
    """From 1."""
    span: tuple[int, int]
    """Byte range in the text, with the newline."""
    text: str
    tokens: int
    nll: float
    bytes: int
    worst: TokenScore
    """The most surprising token."""

    @property
    def bits(self) -> float:
        """Surprisal in bits."""
        return self.nll / LN2

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte; NaN without bytes."""
        return self.bits / self.bytes if self.bytes else math.nan

    @property
    def worst_bits(self) -> float:
        """Surprisal of the most surprising token in bits."""
        return -(self.worst.logprob or 0.0) / LN2


def lines_of(text: ScoredText) -> Iterator[Line]:
    """Yield the lines of a text in its order, each when the first token of the next has come."""
    data = (text.meta.get("text") or "").encode("utf-8", "replace")
    number, start, end = 0, 0, -1
    held: list[TokenScore] = []

    def line(tokens: list[TokenScore]) -> Line:
        shown = data[start:end].decode("utf-8", "replace").rstrip("\n")
        return sums_of(text.name, max(1, number), (start, end), shown, tokens)

    for token in text:
        if end < 0:  # a continuation of another text begins at its line 1
            start = end = token.span[0]
        if token.logprob is None or token.role not in text.roles:
            continue
        while token.span[0] >= end and end < len(data):
            if held:
                yield line(held)
                held = []
            number, start = number + 1, end
            end = data.find(b"\n", start) + 1 or len(data)
        held.append(token)
    if held:
        yield line(held)


def sums_of(name: str, number: int, span: tuple[int, int], text: str, tokens: Sequence[TokenScore]) -> Line:
    """The sums over the tokens of a line, or of another part of a text."""
    bytes_, end = 0, 0
    for token in tokens:
        bytes_ += max(0, token.span[1] - max(token.span[0], end))
        end = max(end, token.span[1])
    nll = -math.fsum(token.logprob for token in tokens if token.logprob is not None)
    worst = min(tokens, key=lambda token: token.logprob or 0.0)
    return Line(name, number, span, text, len(tokens), nll, bytes_, worst)


def chosen(lines: Iterable[L], sort: Sort, head: int | None) -> Iterable[L]:
    """The first `head` lines (None: all) in this order: of the text, or most surprising first."""
    if sort == "line":
        return (line for _, line in zip(range(head), lines, strict=False)) if head is not None else lines

    def surprise(line: L) -> tuple[float, int]:
        value = line.bits if sort == "bits" else line.bits_per_byte
        return (-math.inf if math.isnan(value) else value), -line.number

    if head is None:
        return sorted(lines, key=surprise, reverse=True)
    return heapq.nlargest(head, lines, key=surprise)


def record(line: Line) -> dict[str, Any]:
    """The record of a line."""
    worst = line.worst
    return {
        **({"file": line.file} if line.file else {}),
        "line": line.number,
        "span": line.span,
        "tokens": line.tokens,
        "nll": finite(line.nll),
        "bits": finite(line.bits),
        "bits_per_byte": finite(line.bits_per_byte),
        "worst": {"i": worst.index, "token": TokenText(worst.bytes), "bits": finite(line.worst_bits)},
        "text": line.text,
    }


def render(
    lines: Iterable[L],
    form: str,
    table: Callable[[Iterable[L]], Iterator[str]],
    record: Callable[[L], dict[str, Any]],
    columns: Sequence[str],
) -> Iterator[str]:
    """Yield the lines as jsonl, csv or a table, with line ends."""
    if form == "table":
        yield from (f"{line}\n" for line in table(lines))
    elif form == "jsonl":
        yield from (json_line(record(line)) for line in lines)
    else:
        out = Csv(columns)
        yield out.head
        yield from (out.line(cells(record(line))) for line in lines)


def table(lines: Iterable[Line], width: int, unit: str = "bit") -> Iterator[str]:
    """Yield the lines of a table for a terminal, without line ends."""
    scale = 1.0 if unit == "bit" else LN2
    found = list(lines)
    most = max((line.bits for line in found), default=0.0)
    files = {line.file for line in found}

    def place(line: Line) -> str:
        return one_line(f"{line.file}:{line.number}" if len(files) > 1 else str(line.number))

    at = min(max([4, *(len(place(line)) for line in found)]), max(6, width // 5))

    def worst(line: Line) -> str:
        return f"{scale * line.worst_bits:5.1f}  {visible(line.worst.bytes)}"

    show_worst = width >= 76
    bars = 10 if width >= 60 else 4
    room = max(4, width - at - 8 - 7 - bars - (20 if show_worst else 0) - 8)
    out = Table(
        Column("line", at, lambda line: fit_end(place(line), at) if len(place(line)) > at else place(line)),
        Column(f"{unit}s", 8, lambda line: f"{scale * line.bits:.1f}"),
        Column(f"{unit[0]}/byte", 7, lambda line: number(scale * line.bits_per_byte, ".2f")),
        Column("", -bars, lambda line: bar(line.bits / most if most else 0.0, bars)),
        Column("worst token", -18, worst) if show_worst else None,
        Column("text", 0, lambda line: fit(one_line(line.text.strip()), room).rstrip()),
    )
    yield out.head
    yield from map(out.line, found)
