"""Two models on one text, token by token: KL divergence, ranks, the places where they differ most.

Both compute in turn, in blocks of at most 32 logit rows, so memory does not depend on the length of the text.
All numbers are raw (temperature 1, no filter), over the full vocabulary, in nats. KL is from the first model,
`a`, to the second, `b`: KL(a || b) = sum_i p_a(i) ln(p_a(i) / p_b(i)), with 0 ln 0 = 0; it is infinite where
b excludes an id that a does not. JS is the Jensen-Shannon divergence, 0 to ln 2.
"""

import heapq
import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ropechat.errors import InternalError, RequestError
from ropechat.inspector.compare_text import (
    Given,
    Pairing,
    Span,
    pair_text,
    window_size,
)

if TYPE_CHECKING:
    from ropechat.engine import _core
    from ropechat.engine.engine import Engine
    from ropechat.engine.scoring import Window

TOP_K = 5
_PROGRESS = 32


class View(NamedTuple):
    """The figures of a token under one model."""

    logprob: float
    rank: int
    entropy: float
    top: tuple[tuple[int, float], ...]
    """(id, logprob) of its most probable ids, at least the best one."""


class TokenPair(NamedTuple):
    """A token of the text under both models."""

    number: int
    """The index among the tokens that the first model reads, its prompt and BOS included, as in `inspect`."""
    id: int
    span: Span
    """Byte range in the text."""
    context: tuple[int, int]
    """Number of tokens before it that each model saw."""
    kl: float
    kl_back: float
    js: float
    a: View
    b: View

    @property
    def same_top(self) -> bool:
        """Whether both models have the same most probable token."""
        return self.a.top[0][0] == self.b.top[0][0]


