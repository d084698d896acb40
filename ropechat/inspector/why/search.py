"""Scoring an answer without each part of its context, and then without the parts of the strongest ones.

Each changed context is rendered and tokenized as a text of its own, so a number is what scoring that text
alone gives; what it shares with earlier ones at its beginning is not computed again. The work is measured in
tokens: of those at the beginning, as attention makes later ones more expensive.
"""

from __future__ import annotations

import hashlib
import math
import time
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from ropechat.errors import CancelledError, ContextFullError, RequestError
from ropechat.inspector.scored_text import LN2
from ropechat.inspector.why.context import Edit
from ropechat.inspector.why.parts import divide, every, whole
from ropechat.inspector.why.result import Asked, Cost, PartScore, Why, WhyWatcher

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ropechat.engine.engine import Engine
    from ropechat.engine.prompt import Special
    from ropechat.inspector.why.answer import Question
    from ropechat.inspector.why.context import Item
    from ropechat.inspector.why.parts import Span
    from ropechat.trace import Score, Trace

FEWEST = 8
"""Parts that a part is divided into at most where the rest of the context is long."""
LEAST_SHARE = 0.1
"""A part is divided if it changes the answer at least so much as the strongest one, times this."""
LEAST_BITS = 0.1
LEAST_WORK = 8192
"""Work that is done whatever the budget is: short contexts are cheap."""
MOST_PARTS = 10_000
_OF_BUDGET = 6  # a level takes this share of the budget, or FEWEST parts
_CHUNK = 64  # changed contexts that are made at a time
_PASS = 2048  # work that is done together
_PASS_ITEMS = 16
_TOP_K = 5


class Places:
    """Where the tokens of a context's text end."""

    def __init__(self, engine: Engine, text: str, special: Special = "text") -> None:
        """Raises ContextFullError before a long text is encoded to its end."""
        self._ends = list[int]()
        for piece in engine.prompts.encode_long(text, special):
            self._ends += [token.span[1] for token in piece if token.span[0] < token.span[1]]
            check_length(engine, len(self._ends), "more than ")
        self._bytes = None if text.isascii() else [0, *accumulate(map(_size, text))]

    def at(self, span: Span) -> tuple[int, int]:
        """How many tokens end before each end of a stretch of characters: a word has the space before it."""
        first, last = span if self._bytes is None else (self._bytes[at] for at in span)
        return bisect_right(self._ends, first), bisect_right(self._ends, last)

    def count(self, span: Span) -> int:
        """How many tokens a stretch of characters has."""
        first, last = self.at(span)
        return last - first


def check_length(engine: Engine, count: int, more: str = "") -> None:
    """Raise ContextFullError if a context has too many tokens."""
    if count > (limit := engine.window):
        raise ContextFullError(
            f"context: must have at most {limit:,} tokens with the answer, what the model was trained for or "
            f"--context says (got {more}{count:,}); give a part of it"
        )


