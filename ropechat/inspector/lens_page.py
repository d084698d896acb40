"""The logit lens as one HTML page: tokens by layers, tinted by surprisal, candidates on hover; see `page`."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from ropechat.inspector import page
from ropechat.inspector.scored_text import LN2, percent
from ropechat.trace import LensRow
from ropechat.util.text import token_name

_STYLE = """
.lens { overflow-x: auto; }
.lens table { font-family: var(--mono); font-size: .82rem; }
.lens th, .lens td { padding: .15rem .5rem; white-space: nowrap; }
.lens td small { color: var(--dim); margin-left: .5em; }
.lens tbody th { text-align: right; font-weight: 400; }
"""
_LEAD = (
    "Each cell is the best token of a layer and the rank of the text's token there, tinted by that token's "
    "surprisal: final norm and lm_head after the layer (logit lens). The last layer is the model itself."
)


def render(
    rows: Iterable[LensRow],
    ids: Sequence[int],
    layers: Sequence[int],
    title: str,
    bytes_of: Callable[[int], bytes],
) -> Iterator[str]:
    """Yield the page in pieces. title: plain text. bytes_of: id -> the bytes of a token."""
    yield from page.page(title, _body(rows, ids, layers, bytes_of), lead=_LEAD, style=_STYLE)


def _body(
    rows: Iterable[LensRow], ids: Sequence[int], layers: Sequence[int], bytes_of: Callable[[int], bytes]
) -> Iterator[str]:
    heads = "".join(f"<th>{layer}</th>" for layer in layers)
    yield f'<div class="lens card"><table><thead><tr><th>#</th><th>token</th>{heads}</tr></thead><tbody>\n'
    for i, of_token in groupby(rows, lambda row: row.i):
        name = token_name(ids[i], bytes_of(ids[i])) if i < len(ids) else "next"
        cells = "".join(_cell(row, bytes_of) for row in of_token)
        yield f"<tr><th>{i}</th><td>{page.line(name)}</td>{cells}</tr>\n"
    yield "</tbody></table></div>\n"


def _cell(row: LensRow, bytes_of: Callable[[int], bytes]) -> str:
    bits = None if row.logprob is None else -row.logprob / math.log(2)
    best = token_name(row.top[0][0], bytes_of(row.top[0][0])) if row.top else ""
    rank = "" if row.rank is None else f"<small>{row.rank}</small>"
    facts = [] if bits is None else [f"surprisal {page.number(bits)} bit"]
    facts += [f"entropy {page.number(row.entropy / LN2)} bits"]
    facts += [f"{percent(logprob)} {token_name(id, bytes_of(id))}" for id, logprob in row.top]
    lines = "\n".join(facts)
    return f'<td class="{page.tint(bits)}" title="{page.text(lines)}">{page.line(best)}{rank}</td>'