@dataclass(frozen=True)
class Summary:
    """A comparison in numbers, named as llama-perplexity names them; `error` is a standard error.

    An infinite divergence makes means infinite and their errors NaN.
    """

    tokens: int
    ppl_a: float
    ppl_b: float
    ln_ppl_ratio: float
    """Mean of ln(PPL(b) / PPL(a))."""
    ln_ppl_ratio_error: float
    mean_kld: float
    mean_kld_error: float
    median_kld: float
    p99_kld: float
    max_kld: float
    mean_kld_back: float
    mean_js: float
    same_top: float
    """Share of tokens for which both have the same most probable token."""
    same_top_error: float


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`. worst: the tokens with the largest KL divergence, worst first."""

    pairing: Pairing
    window: int | None
    """Size of the windows; None if the text fits into one."""
    summary: Summary
    worst: tuple[TokenPair, ...]


def compare(
    a: "Engine",
    b: "Engine",
    text: str | Sequence[int],
    *,
    given: Given = "",
    against_given: Given | None = None,
    top_k: int = TOP_K,
    worst: int = 20,
    window: int | None = None,
) -> Comparison:
    """Compare two models with the same tokenizer on a text, token by token. a and b may be one engine.

    given: what comes before the text: a text, or the messages that it replies to; against_given: the same for
    b, by default as for a. Only tokens of the text count; tokens at its beginning that the models do not read
    alike, next to two different prompts, do not. top_k: candidates per token and model. worst: number of
    places to keep. window: most tokens of a sequence; default: what both models were trained for.

    Raises RequestError when the tokenizers differ (see `compare_spans.compare_spans`), NonFiniteError that
    names the side for NaN or +inf among the logits, and as `Engine.score`.
    """
    pairing = pair_text(a, b, text, given, against_given)
    if not pairing.shared:
        raise RequestError(
            "text: the two models must have the same tokenizer to be compared by token; use compare_spans"
        )
    return compare_tokens(pairing, top_k=top_k, worst=worst, window=window_size(pairing, window))


def compare_tokens(
    pairing: Pairing,
    *,
    top_k: int = TOP_K,
    worst: int = 20,
    window: int | None = None,
    on_token: Callable[[TokenPair], object] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Comparison:
    """`compare` of a text that is encoded already. window: as `window_size` says.

    on_token: called for each token. on_progress(done): in tokens, now and then.
    """
    totals, places = _Totals(), list[tuple[float, int, TokenPair]]()
    for done, (place, context, row) in enumerate(_rows(pairing, top_k, window), 1):
        totals.add(row)
        is_worse = worst > 0 and (len(places) < worst or row.kl > places[0][0])
        if is_worse or on_token is not None:  # only then, because it takes time
            pair = _token(pairing, place, context, row)
            if is_worse:
                (heapq.heappush if len(places) < worst else heapq.heapreplace)(places, (row.kl, -place, pair))
            if on_token is not None:
                on_token(pair)
        if on_progress is not None and done % _PROGRESS == 1:
            on_progress(done)
    found = tuple(pair for _, _, pair in sorted(places, key=lambda entry: entry[:2], reverse=True))
    return Comparison(pairing, window, totals.summary(), found)


def token_pairs(pairing: Pairing, *, top_k: int = TOP_K, window: int | None = None) -> Iterator[TokenPair]:
    """Yield the shared tokens of a text in order."""
    for place, context, row in _rows(pairing, top_k, window):
        yield _token(pairing, place, context, row)


def _token(pairing: Pairing, place: int, context: tuple[int, int], row: "_core.RowPair") -> TokenPair:
    (a, b), (rank, other) = row.logprobs, row.ranks
    views = _view(row.a, a, rank), _view(row.b, b, other)
    left = pairing.a
    return TokenPair(place, left.ids[place], left.span(place), context, row.kl, row.kl_back, row.js, *views)


def _rows(
    pairing: Pairing, top_k: int, window: int | None
) -> "Iterator[tuple[int, tuple[int, int], _core.RowPair]]":
    """Yield the place of each shared token in the ids of a, the tokens before it, and its rows."""
    left, right = pairing.a, pairing.b
    size = max(len(left.ids), len(right.ids)) if window is None else window
    offset = len(right.ids) - len(left.ids)
    place = len(left.ids) - pairing.shared
    for at, other in zip(left.windows(size), right.windows(size), strict=True):
        begin, other_begin = at.begin, other.begin - offset
        for rows in _blocks(pairing, (at, other), place, top_k):
            for row in rows:
                yield place, (place - begin, place - other_begin), row
                place += 1
    if place != len(left.ids):
        raise InternalError(f"compare: {len(left.ids) - place} tokens of {pairing.shared} were not compared")


def _blocks(
    pairing: Pairing, windows: "tuple[Window, Window]", place: int, top_k: int
) -> "Iterator[list[_core.RowPair]]":
    """Yield blocks of compared rows of a window. place: of the first compared token, in the ids of a."""
    offset = len(pairing.b.ids) - len(pairing.a.ids)
    last = windows[0].begin + len(windows[0].ids)
    if place == last:  # only the row after the text is left
        return
    readers = []
    for side, window, first in zip((pairing.a, pairing.b), windows, (place, place + offset), strict=True):
        ids = window.ids if window.is_last else window.ids[:-1]  # the last one is only compared
        readers.append(side.engine.logit_rows(ids, first=first - 1 - window.begin))
    try:
        for rows, others in zip(*readers, strict=True):
            following = pairing.a.ids[place : min(place + len(rows), last)].tolist()
            count = len(following)  # the row after the text's last token is not wanted
            yield pairing.a.engine.compare_rows(
                rows[:count], others[:count], following, top_k=max(1, top_k), position=place - 1
            )
            place += count
            if place == last:
                break
    finally:
        for reader in readers:
            reader.close()


def _view(row: "_core.Row", logprob: float, rank: int) -> View:
    return View(logprob, rank, row.entropy, tuple(zip(row.top_ids, row.top_logprobs, strict=True)))


class _Totals:
    """The sums of a comparison: 16 bytes per token, because quantiles need all divergences."""

    def __init__(self) -> None:
        self._kl, self._ratio = array("d"), array("d")
        self._loss = [0.0, 0.0]
        self._back = self._js = 0.0
        self._same = 0

    def add(self, row: "_core.RowPair") -> None:
        a, b = row.logprobs
        self._kl.append(row.kl)
        self._ratio.append(a - b)
        self._loss[0] -= a
        self._loss[1] -= b
        self._back += row.kl_back
        self._js += row.js
        self._same += row.a.top_ids[0] == row.b.top_ids[0]

    def summary(self) -> Summary:
        import numpy as np  # imported here: the engine has loaded it by now

        count = len(self._kl)
        ordered = array("d", np.sort(np.frombuffer(self._kl)))
        ratio, ratio_error = mean_and_error(self._ratio)
        mean, mean_error = mean_and_error(self._kl)
        same = self._same / count
        return Summary(
            tokens=count,
            ppl_a=perplexity(self._loss[0] / count),
            ppl_b=perplexity(self._loss[1] / count),
            ln_ppl_ratio=ratio,
            ln_ppl_ratio_error=ratio_error,
            mean_kld=mean,
            mean_kld_error=mean_error,
            median_kld=quantile(ordered, 0.5),
            p99_kld=quantile(ordered, 0.99),
            max_kld=ordered[-1],
            mean_kld_back=self._back / count,
            mean_js=self._js / count,
            same_top=same,
            same_top_error=math.sqrt(same * (1.0 - same) / (count - 1)) if count > 1 else math.nan,
        )


def perplexity(loss: float) -> float:
    """exp of a mean negative log likelihood."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error; the error is NaN for one value and for infinite ones."""
    count = len(values)
    try:
        mean = math.fsum(values) / count
        spread = math.fsum((value - mean) ** 2 for value in values)
    except (OverflowError, ValueError):  # infinities of one sign, or of both
        return sum(values) / count, math.nan
    if not math.isfinite(mean) or count < 2:
        return mean, math.nan
    return mean, math.sqrt(spread / count / (count - 1))


def quantile(ordered: Sequence[float], share: float) -> float:
    """The quantile of sorted values, linear between two of them."""
    place = share * (len(ordered) - 1)
    lower = math.floor(place)
    rest = place - lower
    if rest == 0.0:
        return ordered[lower]
    return (1.0 - rest) * ordered[lower] + rest * ordered[lower + 1]