class Search:
    """An examination of a context. places: of its text. chunk: changed contexts that are made at a time."""

    def __init__(
        self,
        engine: Engine,
        question: Question,
        places: Places,
        asked: Asked,
        watcher: WhyWatcher,
        chunk: int = _CHUNK,
    ) -> None:
        """Raises RequestError, ContextFullError."""
        self._engine, self._question, self._places = engine, question, places
        self._context, self._tokens = question.context, question.length
        self._asked, self._watcher, self._chunk = asked, watcher, chunk
        check_length(engine, self._tokens)
        root = whole(self._context.text, [text.span for text in self._context.texts])
        if not root.units:
            raise RequestError("context: must have at least one word (got none)")
        self._root = PartScore(root, -1, self._places.count(root.span))
        self._known: dict[bytes, tuple[float | None, str]] = {}
        self._growth = self._spent = self._work = 0.0
        self._has_without = False
        self._too_much = set[PartScore]()  # parts that the budget does not allow to divide
        self._wanted: PartScore | None = None
        self.result: Why | None = None

    def run(self) -> Why:
        """Score. Raises RequestError, as `Engine.score_many`, and CancelledError before the first part."""
        for _ in self.work():
            pass
        assert self.result is not None
        return self.result

    def want(self, part: PartScore) -> None:
        """Have `work` divide a part next, whatever it costs; from any thread."""
        self._wanted = part

    def work(self) -> Iterator[None]:
        """Score as `run`; yield when no request of the engine is open. Goes on where it was stopped."""
        if self.result is None:
            self._begin()
            yield
        result = self.result
        assert result is not None
        result.complete = True
        try:
            if not self._has_without:
                result.without, error = next(self._changed([Edit((self._root.part.cut,))]))
                if self._asked.only and result.without is None:
                    raise RequestError(f"only: without the context nothing can be scored: {error}")
                self._has_without = True
                yield
            while parts := self._next():
                yield from self._score(parts)
        except CancelledError:
            result.complete = False
        parts = result.parts
        if result.complete and not any(one.bits is not None for one in parts):
            raise RequestError(f"context: no part can be left out; use --chat or --bos yes: {parts[0].error}")

    def _begin(self) -> None:
        """Score the whole context, and divide it."""
        self._check()
        started = time.monotonic()
        (score,) = self._scores([self._question.item()], top_k=_TOP_K)
        if score.error is not None:
            raise score.error
        trace, inside = score.trace, self._question.inside(score.trace)
        speed = self._engine.speed.with_read(score.cached_tokens, self._tokens, time.monotonic() - started)
        self._growth = speed.growth
        self._spent = self._cost(0, self._tokens)
        self._work = max(LEAST_WORK, self._asked.budget * self._spent)
        parts = self._root.parts = self._divided(self._root)
        if not any(one.skipped for one in parts):
            self._work = self._spent + sum(map(self._cost_of, parts))
        seconds = self._work / speed.prefill if speed.prefill else None
        self._watcher.planned(Cost(len(parts), int(self._work), seconds))
        result = Why(
            self._context,
            self._asked,
            self._question.text,
            trace,
            inside,
            _bits(trace, inside),
            self._tokens,
            self._words(trace),
            parts=parts,
        )
        self._count(result, score)
        self.result = result

    def _next(self) -> list[PartScore]:
        """The parts to score next: those that were divided but not scored, else of the strongest part."""
        assert self.result is not None
        wanted, self._wanted = self._wanted, None
        if wanted is not None and wanted.skipped:
            wanted.parts, wanted.skipped = self._divided(wanted), False
            return wanted.parts
        scored = list(self.result.walk())
        if unscored := [one for one in scored if one.bits is None and not one.error]:
            return unscored
        strongest = {True: LEAST_BITS, False: LEAST_BITS}
        for one in scored:
            own = self._context.is_reply(one.span)
            strongest[own] = max(strongest[own], one.change)
        shares = {one: one.change / strongest[self._context.is_reply(one.span)] for one in scored}
        waiting = [one for one in scored if one.skipped and one not in self._too_much]
        for owner in sorted(waiting, key=lambda one: (-shares[one], one.span[0])):
            if shares[owner] < LEAST_SHARE:
                break
            if owner.change < LEAST_BITS:
                continue
            parts = self._divided(owner)
            if self._spent + sum(map(self._cost_of, parts)) <= self._work:
                owner.parts, owner.skipped = parts, False
                return parts
            self.result.limited = True
            self._too_much.add(owner)
        return []

    def _divided(self, owner: PartScore) -> list[PartScore]:
        """The parts of a part; of a single word, itself."""
        text, by, part = self._context.text, self._asked.by, owner.part
        if self._asked.every:
            found = every(text, part, by)
        else:
            first, _ = self._places.at(part.cut)
            rest = self._cost_of(owner) if self._asked.only else self._cost(first, self._tokens)
            most = max(FEWEST, int(max(self._work / _OF_BUDGET, LEAST_WORK / 2) / rest))
            found = divide(text, part, by, most) or [part]
        if len(found) > MOST_PARTS:
            raise RequestError(
                f"by: must give at most {MOST_PARTS:,} parts (got {len(found):,}); use a coarser one"
            )
        return [
            PartScore(
                one, owner.depth + 1, self._places.count(one.span), skipped=bool(divide(text, one, by, 2))
            )
            for one in found
        ]

    def _score(self, parts: Sequence[PartScore]) -> Iterator[None]:
        """Score parts: the last ones first, which share most with the context."""
        order = sorted(parts, key=lambda one: -one.part.cut[0])
        for at in range(0, len(order), self._chunk):
            chunk = order[at : at + self._chunk]
            costs = [self._cost_of(one) for one in chunk]
            changed = self._changed([self._edit(one) for one in chunk], sum(costs))
            assert self.result is not None
            for one, cost, (bits, error) in zip(chunk, costs, changed, strict=True):
                one.error = error
                if bits is not None:
                    without = self.result.without or 0.0
                    one.bits = without - bits if self._asked.only else bits - self.result.bits
                self._spent += cost
                self._watcher.progress(int(min(self._spent, self._work)), int(self._work))
            yield

    def _edit(self, one: PartScore) -> Edit:
        part = one.part
        if self._asked.only:
            start, end = self._root.part.cut
            return Edit(((start, part.span[0]), (part.span[1], end)))
        if self._asked.replace is not None:
            return Edit((part.span,), self._asked.replace)
        return Edit((part.cut,))

    def _changed(self, edits: Sequence[Edit], work: float = 0.0) -> Iterator[tuple[float | None, str]]:
        """The answer's bits in each changed context, or why there are none."""
        items = [self._question.item(edit) for edit in edits]
        keys = [hashlib.blake2b(repr(item).encode("utf-8", "replace")).digest() for item in items]
        new = {key: item for key, item in zip(keys, items, strict=True) if key not in self._known}
        window = min(_PASS_ITEMS, max(1, int(_PASS * len(new) / work))) if work else 1
        scores = zip(new, self._scores(list(new.values()), window=window), strict=True)
        for key in keys:
            while key not in self._known:
                self._check()
                scored, score = next(scores)
                self._known[scored] = self._read(score)
            yield self._known[key]

    def _check(self) -> None:
        if self._watcher.is_stopped:  # maybe between two requests, which the engine does not cancel
            raise CancelledError("why: stopped")

    def _scores(self, items: Sequence[Item], top_k: int = 0, window: int = 1) -> Iterator[Score]:
        found = self._engine.score_many(
            items, top_k=top_k, window=window, special=self._asked.special, bos=self._asked.bos
        )
        return (score for _, score in found)

    def _read(self, score: Score) -> tuple[float | None, str]:
        if score.error is not None:
            return None, str(score.error)
        assert self.result is not None
        self._count(self.result, score)
        return _bits(score.trace, self._question.inside(score.trace)), ""

    @staticmethod
    def _count(result: Why, score: Score) -> None:
        result.scorings += 1
        result.computed += score.trace.meta["tokens"] - score.cached_tokens

    def _words(self, trace: Trace) -> dict[int, bytes]:
        """The bytes of the tokens and candidates of the answer."""
        rows = [trace.next, *(token.row for token in trace.tokens if token.row is not None)]
        ids = {token.id for token in trace.tokens}.union(id for row in rows for id, _ in row.top)
        return {id: self._engine.token_bytes(id) for id in ids}

    def _cost(self, cached: int, total: int) -> float:
        """The work of computing the tokens from `cached` to `total`."""
        return total - cached + self._growth * (total * total - cached * cached) / 2

    def _cost_of(self, one: PartScore) -> float:
        """The work of scoring a part, as far as it is known before."""
        if self._asked.only:
            first, last = self._places.at(self._root.part.cut)
            return self._cost(first, self._tokens - (last - first) + one.tokens)
        first, last = self._places.at(one.part.cut)
        return self._cost(first, self._tokens - (last - first))


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _bits(trace: Trace, inside: tuple[int, int]) -> float:
    tokens = trace.tokens[slice(*inside)]
    return math.fsum(-token.logprob / LN2 for token in tokens if token.logprob is not None)
