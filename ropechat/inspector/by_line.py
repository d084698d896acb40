"""Sums over the lines of a scored text: which lines surprise the model.

A token belongs to the line of its first byte, so a line's newline belongs to it. Only tokens of the roles
that sums cover count; a line without such tokens is left out.
"""

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ropechat.inspector.csv_table import csv_line
from ropechat.inspector.scored_text import LN2, ScoredText
from ropechat.inspector.table import bar
from ropechat.trace import TokenScore
from ropechat.util.json_lines import finite
from ropechat.util.text import clean, one_line, visible
from ropechat.util.width import fit

Sort = Literal["line", "bits", "bits-per-byte"]


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


def lines_of(reading: ScoredText) -> Iterator[Line]:
    """Yield the lines of a text in its order, each when the first token of the next has come."""
    data = (reading.meta.get("text") or "").encode("utf-8", "replace")
    number, start, end = 0, 0, -1
    held: list[TokenScore] = []
    for token in reading.tokens:
        if end < 0:  # a continuation of another text begins at its line 1
            start = end = token.span[0]
        if token.logprob is None or token.role not in reading.roles:
            continue
        while token.span[0] >= end and end < len(data):
            if held:
                yield _line(reading.name, number, (start, end), data, held)
                held = []
            number, start = number + 1, end
            end = data.find(b"\n", start) + 1 or len(data)
        held.append(token)
    if held:
        yield _line(reading.name, max(1, number), (start, end), data, held)


def _line(name: str, number: int, span: tuple[int, int], data: bytes, tokens: list[TokenScore]) -> Line:
    bytes_, end = 0, 0
    for token in tokens:
        bytes_ += max(0, token.span[1] - max(token.span[0], end))
        end = max(end, token.span[1])
    nll = -math.fsum(token.logprob for token in tokens if token.logprob is not None)
    worst = min(tokens, key=lambda token: token.logprob or 0.0)
    text = data[span[0] : span[1]].decode("utf-8", "replace").rstrip("\n")
    return Line(name, number, span, text, len(tokens), nll, bytes_, worst)


def chosen(lines: Iterable[Line], sort: Sort, head: int | None) -> Iterable[Line]:
    """The first `head` lines (None: all) in this order: of the text, or most surprising first."""
    if sort == "line":
        return (line for _, line in zip(range(head), lines, strict=False)) if head is not None else lines

    def surprise(line: Line) -> tuple[float, int]:
        value = line.bits if sort == "bits" else line.bits_per_byte
        return (-math.inf if math.isnan(value) else value), -line.number

    if head is None:
        return sorted(lines, key=surprise, reverse=True)
    return heapq.nlargest(head, lines, key=surprise)


def record(line: Line) -> dict[str, Any]:
    """The record of a line in JSON lines."""
    worst = {"i": line.worst.index, "token": line.worst.text, "bits": finite(line.worst_bits)}
    return {
        **({"file": line.file} if line.file else {}),
        "line": line.number,
        "span": list(line.span),
        "tokens": line.tokens,
        "nll": finite(line.nll),
        "bits": finite(line.bits),
        "bits_per_byte": finite(line.bits_per_byte),
        "worst": worst,
        "text": line.text,
    }


def csv_lines(lines: Iterable[Line]) -> Iterator[str]:
    """Yield the lines as CSV, with a header and line ends."""
    names = ("tokens", "nll", "bits", "bits_per_byte")
    yield csv_line(["file", "line", "start", "end", *names, "worst_i", "worst_token", "worst_bits", "text"])
    for line in lines:
        sums = [line.tokens, finite(line.nll), finite(line.bits), finite(line.bits_per_byte)]
        worst = [line.worst.index, visible(line.worst.bytes), finite(line.worst_bits)]
        yield csv_line([line.file, line.number, *line.span, *sums, *worst, clean(line.text)])


def table(lines: Iterable[Line], width: int) -> Iterator[str]:
    """Yield the lines of a table for a terminal, without line ends."""
    found = list(lines)
    most = max((line.bits for line in found), default=0.0)
    files = {line.file for line in found}
    places = [f"{line.file}:{line.number}" if len(files) > 1 else str(line.number) for line in found]
    at = min(max([4, *map(len, places)]), max(6, width // 5))
    show_worst = width >= 76
    bars = 10 if width >= 60 else 4
    room = max(4, width - at - 8 - 7 - bars - (20 if show_worst else 0) - 8)
    head = ["line".rjust(at), "    bits", " b/byte", fit("", bars)]
    head += [fit("worst token", 18)] if show_worst else []
    yield "  ".join([*head, "text"])
    for place, line in zip(places, found, strict=True):
        shown = one_line(place)
        parts = [fit(shown, at) if len(shown) > at else shown.rjust(at), f"{line.bits:8.1f}"]
        by_byte = "–" if math.isnan(line.bits_per_byte) else f"{line.bits_per_byte:.2f}"
        parts += [by_byte.rjust(7), bar(line.bits / most if most else 0.0, bars)]
        worst = fit(visible(line.worst.bytes), 11)
        parts += [f"{line.worst_bits:5.1f}  {worst}"] if show_worst else []
        yield "  ".join([*parts, fit(one_line(line.text.strip()), room).rstrip()])
