"""A second model for the text of a reader: divergence and candidates of each token, the visible ones first.

As in `TextReader`, nothing draws or starts a thread: `step` does a small part of the work of both. Windows
are the reader's, so both models see the same tokens.
"""

import math
from array import array
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from ropechat.engine.engine import Engine
from ropechat.inspector.chart import runner_up
from ropechat.inspector.scored_text import LN2
from ropechat.inspector.text_reader import KEPT, TOP_K, TextReader

if TYPE_CHECKING:
    from collections.abc import Generator

    from ropechat.engine import _core


class Other(NamedTuple):
    """What the second model says of a token. kl, js: bits, from the first model to the second."""

    kl: float
    js: float
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


class ReaderComparison:
    """Compares a reader's text under its engine and `other`, which has the same vocabulary.

    name: of the second model, for people. kl: a divergence per token in bits, NaN until it is known. Only one
    thread may call `step`.
    """

    def __init__(self, reader: TextReader, other: Engine, name: str) -> None:
        self.reader, self.other, self.name = reader, other, name
        self.kl = array("f")
        self.count, self._sum = 0, 0.0
        self.version = 0
        self._details: OrderedDict[int, Other] = OrderedDict()
        self._lock = Lock()
        self._next = 1  # every token before it is compared
        self._asked: int | None = None
        self._open: tuple[int, Generator[list[_core.RowPair], None, None]] | None = None

    @property
    def is_done(self) -> bool:
        """Whether every token that has a context is compared."""
        return self.reader.is_encoded and self._next >= len(self.reader)

    @property
    def mean_kl(self) -> float:
        """Of the `count` compared tokens; NaN before there is one."""
        return self._sum / self.count if self.count else math.nan

    def detail(self, index: int) -> Other | None:
        """The second model's view of a token; None until a step has computed it."""
        with self._lock:
            found = self._details.get(index)
            if found is None and 0 < index < len(self.reader):
                self._asked = index
        return found

    def step(self, engine: Engine) -> bool:
        """Score or compare a little; False if there is nothing to do. Raises what an engine raises."""
        if not self.reader.is_seen and self.reader.step(engine):
            return True
        while len(self.kl) < len(self.reader):
            self.kl.append(math.nan)
        place = self._place()
        if place is None:
            return self.reader.step(engine)
        if self._open is None or self._open[0] != place:
            self.stop()
            self._open = (place, self._blocks(engine, place))
        self._take(place, next(self._open[1], []))
        return True

    def stop(self) -> None:
        """Give up the rows that are being read."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _place(self) -> int | None:
        """The token to compare next: the one asked for, what is visible, then from the beginning."""
        reader = self.reader
        if self._asked is not None and reader.is_known(self._asked):
            return self._asked
        wanted = max(1, reader.token_at(reader.wanted))
        seen = range(wanted, min(wanted + reader.window, len(reader)))
        place = next((index for index in seen if math.isnan(self.kl[index])), None)
        while place is None and self._next < len(reader) and not math.isnan(self.kl[self._next]):
            self._next += 1
        if place is None and self._next < len(reader):
            place = self._next
        return place if place is not None and reader.is_known(place) else None

    def _blocks(self, engine: Engine, place: int) -> "Generator[list[_core.RowPair], None, None]":
        """Compared rows from a token on to the end of its window, in blocks."""
        reader, first = self.reader, len(self.reader.context_of(place)) - 1
        end = reader.end_of_window(place)
        ids = reader.context_of(end - 1)
        sides = [one.logit_rows(ids, first=first) for one in (engine, self.other)]
        try:
            for rows, others in zip(*sides, strict=True):
                following = list(reader.ids[place : place + len(rows)])
                yield engine.compare_rows(rows, others, following, top_k=TOP_K, position=place - 1)
                place += len(rows)
        finally:
            for side in sides:
                side.close()

    def _take(self, place: int, rows: "list[_core.RowPair]") -> None:
        with self._lock:
            for index, row in enumerate(rows, place):
                kl, js = row.kl / LN2, row.js / LN2
                if math.isnan(self.kl[index]):
                    self.count, self._sum = self.count + 1, self._sum + kl
                self.kl[index] = kl
                best = runner_up(self.reader.ids[index], zip(row.a.top_ids, row.a.top_logprobs, strict=True))
                figures = row.logprobs[0], row.ranks[0], row.a.entropy, row.a.varentropy
                self.reader.take(index, *figures, best)
                top = tuple(zip(row.b.top_ids, row.b.top_logprobs, strict=True))
                self._details[index] = Other(kl, js, row.logprobs[1], row.ranks[1], top)
                self._details.move_to_end(index)
            while len(self._details) > KEPT:
                self._details.popitem(last=False)
            if self._asked is not None and place <= self._asked < place + len(rows):
                self._asked = None
        if self._open is not None:
            self._open = (place + len(rows), self._open[1]) if rows else None
        self.version += 1
