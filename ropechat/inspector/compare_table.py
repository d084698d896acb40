"""A comparison for a terminal: the summary, then the places where two models differ most, side by side.

#41  KL 0.4702  JS 0.0963  …Tim found a spe[ll] that
    A  52.00%  rank 1               B  89.00%  rank 1
       52.00%  ll ◂                    89.00%  ll ◂
       20.10%  cial                     5.00%  cial
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from ropechat.inspector.ansi import BOLD, DIM, REVERSE, paint
from ropechat.inspector.compare import Comparison, Summary, TokenPair, View
from ropechat.inspector.compare_spans import SpanComparison, SpanPair, SpanSummary
from ropechat.inspector.compare_text import Pairing, SideText, Span, side_facts
from ropechat.inspector.scored_text import nats_of
from ropechat.util.records import Column, Table, number
from ropechat.util.text import token_name, visible
from ropechat.util.width import cell_width, fit

_MIN_WIDTH = 60
_LABEL = 24
_AFTER = 12  # columns of text behind a place


@dataclass(frozen=True)
class _Style:
    width: int
    color: bool

    def paint(self, text: str, code: str) -> str:
        return paint(text, code, self.color)

    def heading(self, text: str) -> str:
        return self.paint(fit(text, self.width).rstrip(), BOLD)


def render(
    result: Comparison | SpanComparison,
    width: int,
    *,
    candidates: int = 3,
    color: bool = False,
    unit: str = "bit",
) -> Iterator[str]:
    """Yield the lines. width: of the terminal. candidates: of each model at each place."""
    style = _Style(max(width, _MIN_WIDTH), color)
    yield from _sides(result.pairing, style)
    if isinstance(result, Comparison):
        for name, value in summary_rows(result.summary, unit):
            yield f"{name:<{_LABEL}}{value}"
        yield ""
        yield (
            style.heading(f"Worst places by KL divergence, in {unit}s")
            if result.worst
            else "No place was asked for."
        )
        for pair in result.worst:
            yield from _place(result.pairing, pair, candidates, style, nats_of(unit))
        return
    found = result.summary
    yield "Different tokenizers: bits over common byte spans."
    yield f"{'compared bytes, spans':<{_LABEL}}{found.bytes:,}, {found.spans:,}"
    rows = (("", "A", "B"), *span_summary_rows(found))
    width = max(14, *(2 + len(value) for _, *values in rows for value in values))
    for name, a, b in rows:
        yield f"{name:<{_LABEL}}{a:>{width}}{b:>{width}}"
    for title, pairs in (("spans", result.worst_spans), ("lines", result.worst_lines)):
        yield ""
        yield from _span_table(result.pairing, title, pairs, style)


def side_names(pairing: Pairing) -> tuple[str, str]:
    """A name for each side that says in what they differ."""
    a, b = (_description(side) for side in (pairing.a, pairing.b))
    return a, b


def _description(side: SideText) -> str:
    facts = side_facts(side)
    prompt = f", prompt of {side.first} tokens" if side.first > 1 else ""
    return f"{facts['model']} {facts['dtype']}, kv {facts['kv_dtype']}{prompt}"


def _sides(pairing: Pairing, style: _Style) -> Iterator[str]:
    for letter, name in zip("AB", side_names(pairing), strict=True):
        yield fit(visible_line(f"{letter}  {name}"), style.width).rstrip()
    yield ""


def visible_line(text: str) -> str:
    """Text on one line; a space stays a space."""
    return visible(text.encode("utf-8", "replace")).replace("·", " ")


def summary_rows(found: Summary, unit: str = "bit") -> list[tuple[str, str]]:
    """The summary as (name, value), with the names that llama-perplexity uses."""
    scale, log = nats_of(unit), "ln" if unit == "nat" else "log2"

    def amount(*nats: float) -> str:
        return f"{' ± '.join(_divergence(value / scale) for value in nats)} {unit}"

    return [
        ("compared tokens", f"{found.tokens:,}"),
        ("PPL(A)", number(found.ppl_a, ",.4f")),
        ("PPL(B)", number(found.ppl_b, ",.4f")),
        (
            f"{log}(PPL(B)/PPL(A))",
            _with_error(found.ln_ppl_ratio / scale, found.ln_ppl_ratio_error / scale, 6),
        ),
        ("mean KLD(A, B)", amount(found.mean_kld, found.mean_kld_error)),
        ("median KLD", amount(found.median_kld)),
        ("99% KLD", amount(found.p99_kld)),
        ("maximum KLD", amount(found.max_kld)),
        ("mean KLD(B, A)", amount(found.mean_kld_back)),
        ("mean JSD", amount(found.mean_js)),
        ("same top token", _with_error(100 * found.same_top, 100 * found.same_top_error, 3) + " %"),
    ]


def span_summary_rows(found: SpanSummary) -> list[tuple[str, str, str]]:
    """The summary of spans as (name, value of A, value of B)."""
    return [
        (name, number(a, form), number(b, form))
        for name, (a, b), form in (
            ("tokens", found.tokens, ",.0f"),
            ("bits", found.bits, ",.1f"),
            ("bits per byte", found.bits_per_byte, ",.4f"),
            ("PPL per byte", found.ppl_per_byte, ",.4f"),
            ("PPL per own token", found.ppl, ",.4f"),
        )
    ]


def _with_error(value: float, error: float, digits: int) -> str:
    return f"{number(value, f',.{digits}f')} ± {number(error, f',.{digits}f')}"


def _divergence(value: float) -> str:
    """A divergence with six decimals, or with four digits if it is small."""
    return f"{value:.3e}" if 0.0 < value < 0.001 else number(value, ",.6f")


def _place(pairing: Pairing, pair: TokenPair, candidates: int, style: _Style, scale: float) -> Iterator[str]:
    yield ""
    head = f"#{pair.number}  KL {number(pair.kl / scale, ',.4f')}  JS {number(pair.js / scale, ',.4f')}  "
    yield head + snippet(pairing.text, pair.span, style.width - len(head), style)
    half = (style.width - 4) // 2
    sides = [_column(pairing, view, pair.id, candidates) for view in (pair.a, pair.b)]
    heads = [
        f"{letter} {math.exp(view.logprob):7.2%}  rank {view.rank:,}"
        for letter, view in zip("AB", (pair.a, pair.b), strict=True)
    ]
    yield style.paint(f"    {fit(heads[0], half)}{fit(heads[1], half)}".rstrip(), DIM)
    for left, right in zip_longest(*sides, fillvalue=""):
        yield f"    {_cell(left, half)}{_cell(right, half)}".rstrip()


def _column(pairing: Pairing, view: View, chosen: int, candidates: int) -> list[str]:
    return [
        f"  {math.exp(logprob):7.2%}  {token_name(id, pairing.a.engine.token_bytes(id))}"
        + (" ◂" if id == chosen else "")
        for id, logprob in view.top[:candidates]
    ]


def _cell(text: str, width: int) -> str:
    """A cell with a space behind it; a cut one keeps the mark of the token of the text."""
    if cell_width(text) < width or not text.endswith(" ◂"):
        return fit(text, width - 1) + " "
    return fit(text[:-2], width - 3).rstrip() + " ◂ "


def snippet(text: bytes, span: Span, width: int, style: _Style | None = None) -> str:
    """The text around a span, which is marked, on one line of at most `width` columns."""
    start, end = span
    token = visible(text[start:end])
    before = visible_line(text[max(0, start - 4 * width) : start].decode("utf-8", "replace"))
    after = visible_line(text[end : end + 4 * _AFTER].decode("utf-8", "replace"))
    token = fit(token, max(4, width - 8)).rstrip() if cell_width(token) > width - 8 else token
    after = _clip(after, max(0, min(_AFTER, width - 2 - cell_width(token))))
    room = max(0, width - cell_width(token) - cell_width(after) - 2)
    marked = f"[{token}]" if style is None or not style.color else style.paint(f"[{token}]", REVERSE)
    return _clip_left(before, room) + marked + after


def _clip(text: str, width: int) -> str:
    while cell_width(text) > width:
        text = text[:-1]
    return text


def _clip_left(text: str, width: int) -> str:
    """The end of a text that fits, with … where it is cut."""
    if cell_width(text) <= width:
        return text
    while text and cell_width(text) > width - 1:
        text = text[max(1, (len(text) - width) // 2) :]
    return f"…{text}" if width > 0 else ""


def _span_table(pairing: Pairing, title: str, pairs: Sequence[SpanPair], style: _Style) -> Iterator[str]:
    """A line per pair. title: "spans" or "lines"."""
    room = style.width - 39

    def text(pair: SpanPair) -> str:
        if title == "spans":
            return snippet(pairing.text, pair.span, room, style)
        return fit(visible_line(pairing.text[slice(*pair.span)].decode("utf-8", "replace")), room).rstrip()

    out = Table(
        Column(title[:-1], 7, lambda pair: str(pair.number)),
        Column("A", 8, lambda pair: number(pair.bits[0], ",.2f")),
        Column("B", 8, lambda pair: number(pair.bits[1], ",.2f")),
        Column("B - A", 8, lambda pair: number(pair.difference, ",.2f")),
        Column("text", 0, text),
    )
    yield style.heading(f"{title} that differ most, in bits")
    yield style.paint(out.head, DIM)
    yield from (out.line(pair).rstrip() for pair in pairs)
