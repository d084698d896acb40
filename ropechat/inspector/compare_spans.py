"""Two models with different tokenizers on one text: bits over the byte spans that both share, and by line.

Where both tokenizations have a boundary, the text between two boundaries has a probability under each model:
its surprisal in bits is comparable, whatever the tokens are. Perplexity per byte is 2^(bits / bytes).
"""

import bisect
import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ropechat.errors import RequestError
from ropechat.inspector.compare_text import (
    Given,
    Pairing,
    SideText,
    Span,
    pair_text,
    window_size,
)

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine


class SpanPair(NamedTuple):
    """A byte span of the text, or a line of it, under both models."""

    number: int
    """Among the common spans, from 0; for a line its number, from 1."""
    span: Span
    bits: tuple[float, float]
    """Surprisal under a and under b."""
    tokens: tuple[int, int]

    @property
    def difference(self) -> float:
        """Bits under b beyond those under a."""
        return self.bits[1] - self.bits[0]


class SpanSummary(NamedTuple):
    """Totals over the common spans."""

    bytes: int
    spans: int
    tokens: tuple[int, int]
    bits: tuple[float, float]

    @property
    def bits_per_byte(self) -> tuple[float, float]:
        """Bits per byte of each model."""
        return self.bits[0] / self.bytes, self.bits[1] / self.bytes

    @property
    def ppl_per_byte(self) -> tuple[float, float]:
        """Perplexity per byte of each model."""
        a, b = self.bits_per_byte
        return _power(a), _power(b)

    @property
    def ppl(self) -> tuple[float, float]:
        """Perplexity per token of each model; not comparable, as the tokens differ."""
        a, b = (_power(bits / count) for bits, count in zip(self.bits, self.tokens, strict=True))
        return a, b


@dataclass(frozen=True)
class SpanComparison:
    """The result of `compare_spans`: the spans in order, sums by line, and the worst of both.

    Worst are those whose bits differ most.
    """

    pairing: Pairing
    window: int | None
    summary: SpanSummary
    spans: tuple[SpanPair, ...]
    lines: tuple[SpanPair, ...]
    worst_spans: tuple[SpanPair, ...]
    worst_lines: tuple[SpanPair, ...]


class _Cut(NamedTuple):
    """A boundary of tokens: the byte, and bits and tokens before it."""

    at: int
    bits: float
    tokens: int


def compare_spans(
    a: "Engine",
    b: "Engine",
    text: str,
    *,
    given: Given = "",
    against_given: Given | None = None,
    worst: int = 20,
    window: int | None = None,
) -> SpanComparison:
    """Compare two models of any tokenizers on a text, span by span. Arguments and errors as of `compare`."""
    pairing = pair_text(a, b, text, given, against_given)
    return compare_pairing(pairing, worst=worst, window=window_size(pairing, window))


def compare_pairing(pairing: Pairing, *, worst: int = 20, window: int | None = None) -> SpanComparison:
    """`compare_spans` of a text that is encoded already."""
    pairs = common_spans(pairing, window=window)
    if not pairs:
        raise RequestError("text: has no boundary that both tokenizers share; give more text")
    start, end = pairs[0].span[0], pairs[-1].span[1]
    tokens = sum(pair.tokens[0] for pair in pairs), sum(pair.tokens[1] for pair in pairs)
    bits = math.fsum(pair.bits[0] for pair in pairs), math.fsum(pair.bits[1] for pair in pairs)
    summary = SpanSummary(end - start, len(pairs), tokens, bits)
    lines = by_line(pairing.text, pairs)
    return SpanComparison(
        pairing, window, summary, tuple(pairs), tuple(lines), _worst(pairs, worst), _worst(lines, worst)
    )


def common_spans(pairing: Pairing, *, window: int | None = None) -> list[SpanPair]:
    """The spans between two neighbouring boundaries that both tokenizations have, in order."""
    left, right = ({cut.at: cut for cut in _cuts(side, window)} for side in (pairing.a, pairing.b))
    places = sorted(left.keys() & right.keys())
    found = list[SpanPair]()
    for index, (start, end) in enumerate(itertools.pairwise(places)):
        changes = [(cuts[start], cuts[end]) for cuts in (left, right)]
        bits, others = (max(0.0, after.bits - before.bits) for before, after in changes)
        tokens, more = (after.tokens - before.tokens for before, after in changes)
        found.append(SpanPair(index, (start, end), (bits, others), (tokens, more)))
    return found


def by_line(text: bytes, pairs: Sequence[SpanPair]) -> list[SpanPair]:
    """Sums by line. A span belongs to the line in which it begins."""
    ends = [at + 1 for at, byte in enumerate(text) if byte == 0x0A]
    found = list[SpanPair]()
    for _, span, bits, tokens in pairs:
        number = bisect.bisect_right(ends, span[0]) + 1
        if not found or found[-1].number != number:
            found.append(SpanPair(number, span, bits, tokens))
            continue
        last = found[-1]
        total = last.bits[0] + bits[0], last.bits[1] + bits[1]
        count = last.tokens[0] + tokens[0], last.tokens[1] + tokens[1]
        found[-1] = SpanPair(number, (last.span[0], span[1]), total, count)
    return found


def _worst(pairs: Sequence[SpanPair], count: int) -> tuple[SpanPair, ...]:
    return tuple(heapq.nlargest(count, pairs, key=lambda pair: abs(pair.difference)))


def _cuts(side: SideText, window: int | None) -> Iterator[_Cut]:
    """The boundaries of a side's tokens, from the first that has a score on; none is within a token."""
    bits, count, end, begun = 0.0, 0, 0, False
    stream = side.engine.score_stream(side.item, top_k=0, special="text", window=window)
    for token in stream:
        start, stop = (max(0, at - side.begin) for at in token.span)
        if token.logprob is None or (stop == 0 and side.begin) or (start == stop and token.role == "special"):
            continue
        if not begun or start >= end:
            yield _Cut(max(start, end), bits, count)
            begun = True
        end = max(end, stop)
        bits -= token.logprob / math.log(2.0)
        count += 1
    if begun:
        yield _Cut(end, bits, count)


def _power(bits: float) -> float:
    try:
        return float(2.0**bits)
    except OverflowError:
        return math.inf
