"""What parts of a context do to an answer, as one HTML page: the tinted context, and the answer's tokens."""

from collections.abc import Iterator

from ropechat.inspector import page, trace_page
from ropechat.inspector.scored_text import ScoredText
from ropechat.inspector.spans import TokenSpans
from ropechat.inspector.why.records import part_name
from ropechat.inspector.why.result import PartScore, Why
from ropechat.inspector.why.table import answer_line, listed, meaning, stretches, summary_lines

_ROWS = 60
_HEADER = ("bits", "part", "tokens", "text")
_LONGEST = 200
_STYLE = """
.context { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; font: 15px/1.75 var(--sans); }
.context span { border-radius: 3px; padding: .1em 0; box-decoration-break: clone; }
.context .against { text-decoration: underline dotted var(--accent) 2px; text-underline-offset: .25em; }
.context span:target { outline: 2px solid var(--ink); outline-offset: 1px; }
.context + h3, .card > h3 { font-size: .9rem; margin: 0 0 .4rem; }
td:nth-child(2) { white-space: nowrap; }
.context:not(:last-child) { margin-bottom: 1rem; }
"""


def render(why: Why) -> Iterator[str]:
    """Yield the page in pieces."""
    spans = TokenSpans()
    style = page.asset("tokens.css") + _STYLE
    body = trace_page.columns(_content(why, spans), spans)
    yield from page.page(
        "Why this answer?", body, lead=answer_line(why), style=style, script=page.asset("tokens.js")
    )


def _content(why: Why, spans: TokenSpans) -> Iterator[str]:
    numbers, scale = {one: at for at, one in enumerate(why.walk())}, why.scale
    yield f'<section class="card">\n<h3>Context: {page.line(meaning(why))}</h3>\n'
    steps = "".join(f'<i class="t{step}"></i>' for step in range(page.TINTS))
    yield f'<p class="legend"><span>0</span><span class="gradient">{steps}</span>'
    yield f"<span>{page.number(scale)} bits</span></p>\n"
    for name, pieces in stretches(why):
        yield f"<h3>{page.line(name)}</h3>\n" if name else ""
        yield '<pre class="context">'
        for text, one in pieces:
            yield page.text(text) if one is None else _part(one, numbers.pop(one, None), text, scale)
        yield "</pre>\n"
    yield "</section>\n<h2>Strongest parts</h2>\n"
    yield from _table(why)
    for line in summary_lines(why):
        yield f'<p class="dim">{page.line(line)}</p>\n'
    yield "<h2>The answer, with the whole context</h2>\n"
    scored = ScoredText(why.trace, bytes_of=lambda id: why.words.get(id, b""))
    yield from trace_page.section(scored, "", spans)


def _part(one: PartScore, number: int | None, text: str, scale: float) -> str:
    """The span of a part. number: its place, unless it has one in an earlier text."""
    share = 0.0 if one.bits is None or not scale else one.bits / scale
    classes = [f"t{level}"] if (level := page.level(share)) else []
    classes += ["against"] if share <= -1 / page.TINTS else []
    named = f' class="{" ".join(classes)}"' if classes else ""
    place = "" if number is None else f' id="p{number}"'
    return f'<span{place}{named} title="{page.number(one.bits)} bits">{page.text(text)}</span>'


def _table(why: Why) -> Iterator[str]:
    numbers = {one: at for at, one in enumerate(why.walk())}
    rows = sorted(listed(why, _ROWS), key=lambda one: -one.change)
    cells = (
        (page.number(one.bits), part_name(why, one.part), f"{one.tokens:,}", _shown(why, one)) for one in rows
    )
    pieces = page.table(_HEADER, cells, numbers=(0, 2))
    for piece, one in zip(pieces, (None, *rows, None), strict=True):
        if one is None or one.parts:
            yield piece
        else:
            shown = page.line(_shown(why, one))
            yield piece.replace(f"<td>{shown}</td>", f'<td><a href="#p{numbers[one]}">{shown}</a></td>', 1)


def _shown(why: Why, one: PartScore) -> str:
    text = " ".join(why.text[slice(*one.span)].split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
