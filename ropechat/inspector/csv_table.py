"""Scored texts as CSV (RFC 4180, UTF-8, a header line), for spreadsheets and data frames.

Logprobs and entropies in nats, but for the columns whose names end in `_bits`. `token` and the texts of
candidates are for display (a space is ·, control characters are marks), so no cell has a line break; `bytes`
in hex and `id` are exact.

After COLUMNS: top1_id, top1_token, top1_logprob and so on for each candidate; lookup1_string,
lookup1_first_logprob, lookup1_rank, lookup1_logprob and so on for each string that is looked up, and then a
last row with the role "next" for the place after the text; with stages of the sampler SAMPLER, and for each
stage, such as top_p, top_p_kept, top_p_mass and top_p_entropy, see `stages`.
"""

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from ropechat.inspector.look_up import Found
from ropechat.inspector.scored_text import ScoredText
from ropechat.trace import TokenScore
from ropechat.util.json_lines import finite
from ropechat.util.text import visible

COLUMNS = (
    *("file", "i", "id", "token", "bytes", "start", "end", "role"),
    *("logprob", "surprisal_bits", "rank", "entropy", "entropy_bits"),
)
SAMPLER = ("cut", "sampler_rank", "sampler_p", "interval_start", "interval_end", "u")
"""The stage that cut the token, its rank after bias and penalty, its probability at the draw, and so on."""
_CANDIDATE = ("id", "token", "logprob")
_STRING = ("string", "first_logprob", "rank", "logprob")
_STAGE = ("kept", "mass", "entropy")


def lines(
    readings: Iterable[ScoredText], bytes_of: Callable[[int], bytes], top_k: int, strings: int = 0
) -> Iterator[str]:
    """Yield the lines, with line ends. bytes_of: id -> the bytes of a token.

    top_k: candidates per token. strings: how many are looked up in each place.
    """
    stages: tuple[str, ...] | None = None
    for reading in readings:
        tokens, first = reading.tokens, list[tuple[TokenScore, Sequence[Found]]]()
        if stages is None:
            first, stages = _until_stages(reading, tokens)
            yield csv_line(_header(top_k, strings, stages))
        for token, found in chain(first, ((token, reading.found) for token in tokens)):
            cells = _cells(reading.name, token, bytes_of, top_k)
            yield csv_line([*cells, *_looked_up(found, strings), *_sampler(token, stages)])
        if strings and reading.next is not None:
            place = reading.next.position + 1
            cells = [reading.name, place, *[None] * (len(COLUMNS) + 3 * top_k - 2)]
            cells[COLUMNS.index("role")] = "next"
            at = COLUMNS.index("entropy")
            cells[at : at + 2] = _entropy(reading.next.entropy)
            sampler = [None] * len(_sampler_columns(stages))
            yield csv_line([*cells, *_looked_up(reading.looked_up(), strings), *sampler])


def _until_stages(
    reading: ScoredText, tokens: Iterator[TokenScore]
) -> tuple[list[tuple[TokenScore, Sequence[Found]]], tuple[str, ...]]:
    """The tokens up to the first with stages of the sampler, and the names of these; () without stages."""
    first = list[tuple[TokenScore, Sequence[Found]]]()
    for token in tokens:
        first.append((token, reading.found))
        if token.outcome is not None:
            return first, tuple(stage.name for stage in token.stages)
        if token.logprob is not None:
            break  # a token with a score has stages if any token has
    return first, ()


def _header(top_k: int, strings: int, stages: Sequence[str]) -> list[str]:
    tops = [f"top{place}_{what}" for place in range(1, top_k + 1) for what in _CANDIDATE]
    looked_up = [f"lookup{place}_{what}" for place in range(1, strings + 1) for what in _STRING]
    return [*COLUMNS, *tops, *looked_up, *_sampler_columns(stages)]


def _sampler_columns(stages: Sequence[str]) -> list[str]:
    return [*SAMPLER, *(f"{name}_{what}" for name in stages for what in _STAGE)] if stages else []


def _cells(name: str, token: TokenScore, bytes_of: Callable[[int], bytes], top_k: int) -> list[Any]:
    logprob = finite(token.logprob)
    cells: list[Any] = [name, token.index, token.id, visible(token.bytes), token.bytes.hex(), *token.span]
    cells += [token.role, logprob, None if logprob is None else -logprob / math.log(2)]
    cells += [token.rank, *_entropy(token.entropy)]
    for id, candidate in () if token.row is None else token.row.top[:top_k]:
        cells += [id, visible(bytes_of(id)), finite(candidate)]
    return cells + [None] * (len(COLUMNS) + 3 * top_k - len(cells))


def _entropy(nats: float | None) -> list[float | None]:
    value = finite(nats)
    return [value, None if value is None else value / math.log(2)]


def _looked_up(found: Sequence[Found], strings: int) -> list[Any]:
    cells: list[Any] = []
    for one in found:
        cells += [visible(one.text.encode()), finite(one.first), one.rank, finite(one.logprob)]
    return cells + [None] * (len(_STRING) * strings - len(cells))


def _sampler(token: TokenScore, stages: Sequence[str]) -> list[Any]:
    own = token.outcome
    if own is None or not stages:
        return [None] * len(_sampler_columns(stages))
    cells: list[Any] = [own.cut, own.rank, own.probability, *(token.interval or (None, None)), token.u]
    by_name = {stage.name: stage for stage in token.stages}
    for name in stages:
        stage = by_name.get(name)
        cells += [None] * 3 if stage is None else [stage.kept, finite(stage.mass), finite(stage.entropy)]
    return cells


def csv_line(cells: list[Any]) -> str:
    """A line of CSV; None is an empty cell."""
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue()
