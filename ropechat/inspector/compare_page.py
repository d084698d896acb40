"""A comparison as one HTML page: the text tinted by divergence, both models' candidates side by side.

Without script: the summary, the text with numbers in its titles, and the worst places as a table whose rows
link into the text. With it: candidates of both models at a token, keys, and a switch of the tint.
"""

import codecs
import json
import math
from collections.abc import Iterable, Iterator, Sequence

from ropechat.inspector import page
from ropechat.inspector.compare import Comparison, Summary, TokenPair, View
from ropechat.inspector.compare_spans import SpanComparison, SpanPair
from ropechat.inspector.compare_table import (
    side_names,
    snippet,
    span_summary_rows,
    summary_rows,
    visible_line,
)
from ropechat.inspector.compare_text import Pairing, Span
from ropechat.inspector.scored_text import nats_of
from ropechat.util.text import token_name

_DIGITS = 5
_CANDIDATE_DIGITS = 4  # of logprobs that are shown as percentages with three digits
_SNIPPET = 60
_TITLE = "Two models on one text"
_PANEL = '<aside class="panel card needs-script" id="panel" aria-live="polite"></aside>\n'
_TINTS = (("kl", "KL divergence"), ("delta", "change of the token's bits"), ("top", "other best token"))


def render(
    result: Comparison | SpanComparison, pairs: Iterable[TokenPair] = (), unit: str = "bit"
) -> Iterator[str]:
    """Yield the page in pieces. pairs: the tokens of a Comparison, in order. unit: of divergences."""
    body = _token_body(result, pairs, unit) if isinstance(result, Comparison) else _span_body(result)
    a, b = side_names(result.pairing)
    style, script = page.asset("compare.css"), page.asset("compare.js")
    if isinstance(result, SpanComparison):
        script = ""
    yield from page.page(_TITLE, body, lead=f"A: {a}. B: {b}.", style=style, script=script)


def _token_body(result: Comparison, pairs: Iterable[TokenPair], unit: str) -> Iterator[str]:
    scale = nats_of(unit)
    pairing, words = result.pairing, _Words(result.pairing, scale)
    full, linked = full_tint(result.summary), {pair.number for pair in result.worst}
    yield '<section class="card">\n'
    yield page.facts(summary_rows(result.summary, unit))
    yield "</section>\n"
    steps = "".join(f'<i class="t{step}"></i>' for step in range(page.TINTS))
    yield f'<div class="toolbar">\n{page.choice("tint", "Tint by", _TINTS)}<span class="legend">'
    yield f'<span class="without-script">Tint: KL divergence</span><span>0</span>{steps}'
    yield f'<span id="full">{full / scale:.2g} {unit}s or more</span></span>\n</div>\n'
    yield '<div class="columns">\n<main class="card">\n<pre class="tokens">'
    rows, at, decoder = list[str](), 0, codecs.getincrementaldecoder("utf-8")("replace")
    for pair in pairs:
        start, end = pair.span
        if start > at:
            yield f'<span class="dim">{_text(pairing, (at, start))}</span>'
        at, begin = max(at, end), max(at, start)
        shade, divergence = page.level(pair.kl / full), f"KL {page.number(pair.kl / scale, 4)} {unit}"
        text = decoder.decode(pairing.text[begin:at])
        yield _token(pairing, pair, text, shade, divergence, pair.number in linked)
        rows.append(words.row(pair))
    yield f"</pre>\n</main>\n{_PANEL}</div>\n"
    yield from _worst_table(result, unit)
    yield page.data_text("rows", f"[{','.join(rows)}]")
    yield page.data("words", words.words)
    first = len(pairing.a.ids) - pairing.shared  # of the rows
    yield page.data("worst", [pair.number - first for pair in result.worst])
    yield page.data("scale", {"kl": full / scale, "unit": unit})


def full_tint(summary: Summary) -> float:
    """The divergence at which the tint is at its strongest: the 99 % quantile, if it is above 0."""
    return summary.p99_kld if 0.0 < summary.p99_kld < math.inf else 1.0


def _token(pairing: Pairing, pair: TokenPair, text: str, shade: int, divergence: str, is_linked: bool) -> str:
    """The span of a token. text: the characters that become complete with it. is_linked: from the table."""
    named = f' class="t{shade}"' if shade else ""
    views = " · ".join(
        f"{letter} {math.exp(view.logprob):.1%}, rank {view.rank}, best {_word(pairing, view.top[0][0])}"
        for letter, view in zip("AB", (pair.a, pair.b), strict=True)
    )
    title = page.line(f"{divergence} · {views}")
    shown = page.text(text) or f'<span class="dim">{page.line(_word(pairing, pair.id))}</span>'
    place = f' id="p{pair.number}"' if is_linked else ""
    return f'<span{place}{named} title="{title}">{shown}</span>'


