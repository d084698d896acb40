"""Where one head attends, token by token: a heat map for a terminal, a page, and JSON lines.

A row is a token that attends, a column a token that it attends to (itself or an earlier one), a cell the
weight. JSON lines (schema `ropechat.attention_map/1`): line 1 describes text, model, layer and head, with the
`tokens`; one line per token follows, whose `weights` are those of the tokens 0 to `i`. A row sums to 1, less
the weight of a learned sink.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ropechat.engine.validation import MAX_ARRAY_BYTES
from ropechat.errors import CancelledError, MemoryLimitError, RequestError
from ropechat.inspector import page
from ropechat.inspector.ansi import DIM, paint
from ropechat.util.records import TokenText, json_line
from ropechat.util.text import limit_words, token_name
from ropechat.util.width import cell_width, fit

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine

SCHEMA = "ropechat.attention_map/1"
MOST_IN_PAGE = 256
"""Tokens of a page at most: it has a cell for each two of them."""
_SHADES = ((0.01, " "), (0.05, "·"), (0.15, "░"), (0.35, "▒"), (0.65, "▓"), (math.inf, "█"))
_TOKEN, _BEST, _TOPS = 12, 2, 18
_STYLE = """
.map { overflow-x: auto; }
.map table { border-collapse: collapse; font: .75rem var(--mono); width: max-content; }
.map td, .map th { padding: 0; border: 0; }
.map td { width: 1.15rem; min-width: 1.15rem; height: 1.15rem; }
.map thead th { vertical-align: bottom; height: 6.5rem; width: 1.15rem; font-weight: 400; }
.map thead span { writing-mode: vertical-rl; max-height: 6.3rem; overflow: hidden; text-overflow: ellipsis;
  white-space: nowrap; }
.map tbody th { text-align: right; padding-right: .5rem; font-weight: 400; max-width: 11rem; overflow: hidden;
  text-overflow: ellipsis; white-space: nowrap; }
"""
_LEAD = (
    "A row is a token that attends, a column a token that it attends to, the tint the weight. Point at a "
    "cell for its number."
)
BytesOf = Callable[[int], bytes]
Weights = Sequence[Sequence[float]]
"""Of each token to each, from 0 to 1; those after it are not read."""
_FIRST, _GROWTH = 64, 4
"""A text is read in beginnings of so many tokens, each so many times as long, since a pass has a result only
at its end. All but the last take at most a third of its time."""


def check(tokens: int, form: str) -> None:
    """Raise RequestError for more tokens than a form has room for, MemoryLimitError for a map in memory."""
    if form == "html" and tokens > MOST_IN_PAGE:
        raise RequestError(
            f"--attention-map: a page has at most {MOST_IN_PAGE} tokens (got {tokens:,}); "
            "give a shorter text, or use jsonl"
        )
    if (needed := 4 * tokens**2) > MAX_ARRAY_BYTES:
        raise MemoryLimitError(
            f"--attention-map: {limit_words(MAX_ARRAY_BYTES, needed)}; give a shorter text"
        )


def compute(
    engine: "Engine",
    ids: Sequence[int],
    layer: int,
    head: int,
    is_stopped: Callable[[], bool],
    looked: Callable[[int], object],
) -> tuple[Weights, list[str]]:
    """The weights of a head, and notes on this model's attention.

    They are those of one pass over the text, to the bit. looked: called with the number of tokens so far.
    After a stop the tokens that were computed have weights. Raises as `Engine.capture`, CancelledError if
    none were.
    """
    weights, notes, end = list[Sequence[float]](), list[str](), 0
    while end < len(ids) and not is_stopped():
        begin, end = end, min(len(ids), _GROWTH * end or _FIRST)
        try:
            found = engine.capture(ids[:end], [layer], [head], rows=range(begin, end), what=["attn_row"])
        except CancelledError:
            if not (weights and is_stopped()):
                raise
            break
        weights += found["attn_row"][0, 0].tolist()
        notes = found["notes"]
        looked(end)
    return weights, notes


def lines(
    weights: Weights, ids: Sequence[int], bytes_of: BytesOf, width: int, *, color: bool = False
) -> Iterator[str]:
    """Yield the lines for a terminal, with line ends: a column for a token, or for several if need be."""
    names = [token_name(id, bytes_of(id)) for id in ids]
    index = max(2, len(str(len(ids) - 1)))
    tops = _BEST if width >= 70 else 1
    room = max(8, width - index - _TOKEN - 6 - tops * _TOPS)
    each = math.ceil(len(ids) / room)
    columns = math.ceil(len(ids) / each)
    head = f"{'#'.rjust(index)}  {'token'.ljust(_TOKEN)}  {_ruler(columns, each)}  attends most to"
    yield paint(fit(head, width).rstrip(), DIM, color) + "\n"
    for i, name in enumerate(names):
        row = weights[i][: i + 1]
        cells = "".join(_shade(sum(row[at : at + each])) for at in range(0, len(row), each))
        best = sorted(range(len(row)), key=lambda at: (-row[at], at))[:tops]
        told = "  ".join(_top(at, names[at], row[at]) for at in best)
        yield fit(f"{i:>{index}}  {fit(name, _TOKEN)}  {fit(cells, columns)}  {told}", width).rstrip() + "\n"
    legend = "  ".join(f"{shade} {limit:.0%}" for (limit, _), (_, shade) in pairwise(_SHADES))
    grouped = "" if each == 1 else f", {each} tokens in a column"
    yield paint(fit(f"from {legend}{grouped}", width).rstrip(), DIM, color) + "\n"


def _ruler(columns: int, each: int) -> str:
    """The numbers of every tenth column's token."""
    return "".join(str(at * each).ljust(10) for at in range(0, columns, 10))[:columns].ljust(columns)


