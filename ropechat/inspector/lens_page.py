"""The logit lens as one HTML page: tokens by layers, tinted by rank, candidates on hover; see `page`."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from ropechat.inspector import page
from ropechat.inspector.scored_text import LN2, percent
from ropechat.trace import LensRow
from ropechat.util.text import token_name, visible

_STYLE = """
.lens { overflow-x: auto; }
.lens table { font-family: var(--mono); font-size: .82rem; table-layout: fixed; width: max-content; }
.lens th, .lens td { width: 7.5rem; padding: .15rem .5rem; white-space: nowrap; overflow: hidden;
  text-overflow: ellipsis; }
.lens th:first-child { width: 3.5rem; text-align: right; font-weight: 400; }
.lens td small { float: right; opacity: .8; margin-left: .4em; }
.lens .asked td { font-style: italic; }
"""
_LEAD = (
    "Each cell is the best token of a layer and the rank of the text's token there, whose logarithm is the "
    "tint: none for rank 1. Final norm and lm_head after the layer (logit lens). The last layer is the model "
    "itself. Below a token stand the ranks of the strings that are looked up."
)


def render(
    rows: Iterable[LensRow],
    ids: Sequence[int],
    layers: Sequence[int],
    title: str,
    bytes_of: Callable[[int], bytes],
    vocab_size: int,
    strings: Sequence[str] = (),
) -> Iterator[str]:
    """Yield the page in pieces. title: plain text. bytes_of: id -> a token's bytes. strings: looked up."""
    body = _body(rows, ids, layers, bytes_of, math.log(max(2, vocab_size)), strings)
    yield from page.page(title, body, lead=_LEAD, style=_STYLE)


def _body(
    rows: Iterable[LensRow],
    ids: Sequence[int],
    layers: Sequence[int],
    bytes_of: Callable[[int], bytes],
    farthest: float,
    strings: Sequence[str],
) -> Iterator[str]:
    heads = "".join(f"<th>{layer}</th>" for layer in layers)
    yield f'<div class="lens card"><table><thead><tr><th>#</th><th>token</th>{heads}</tr></thead><tbody>\n'
    for i, of_token in groupby(rows, lambda row: row.i):
        name = token_name(ids[i], bytes_of(ids[i])) if i < len(ids) else "next"
        found = list(of_token)
        cells = "".join(_cell(row, bytes_of, farthest) for row in found)
        yield f'<tr><th>{i}</th><td title="{page.line(name)}">{page.line(name)}</td>{cells}</tr>\n'
        for place, string in enumerate(strings):
            cells = "".join(_asked(*row.looked_up[place], farthest) for row in found)
            yield f'<tr class="asked"><th>?</th><td>{page.line(visible(string.encode()))}</td>{cells}</tr>\n'
    yield "</tbody></table></div>\n"


def _tint(rank: int | None, farthest: float) -> str:
    """The class of a rank by its logarithm: none for the best token, the strongest for the last one."""
    return f"t{page.level(0.0 if rank is None else math.log(rank) / farthest)}"


def _asked(logprob: float, rank: int, farthest: float) -> str:
    """The cell of a string that is looked up."""
    return f'<td class="{_tint(rank, farthest)}" title="{percent(logprob)}"><small>{rank:,}</small></td>'


def _cell(row: LensRow, bytes_of: Callable[[int], bytes], farthest: float) -> str:
    bits = None if row.logprob is None else -row.logprob / math.log(2)
    best = token_name(row.top[0][0], bytes_of(row.top[0][0])) if row.top else ""
    rank = "" if row.rank is None else f"<small>{row.rank:,}</small>"
    facts = [] if bits is None else [f"surprisal {page.number(bits)} bit"]
    facts += [f"entropy {page.number(row.entropy / LN2)} bits"]
    facts += [f"{percent(logprob)} {token_name(id, bytes_of(id))}" for id, logprob in row.top]
    lines = "\n".join(facts)
    return f'<td class="{_tint(row.rank, farthest)}" title="{page.text(lines)}">{rank}{page.line(best)}</td>'