def _worst_table(result: Comparison, unit: str) -> Iterator[str]:
    pairing, scale = result.pairing, nats_of(unit)
    yield f"<h2>Worst places by KL divergence, in {unit}s</h2>\n"
    header = ("", "KL", "JS", "text", "A: token", "rank", "best", "B: token", "rank", "best")
    rows = (
        (
            f"#{pair.number}",
            page.number(pair.kl / scale, 4),
            page.number(pair.js / scale, 4),
            snippet(pairing.text, pair.span, _SNIPPET),
            *_view_cells(pairing, pair.a),
            *_view_cells(pairing, pair.b),
        )
        for pair in result.worst
    )
    linked = zip(
        page.table(header, rows, numbers=(1, 2, 4, 5, 7, 8)), (None, *result.worst, None), strict=True
    )
    for piece, pair in linked:
        number = "" if pair is None else str(pair.number)
        yield piece.replace(f">#{number}<", f'><a href="#p{number}">#{number}</a><', 1) if number else piece


def _view_cells(pairing: Pairing, view: View) -> tuple[str, str, str]:
    id, logprob = view.top[0]
    return f"{math.exp(view.logprob):.2%}", f"{view.rank:,}", f"{_word(pairing, id)} {math.exp(logprob):.1%}"


class _Words:
    """The data of tokens for the script, and the text of each id once. scale: nats in a divergence's unit."""

    def __init__(self, pairing: Pairing, scale: float) -> None:
        self._pairing, self._scale = pairing, scale
        self.words: dict[int, str] = {}

    def row(self, pair: TokenPair) -> str:
        """[id, kl, js, view of a, view of b]; a view is [logprob, rank, [id, logprob, ...]]."""
        sides = (self._view(pair.a), self._view(pair.b))
        row = [self._known(pair.id), _rounded(pair.kl / self._scale), _rounded(pair.js / self._scale), *sides]
        return json.dumps(row, allow_nan=False, separators=(",", ":"))

    def _view(self, view: View) -> list[object]:
        top: list[object] = []
        for id, logprob in view.top:
            top += [self._known(id), _rounded(logprob, _CANDIDATE_DIGITS)]
        return [_rounded(view.logprob), view.rank, top]

    def _known(self, id: int) -> int:
        if id not in self.words:
            self.words[id] = _word(self._pairing, id)
        return id


def _word(pairing: Pairing, id: int) -> str:
    return token_name(id, pairing.a.engine.token_bytes(id))


def _text(pairing: Pairing, span: Span) -> str:
    return page.text(pairing.text[slice(*span)].decode("utf-8", "replace"))


def _rounded(value: float, digits: int = _DIGITS) -> float | None:
    return round(value, digits) + 0.0 if math.isfinite(value) else None


def _span_body(result: SpanComparison) -> Iterator[str]:
    pairing = result.pairing
    yield '<section class="card">\n<p>The tokenizers differ: bits of the byte spans that both share.</p>\n'
    yield from page.table(("", "A", "B"), span_summary_rows(result.summary), numbers=(1, 2))
    yield "</section>\n<h2>Text, tinted where the bits differ</h2>\n"
    full = max((abs(pair.difference) for pair in result.spans), default=0.0) or 1.0
    yield '<main class="card">\n<pre class="tokens">'
    at = 0
    for pair in result.spans:
        if pair.span[0] > at:
            yield f'<span class="dim">{_text(pairing, (at, pair.span[0]))}</span>'
        shade = page.level(abs(pair.difference) / full)
        kind = f"t{shade}" + (" worse" if pair.difference > 0 else " better") * bool(shade)
        title = f"A {page.number(pair.bits[0])} bits · B {page.number(pair.bits[1])} bits"
        yield f'<span class="{kind}" title="{page.line(title)}">{_text(pairing, pair.span)}</span>'
        at = pair.span[1]
    yield f'<span class="dim">{_text(pairing, (at, len(pairing.text)))}</span></pre>\n</main>\n'
    yield from _span_table("Spans that differ most", "span", result.worst_spans, pairing)
    yield from _span_table("Lines that differ most", "line", result.worst_lines, pairing)


def _span_table(title: str, name: str, pairs: Sequence[SpanPair], pairing: Pairing) -> Iterator[str]:
    yield f"<h2>{page.line(title)}</h2>\n"
    rows = (
        (
            str(pair.number),
            *(page.number(value) for value in (*pair.bits, pair.difference)),
            visible_line(pairing.text[slice(*pair.span)].decode("utf-8", "replace"))
            if name == "line"
            else snippet(pairing.text, pair.span, _SNIPPET),
        )
        for pair in pairs
    )
    yield from page.table((name, "bits A", "bits B", "B - A", "text"), rows, numbers=(0, 1, 2, 3))
