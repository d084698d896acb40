"""Scored texts as CSV (RFC 4180, UTF-8, a header line), for spreadsheets and data frames.

Logprobs and entropies in nats. `token` and the texts of candidates are for display (a space is ·, control
characters are marks), so no cell has a line break; `bytes` in hex and `id` are exact.
"""

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ropechat.inspector.jsonl import finite
from ropechat.inspector.reading import Reading
from ropechat.trace import TokenScore
from ropechat.util.text import visible

COLUMNS = (
    *("file", "i", "id", "token", "bytes", "start", "end", "role"),
    *("logprob", "surprisal_bits", "rank", "entropy"),
)
"""Followed by top1_id, top1_token, top1_logprob and so on for each candidate."""


def lines(readings: Iterable[Reading], bytes_of: Callable[[int], bytes], top_k: int) -> Iterator[str]:
    """Yield the lines, with line ends. bytes_of: id -> the bytes of a token. top_k: candidates per token."""
    tops = [f"top{place}_{what}" for place in range(1, top_k + 1) for what in ("id", "token", "logprob")]
    yield csv_line([*COLUMNS, *tops])
    for reading in readings:
        for token in reading.tokens:
            yield csv_line(_cells(reading.name, token, bytes_of, top_k))


def _cells(name: str, token: TokenScore, bytes_of: Callable[[int], bytes], top_k: int) -> list[Any]:
    logprob = finite(token.logprob)
    cells: list[Any] = [name, token.index, token.id, visible(token.bytes), token.bytes.hex(), *token.span]
    cells += [token.role, logprob, None if logprob is None else -logprob / math.log(2)]
    cells += [token.rank, finite(token.entropy)]
    for id, candidate in () if token.row is None else token.row.top[:top_k]:
        cells += [id, visible(bytes_of(id)), finite(candidate)]
    return cells + [None] * (len(COLUMNS) + 3 * top_k - len(cells))


def csv_line(cells: list[Any]) -> str:
    """A line of CSV; None is an empty cell."""
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue()
