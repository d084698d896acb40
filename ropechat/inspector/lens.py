"""The logit lens as a heat map for a terminal, tokens by layers, and as JSON lines, schema `ropechat.lens/1`.

A cell is the best token of a layer and the rank of the text's token there, coloured by that rank:

#  token    0            1            2            3
1  ·upon    ·door  1204  ·time    38  ·upon     1  ·upon     1

Below it, a line for each string that is looked up has the rank of its first token in each layer.

JSON: line 1 describes the text; one line per token and layer follows: `i` is the token that is predicted,
`logprob` and `rank` are those of the text's token (null after the last token), `top` has [id, logprob] and
`top_text` the tokens' text, `lookup` {string: {"first_logprob", "rank"}} of strings that are looked up. All
numbers are raw (temperature 1, no filter), in nats.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ropechat.inspector.ansi import DIM, paint, rank_color
from ropechat.trace import LensRow
from ropechat.util.records import TokenText, json_line
from ropechat.util.text import token_name, visible
from ropechat.util.width import fit

SCHEMA = "ropechat.lens/1"
_TOKEN, _RANK, _GAP = 12, 4, 2
_CELL = range(14, 21)
"""Columns of a cell, at least and at most, with the gap after it."""


@dataclass(frozen=True)
class Layout:
    """Column widths of the heat map."""

    index: int
    word: int
    layers: tuple[int, ...]
    color: bool
    strings: tuple[str, ...] = ()


def layers_that_fit(layers: Sequence[int], tokens: int, width: int) -> list[int]:
    """As many of the layers as fit into `width` columns: evenly spaced, with the last and the first."""
    room = max(1, (width - _fixed(tokens)) // _CELL.start)
    if room >= len(layers):
        return list(layers)
    if room == 1:
        return [layers[-1]]
    return [layers[round(place * (len(layers) - 1) / (room - 1))] for place in range(room)]


def layout(
    layers: Sequence[int], tokens: int, width: int, *, color: bool, strings: Sequence[str] = ()
) -> Layout:
    """Choose the widths. strings: that are looked up."""
    cell = (width - _fixed(tokens)) // len(layers)
    cell = max(_CELL.start, min(_CELL.stop - 1, cell))
    return Layout(_index(tokens), cell - _RANK - 1 - _GAP, tuple(layers), color, tuple(strings))


def _index(tokens: int) -> int:
    return max(2, len(str(tokens)))


def _fixed(tokens: int) -> int:
    return _index(tokens) + _GAP + _TOKEN + _GAP


def table(
    rows: Iterable[LensRow], ids: Sequence[int], bytes_of: Callable[[int], bytes], at: Layout
) -> Iterator[str]:
    """Yield the lines of the heat map, with line ends, each as soon as its token is read.

    bytes_of: id -> a token's bytes.
    """
    cells = "".join(f"{layer:<{at.word + _RANK + 1 + _GAP}}" for layer in at.layers)
    yield paint(f"{'#'.rjust(at.index)}  {'token'.ljust(_TOKEN)}  {cells}".rstrip(), DIM, at.color) + "\n"
    sums, scored = dict.fromkeys(at.layers, 0.0), 0
    for i, of_token in groupby(rows, lambda row: row.i):
        name = fit(token_name(ids[i], bytes_of(ids[i])), _TOKEN) if i < len(ids) else "next".ljust(_TOKEN)
        number = (str(i) if i < len(ids) else "→").rjust(at.index)
        found = list(of_token)
        for row in found:
            sums[row.layer] += 0.0 if row.logprob is None else -row.logprob / math.log(2)
        yield (
            f"{number}  {name}  " + (" " * _GAP).join(_cell(row, bytes_of, at) for row in found)
        ).rstrip() + "\n"
        for place, string in enumerate(at.strings):
            ranks = (_ranked("", row.looked_up[place][1], at) for row in found)
            name = fit(visible(string.encode()), _TOKEN)
            yield f"{'?'.rjust(at.index)}  {name}  " + (" " * _GAP).join(ranks) + "\n"
        scored += i < len(ids)
    if scored:
        bits = "".join(f"{sums[layer] / scored:<{at.word + _RANK + 1 + _GAP}.2f}" for layer in at.layers)
        yield paint(f"{' ' * at.index}  {'bits/token'.ljust(_TOKEN)}  {bits}".rstrip(), DIM, at.color) + "\n"


def _cell(row: LensRow, bytes_of: Callable[[int], bytes], at: Layout) -> str:
    return _ranked(token_name(row.top[0][0], bytes_of(row.top[0][0])) if row.top else "", row.rank, at)


def _ranked(name: str, rank: int | None, at: Layout) -> str:
    """A name and a rank in the width of a cell, coloured by the rank."""
    return paint(f"{fit(name, at.word)} {_short(rank):>{_RANK}}", rank_color(rank), at.color)


def _short(rank: int | None) -> str:
    """The rank in at most four columns."""
    if rank is None:
        return ""
    return str(rank) if rank < 10_000 else f"{rank // 1000}k"


def record(row: LensRow, bytes_of: Callable[[int], bytes], strings: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON record of a token and layer. strings: that were looked up."""
    found = zip(strings, row.looked_up, strict=True)
    lookup = {string: {"first_logprob": logprob, "rank": rank} for string, (logprob, rank) in found}
    return {
        "i": row.i,
        "layer": row.layer,
        "rank": row.rank,
        "logprob": row.logprob,
        "entropy": row.entropy,
        "top": row.top,
        "top_text": [TokenText(bytes_of(id)) for id, _ in row.top],
        **({"lookup": lookup} if strings else {}),
    }


def json_lines(
    rows: Iterable[LensRow],
    meta: dict[str, Any],
    bytes_of: Callable[[int], bytes],
    strings: Sequence[str] = (),
) -> Iterator[str]:
    """Yield the JSON lines. meta: what line 1 says of the text and the model. strings: looked up."""
    yield json_line({"schema": SCHEMA, "log_base": "e", "stage": "raw", **meta})
    yield from (json_line(record(row, bytes_of, strings)) for row in rows)
