"""Scored texts as one HTML page: tinted tokens with candidates, see `page` and `spans`."""

import codecs
import math
from collections.abc import Iterable, Iterator

from ropechat.inspector import page
from ropechat.inspector.look_up import Found
from ropechat.inspector.scored_text import ScoredText, percent
from ropechat.inspector.spans import Token, TokenSpans
from ropechat.inspector.stages import describe_settings
from ropechat.trace import TokenScore
from ropechat.util.text import visible

_TINTS = (
    *(("surprisal", "surprisal"), ("rank", "rank"), ("entropy", "entropy"), ("margin", "margin")),
    ("none", "off"),
)
_FOUND = ("string", "tokens", "probability", "bits", "rank")
_PANEL = '<aside class="panel card needs-script" id="panel" aria-live="polite"></aside>\n'


def render(texts: Iterable[ScoredText], title: str) -> Iterator[str]:
    """Yield the page in pieces. title: plain text."""
    spans = TokenSpans()
    body = columns((piece for text in texts for piece in section(text, title, spans)), spans)
    yield from page.page(title, body, style=page.asset("tokens.css"), script=page.asset("tokens.js"))


def toolbar(more: str = "") -> str:
    """The switch of the tint, the threshold, the search, and the scale of the tint. more: HTML after them."""
    steps = "".join(f'<i class="t{step}"></i>' for step in range(page.TINTS))
    return (
        '<div class="toolbar">\n'
        + page.choice("tint", "Tint by", _TINTS)
        + f'<span class="legend"><span class="without-script">Tint: surprisal</span>'
        f'<span id="least-tint">0 bits</span><span class="gradient">{steps}</span>'
        f'<span id="full-tint">{page.FULL_TINT_BITS:g} or more</span></span>\n'
        '<label class="needs-script">Hide below <input type="range" id="least" min="0" max="16" step="0.5" '
        'value="0"> <output id="least-shown" for="least">0 bits</output></label>\n'
        '<label class="needs-script"><input type="search" id="search" placeholder="Search" '
        'aria-label="Search the text"> <output id="count" for="search"></output></label>\n'
        '<label class="needs-script"><input type="checkbox" id="charted"> Chart</label>\n'
        f'{more}<div id="chart"></div>\n</div>\n'
    )


def columns(content: Iterable[str], spans: TokenSpans, more: str = "") -> Iterator[str]:
    """Yield the toolbar, the content beside the panel, and the data of `spans`, which content fills.

    more: HTML at the end of the toolbar.
    """
    yield toolbar(more)
    yield '<div class="columns">\n<main>\n'
    yield from content
    yield f"</main>\n{_PANEL}</div>\n"
    yield from spans.blocks()


def section(scored: ScoredText, title: str, spans: TokenSpans) -> Iterator[str]:
    """Yield a text with its name, unless that is the title, and its facts."""
    spans.use("", scored.bytes_of)
    name = f"<h2>{page.line(scored.name)}</h2>\n" if scored.name not in ("", title) else ""
    yield f'<section class="text card">\n{name}'
    is_open = False
    complete = TextOfTokens(scored.meta.get("text"))
    for token in scored:
        kind = "special" if token.role in ("bos", "special") else "template"
        kind = "" if token.role in scored.roles else kind
        text, label = complete.next(token)
        if not is_open:
            yield _opening(token.index)
            is_open = True
        top = () if token.row is None else token.row.top
        numbers = (token.logprob, token.rank, token.entropy, top)
        yield spans.span(Token(token.id, text, label, kind, *numbers, scored.found, token))
    if not is_open:
        yield _opening(0)
    found = scored.looked_up() if scored.next is not None else ()
    yield "</pre>\n" if scored.next is None else f"{spans.next(scored.next, found)}</pre>\n"
    yield page.facts(_facts(scored))  # known only now; shown above the text
    if found:
        yield "<h3>Looked up after the text</h3>\n"
        yield from page.table(_FOUND, map(_looked_up, found), numbers=range(1, len(_FOUND)))
    yield "</section>\n"


def _opening(first: int) -> str:
    """The element that the spans of a text are in. first: the index of the first token."""
    return f'<pre class="tokens" data-first="{first}">'


def _looked_up(found: Found) -> tuple[str, ...]:
    logprob = found.first if found.logprob is None else found.logprob
    bits = page.number(-logprob / math.log(2))
    return visible(found.text.encode()), str(len(found.ids)), percent(logprob), bits, str(found.rank)


def _facts(text: ScoredText) -> Iterator[tuple[str, str]]:
    meta, sums, producible = text.meta, text.summary.counted, text.producible
    yield "model", str(meta.get("model") or "–")
    yield "weights", str(meta.get("dtype") or "–")
    yield "tokens", page.number(sums.tokens, 0)
    if sums.scored:
        yield "surprisal", f"{page.number(sums.nll / math.log(2), 1)} bits"
        yield "perplexity", page.number(sums.ppl)
        yield "bits per byte", page.number(sums.bits_per_byte, 3)
    if meta.get("window"):
        yield "window, stride", f"{meta['window']}, {meta.get('stride')}"
    if producible.scored:
        if (sampling := meta.get("sampling")) is not None:
            yield "sampler", describe_settings(sampling)
        yield "can be produced", f"{producible.produced:,} of {producible.scored:,} ({producible.share:.1%})"
        for name, count in producible.cuts.most_common():
            yield f"cut by {name}", f"{count:,}"


class TextOfTokens:
    """The part of a text that becomes complete with each token. text: None if unknown (ids only)."""

    def __init__(self, text: str | None) -> None:
        self._bytes = None if text is None else text.encode("utf-8", "surrogatepass")
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._end: int | None = None

    def next(self, token: TokenScore) -> tuple[str, str]:
        """(text, label) of the next token; one of them is empty."""
        label = visible(token.bytes) or token.text or f"#{token.id}"
        if self._bytes is None:
            return "", label
        start = token.span[0] if self._end is None else self._end  # more than 0 after the text of a prompt
        text = self._decoder.decode(self._bytes[start : token.span[1]])
        self._end = max(start, token.span[1])
        return text, "" if text else label