def _shade(weight: float) -> str:
    return next(shade for limit, shade in _SHADES if weight < limit)


def _top(at: int, name: str, weight: float) -> str:
    """A token with its number and weight, in _TOPS - 2 columns."""
    told = f"{weight:>4.0%} #{at} "
    return told + fit(name, max(1, _TOPS - 2 - cell_width(told)))


def json_lines(
    weights: Weights, ids: Sequence[int], bytes_of: BytesOf, meta: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the JSON lines. meta: what line 1 says of text, model, layer and head."""
    yield json_line({"schema": SCHEMA, **meta, "tokens": [TokenText(bytes_of(id)) for id in ids]})
    for i, row in enumerate(weights):
        yield json_line({"i": i, "weights": [float(weight) for weight in row[: i + 1]]})


def render(weights: Weights, ids: Sequence[int], bytes_of: BytesOf, title: str) -> Iterator[str]:
    """Yield the page in pieces. title: plain text."""
    yield from page.page(
        title, _body(weights, [token_name(id, bytes_of(id)) for id in ids]), lead=_LEAD, style=_STYLE
    )


def _body(weights: Weights, names: Sequence[str]) -> Iterator[str]:
    heads = "".join(
        f'<th title="#{at} {page.line(name)}"><span>{page.line(name)}</span></th>'
        for at, name in enumerate(names)
    )
    yield f'<div class="map card"><table><thead><tr><th></th>{heads}</tr></thead><tbody>\n'
    labels = [f"#{at} {page.line(name)}" for at, name in enumerate(names)]
    for i, name in enumerate(names):
        cells = "".join(
            f'<td class="t{page.level(weight)}" title="{labels[i]} to {labels[at]}: {weight:.1%}"></td>'
            for at, weight in enumerate(weights[i][: i + 1])
        )
        yield f'<tr><th title="#{i} {page.line(name)}">{page.line(name)}</th>{cells}</tr>\n'
    yield "</tbody></table></div>\n"
