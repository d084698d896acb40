"""A trace as a table for a terminal: a line per token, and its candidates with bars.

#  token      bytes         logprob     prob  surprisal  rank   entropy
3  ·Paris     20 50 61 …     -0.410    66.4%   0.59 bit     1  1.98 bit
              ██████████████▌       66.4%  ·Paris  ◂
              ██                     9.0%  ·the

Logprobs are in nats, surprisal and entropy in bits.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ropechat.inspector.ansi import DIM, paint, rank_color
from ropechat.inspector.look_up import Found
from ropechat.inspector.scored_text import LN2, ScoredText, Summary, percent
from ropechat.inspector.stages import Producible, stage_parts
from ropechat.trace import TokenDistribution, TokenScore
from ropechat.util.text import one_line, token_name, visible
from ropechat.util.width import cell_width, fit

_EIGHTHS = " ▏▎▍▌▋▊▉"
_MIN_WIDTH = 30


@dataclass(frozen=True)
class Layout:
    """Column widths; `bytes` is 0 if there is no room for that column."""

    width: int
    index: int
    token: int
    bytes: int
    bar: int
    extras: bool
    """Whether logprob, surprisal and entropy have columns."""
    color: bool


def bar(share: float, width: int) -> str:
    """A horizontal bar of exactly `width` columns, filled to `share` in eighths of a column."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8) if math.isfinite(share) else 0
    full, rest = divmod(eighths, 8)
    return fit("█" * full + (_EIGHTHS[rest] if rest else ""), width)


def layout(tokens: int, width: int, *, color: bool = False) -> Layout:
    """Choose the columns that fit into `width`. tokens: how many there are at most."""
    width = max(width, _MIN_WIDTH)
    index = max(2, len(str(tokens - 1)))
    extras = width >= 70
    fixed = index + 2 + 7 + 2 + 7 + (3 * 2 + 8 + 9 + 9 if extras else 0)  # index, prob, rank and the extras
    token = max(6, min(24, width - fixed - 2 - (14 if width >= 90 else 0)))
    room = width - fixed - token - 2 - 2
    hexes = min(24, room) if room >= 8 else 0
    indent = index + 2
    shown = max(4, min(20, (width - indent - 14) // 2))
    return Layout(width, index, token, hexes, max(2, width - indent - 8 - shown - 6), extras, color)


def header(at: Layout) -> str:
    """The header line."""
    parts = ["#".rjust(at.index), fit("token", at.token)]
    parts += [fit("bytes", at.bytes)] if at.bytes else []
    parts += [" logprob"] if at.extras else []
    parts += ["   prob"]
    parts += ["surprisal"] if at.extras else []
    parts += ["   rank"]
    parts += ["  entropy"] if at.extras else []
    return paint("  ".join(parts).rstrip(), DIM, at.color)


def token_line(token: TokenScore, at: Layout) -> str:
    """The line of a token; – for numbers without a context."""
    logprob, rank, entropy = token.logprob, token.rank, token.entropy
    parts = [str(token.index).rjust(at.index), fit(visible(token.bytes), at.token)]
    parts += [fit(token.bytes.hex(" "), at.bytes)] if at.bytes else []
    parts += [("–" if logprob is None else f"{logprob:.3f}").rjust(8)] if at.extras else []
    parts += [("–" if logprob is None else percent(logprob)).rjust(7)]
    parts += [("–" if logprob is None else _bits(-logprob)).rjust(9)] if at.extras else []
    parts += [("–" if rank is None else str(rank)).rjust(7)]
    parts += [("–" if entropy is None else _bits(entropy)).rjust(9)] if at.extras else []
    return paint("  ".join(parts), rank_color(rank), at.color)


def candidate_lines(
    row: TokenDistribution | None, chosen: int | None, bytes_of: Callable[[int], bytes], at: Layout
) -> Iterator[str]:
    """Yield the most probable tokens with bars; ◂ marks the token of the text."""
    for id, logprob in row.top if row is not None else ():
        data = bytes_of(id)
        name = token_name(id, data)
        room = at.width - at.index - 2 - at.bar - 8 - 4
        line = f"{' ' * at.index}  {bar(math.exp(logprob), at.bar)}{percent(logprob):>7}  "
        yield line + (f"{_cut(name, room)} ◂" if id == chosen else _cut(name, room))


def stage_lines(token: TokenScore, at: Layout) -> Iterator[str]:
    """Yield what the stages of the sampler left and what became of the token, if recorded."""
    for line in _wrapped(stage_parts(token), " · ", at.width - at.index - 2):
        yield paint(f"{' ' * at.index}  {line}", DIM, at.color)


def found_line(found: Found, at: Layout) -> str:
    """The line of a string that was looked up: its probability, and the rank of its first token."""
    logprob, count = found.logprob, len(found.ids)
    tokens = f"  ({count} tokens)" if count > 1 else ""
    if logprob is None:
        logprob, tokens = found.first, f"  (the first of {count} tokens)"
    facts = f"{percent(logprob):>7}  {_bits(-logprob):>11}  rank {found.rank:,}"
    return _cut(f"{'?'.rjust(at.index)}  {facts}  {visible(found.text.encode())}{tokens}", at.width)


def render(
    reading: ScoredText, bytes_of: Callable[[int], bytes], width: int, *, color: bool = False
) -> Iterator[str]:
    """Yield the lines of the table. bytes_of: id -> the bytes of a token.

    meta["only_counted"]: whether only tokens that the sums cover have lines, as those of an answer.
    """
    tokens = reading.meta.get("tokens") or len((reading.meta.get("text") or "").encode("utf-8", "replace"))
    at = layout(tokens, width, color=color)
    summary, producible = Summary(reading.roles), Producible(reading.roles)
    yield header(at)
    shown = reading.roles if reading.meta.get("only_counted") else None
    for token in producible.watch(summary.watch(reading.tokens)):
        if shown is not None and (token.role not in shown or token.logprob is None):
            continue
        yield token_line(token, at)
        yield from stage_lines(token, at)
        for found in reading.found:
            yield paint(found_line(found, at), DIM, at.color)
        yield from candidate_lines(token.row, token.id, bytes_of, at)
    if reading.next is not None:
        entropy = _bits(reading.next.entropy)
        line = _cut(f"{'→'.rjust(at.index)}  next token  (entropy {entropy})", at.width)
        yield paint(line, DIM, at.color)
        yield from candidate_lines(reading.next, None, bytes_of, at)
        yield from (found_line(found, at) for found in reading.looked_up())
    for line in summary.role_lines():
        yield paint(line, DIM, at.color)
    yield paint(summary.line(), DIM, at.color)
    if producible.scored:
        parts = producible.line(reading.meta.get("sampling")).split("; ")
        yield from (paint(line, DIM, at.color) for line in _wrapped(parts, "; ", at.width))


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


def _bits(nats: float) -> str:
    return f"{round(nats / LN2, 2) + 0.0:.2f} bit"  # never -0.00


def _cut(text: str, width: int) -> str:
    return fit(text, width).rstrip() if cell_width(text) > width else text
