"""A trace as a table for a terminal: a line per token, and its candidates with bars.

#  token      bytes            prob  surprisal  rank   entropy
3  ·Paris     20 50 61 …      66.4%   0.59 bit     1  1.98 bit
              ██████████████▌       66.4%  ·Paris  ◂
              ██                     9.0%  ·the

Surprisal and entropy are in bits. In nats, the logprob is in the place of the surprisal. A wide terminal has
the varentropy too.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ropechat.inspector.ansi import DIM, paint, rank_color
from ropechat.inspector.look_up import Found
from ropechat.inspector.scored_text import LN2, ScoredText, percent
from ropechat.inspector.stages import stage_parts
from ropechat.trace import TokenDistribution, TokenScore
from ropechat.util.records import Column, Table, bar, number
from ropechat.util.text import one_line, token_name, visible
from ropechat.util.width import cell_width, fit

_MIN_WIDTH, _WITH_SQUARES = 30, 110


@dataclass(frozen=True)
class Layout:
    """The columns of a token, and the width of what is below it. index: columns of a token's number."""

    width: int
    index: int
    bar: int
    color: bool
    tokens: Table
    unit: str


def layout(
    tokens: int, width: int, *, color: bool = False, unit: str = "bit", candidates: bool = True
) -> Layout:
    """Choose the columns that fit into `width`. tokens: how many there are at most.

    candidates: whether tokens have some, without which no varentropy is known.
    """
    width = max(width, _MIN_WIDTH)
    index = max(2, len(str(tokens - 1)))
    extras, squares = width >= 70, width >= _WITH_SQUARES and candidates
    fixed = index + 2 + 7 + 2 + 7 + (2 * 2 + 9 + 9 if extras else 0)  # index, prob, rank and the extras
    fixed += 2 + 11 if squares else 0
    token = max(6, min(24, width - fixed - 2 - (14 if width >= 90 else 0)))
    room = width - fixed - token - 2 - 2
    shown = max(4, min(20, (width - index - 16) // 2))
    surprise = Column("surprisal", 9, lambda token: _in_unit(token.logprob, unit, -1.0))
    if unit == "nat":
        surprise = Column("logprob", 9, lambda token: number(token.logprob, ".3f"))
    columns = Table(
        Column("#", index, lambda token: str(token.index)),
        Column("token", -token, lambda token: visible(token.bytes)),
        Column("bytes", -min(24, room), lambda token: token.bytes.hex(" ")) if room >= 8 else None,
        Column("prob", 7, lambda token: "–" if token.logprob is None else percent(token.logprob)),
        surprise if extras else None,
        Column("rank", 7, lambda token: number(token.rank, "")),
        Column("entropy", 9, lambda token: _in_unit(token.entropy, unit)) if extras else None,
        Column("varentropy", 11, lambda token: _squared(token.row, unit)) if squares else None,
    )
    return Layout(width, index, max(2, width - index - 16 - shown), color, columns, unit)


def _candidate_lines(
    row: TokenDistribution | None, chosen: int | None, bytes_of: Callable[[int], bytes], at: Layout
) -> Iterator[str]:
    """Yield the most probable tokens with bars; ◂ marks the token of the text."""
    for id, logprob in row.top if row is not None else ():
        name = _cut(token_name(id, bytes_of(id)), at.width - at.index - 2 - at.bar - 8 - 4)
        line = f"{' ' * at.index}  {bar(math.exp(logprob), at.bar)}{percent(logprob):>7}  {name}"
        yield f"{line} ◂" if id == chosen else line


def _found_line(found: Found, at: Layout) -> str:
    """The line of a string that was looked up: its probability, and the rank of its first token."""
    logprob, count = found.logprob, len(found.ids)
    tokens = f"  ({count} tokens)" if count > 1 else ""
    if logprob is None:
        logprob, tokens = found.first, f"  (the first of {count} tokens)"
    facts = f"{percent(logprob):>7}  {_in_unit(logprob, at.unit, -1.0):>11}  rank {found.rank:,}"
    return _cut(f"{'?'.rjust(at.index)}  {facts}  {visible(found.text.encode())}{tokens}", at.width)


def render(text: ScoredText, width: int, *, color: bool = False, unit: str = "bit") -> Iterator[str]:
    """Yield the lines of the table.

    meta["only_counted"]: whether only tokens that the sums cover have lines, as those of an answer.
    """
    tokens = text.meta.get("tokens") or len((text.meta.get("text") or "").encode("utf-8", "replace"))
    at = layout(tokens, width, color=color, unit=unit, candidates=text.meta.get("top_k") != 0)

    def dim(lines: Iterable[str]) -> Iterator[str]:
        return (paint(line, DIM, color) for line in lines)

    yield from dim([at.tokens.head])
    for token in text:
        if text.meta.get("only_counted") and (token.role not in text.roles or token.logprob is None):
            continue
        yield paint(at.tokens.line(token), rank_color(token.rank), color)
        yield from dim(_stage_lines(token, at))
        yield from dim(_found_line(found, at) for found in text.found)
        yield from _candidate_lines(token.row, token.id, text.bytes_of, at)
    if text.next is not None:
        line = f"{'→'.rjust(at.index)}  next token  (entropy {_in_unit(text.next.entropy, at.unit)})"
        yield from dim([_cut(line, at.width)])
        yield from _candidate_lines(text.next, None, text.bytes_of, at)
        yield from (_found_line(found, at) for found in text.looked_up())
    yield from dim([*text.summary.role_lines(unit), text.summary.line(unit)])
    if text.producible.scored:
        parts = text.producible.line(text.meta.get("sampling")).split("; ")
        yield from dim(_wrapped(parts, "; ", at.width))


def _stage_lines(token: TokenScore, at: Layout) -> Iterator[str]:
    """Yield what the stages of the sampler left and what became of the token, if recorded."""
    for line in _wrapped(stage_parts(token), " · ", at.width - at.index - 2):
        yield f"{' ' * at.index}  {line}"


def _wrapped(parts: Iterable[str], separator: str, room: int) -> Iterator[str]:
    """Yield lines of at most `room` columns with as many of the parts as fit."""
    line = ""
    for part in map(one_line, parts):
        joined = f"{line}{separator}{part}" if line else part
        if line and cell_width(joined) > room:
            yield _cut(line, room)
            joined = part
        line = joined
    if line:
        yield _cut(line, room)


def _in_unit(nats: float | None, unit: str, sign: float = 1.0) -> str:
    scale = sign / LN2 if unit == "bit" else sign
    return "–" if nats is None else f"{round(scale * nats, 2) + 0.0:.2f} {unit}"  # never -0.00


def _squared(row: TokenDistribution | None, unit: str) -> str:
    if row is None or row.varentropy is None:
        return "–"
    return f"{row.varentropy / (LN2**2 if unit == 'bit' else 1.0):.2f} {unit}²"


def _cut(text: str, width: int) -> str:
    return fit(text, width).rstrip() if cell_width(text) > width else text
