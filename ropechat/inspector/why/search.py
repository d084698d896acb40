"""Scoring an answer without each part of its context, and then without the parts of the strongest ones.

Each changed context is rendered and tokenized as a text of its own, so a number is what scoring that text
alone gives; what it shares with earlier ones at its beginning is not computed again. The work is measured in
tokens: of those at the beginning, as attention makes later ones more expensive.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import time
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from ropechat.engine.score_input import encode_item
from ropechat.errors import CancelledError, ContextFullError, RequestError
from ropechat.inspector.scored_text import LN2
from ropechat.inspector.why.context import Context, Edit
from ropechat.inspector.why.parts import divide, every, whole
from ropechat.inspector.why.result import Asked, Cost, PartScore, Why, WhyWatcher

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ropechat.engine.engine import Engine
    from ropechat.engine.prompt import Special
    from ropechat.inspector.why.context import Item
    from ropechat.inspector.why.parts import Span
    from ropechat.tokenizer import EncodedToken
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
    """An examination of a context. places: of its text. of: the asked characters of the answer."""

    def __init__(
        self,
        engine: Engine,
        context: Context,
        places: Places,
        answer: str,
        of: Span,
        asked: Asked,
        watcher: WhyWatcher,
    ) -> None:
        """Raises RequestError, ContextFullError, and as `encode_item`."""
        self._engine, self._context, self._places = engine, context, places
        self._asked, self._watcher = asked, watcher
        self._answer = self._shortened(answer, of)
        self._of = tuple(_size(answer[:at]) for at in of)
        self._tokens = len(self._encoded(self._answer))
        check_length(engine, self._tokens)
        root = whole(context.text, [text.span for text in context.texts])
        if not root.units:
            raise RequestError("context: must have at least one word (got none)")
        self._root = PartScore(root, -1, places.count(root.span))
        self._known: dict[bytes, tuple[float | None, str]] = {}
        self._growth = self._spent = self._work = 0.0

    def run(self) -> Why:
        """Score. Raises RequestError, as `Engine.score_many`, and CancelledError before the first part."""
        self._check()
        started = time.monotonic()
        (score,) = self._scores([self._context.item(self._answer)], top_k=_TOP_K)
        if score.error is not None:
            raise score.error
        trace, inside = score.trace, self._inside(score.trace)
        speed = self._engine.speed.with_read(score.cached_tokens, self._tokens, time.monotonic() - started)
        self._result = Why(
            self._context,
            self._asked,
            self._answer,
            trace,
            inside,
            _bits(trace, inside),
            self._tokens,
            self._words(trace),
        )
        self._count(score)
        self._growth = speed.growth
        self._spent = self._cost(0, self._tokens)
        self._work = max(LEAST_WORK, self._asked.budget * self._spent)
        parts = self._divided(self._root)
        if not any(one.skipped for one in parts):
            self._work = self._spent + sum(map(self._cost_of, parts))
        seconds = self._work / speed.prefill if speed.prefill else None
        self._watcher.planned(Cost(len(parts), int(self._work), seconds))
        self._root.parts = self._result.parts = parts
        try:
            self._examine(parts)
        except CancelledError:
            self._result.complete = False
        errors = [one.error for one in parts if one.bits is None]
        if self._result.complete and len(errors) == len(parts):
            raise RequestError(f"context: no part can be left out; use --chat or --bos yes: {errors[0]}")
        return self._result

    def _examine(self, parts: list[PartScore]) -> None:
        """Score the parts, then those within the strongest ones, until the budget is spent."""
        self._result.without, error = next(self._changed([Edit((self._root.part.cut,))]))
        if self._asked.only and self._result.without is None:
            raise RequestError(f"only: without the context nothing can be scored: {error}")
        strongest, waiting = 0.0, list[tuple[float, int, PartScore]]()
        while parts:
            self._score(parts)
            strongest = max([strongest, *(one.change for one in parts)])
            for one in parts:
                if one.skipped:
                    heapq.heappush(waiting, (-one.change, one.span[0], one))
            parts = []
            while waiting and not parts:
                _, _, owner = heapq.heappop(waiting)
                if owner.change < max(LEAST_BITS, LEAST_SHARE * strongest):
                    return
                parts = self._divided(owner)
                if self._spent + sum(map(self._cost_of, parts)) > self._work:
                    self._result.limited, parts = True, []
            if parts:
                owner.parts, owner.skipped = parts, False

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

    def _score(self, parts: Sequence[PartScore]) -> None:
        """Score parts: the last ones first, which share most with the context."""
        order = sorted(parts, key=lambda one: -one.part.cut[0])
        for at in range(0, len(order), _CHUNK):
            chunk = order[at : at + _CHUNK]
            costs = [self._cost_of(one) for one in chunk]
            changed = self._changed([self._edit(one) for one in chunk], sum(costs))
            for one, cost, (bits, error) in zip(chunk, costs, changed, strict=True):
                one.error = error
                if bits is not None:
                    without = self._result.without or 0.0
                    one.bits = without - bits if self._asked.only else bits - self._result.bits
                self._spent += cost
                self._watcher.progress(int(min(self._spent, self._work)), int(self._work))

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
        items = [self._context.item(self._answer, edit) for edit in edits]
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
        self._count(score)
        return _bits(score.trace, self._inside(score.trace)), ""

    def _count(self, score: Score) -> None:
        self._result.scorings += 1
        self._result.computed += score.trace.meta["tokens"] - score.cached_tokens

    def _encoded(self, answer: str) -> list[EncodedToken]:
        item = self._context.item(answer)
        given = encode_item(self._engine.prompts, item, self._asked.special, self._asked.bos)
        return [token for piece in given.pieces for token in piece]

    def _shortened(self, answer: str, of: Span) -> str:
        """The answer up to what is asked, if its tokens are the same without what follows."""
        if of[1] == len(answer):
            return answer
        tokens, left = self._encoded(answer), _size(answer[of[1] :])
        end = tokens[-1].span[1]
        count = next(at for at, token in enumerate(tokens, 1) if token.span[1] >= end - left)
        kept = _size(answer) - (end - tokens[count - 1].span[1])
        shorter = answer.encode("utf-8", "surrogatepass")[:kept].decode("utf-8", "ignore")
        same = [token.id for token in self._encoded(shorter)] == [token.id for token in tokens[:count]]
        return shorter if same else answer

    def _inside(self, trace: Trace) -> tuple[int, int]:
        """Which of the scored tokens cover what is asked: from the first to after the last.

        At the start of the answer, spaces before it count too, see `Pair`.
        """
        begin = _size(trace.meta["text"]) - _size(self._answer)
        first, last = (begin + at for at in self._of)
        first = first if self._of[0] else 0
        found = [
            at for at, token in enumerate(trace.tokens) if token.span[0] < last and token.span[1] > first
        ]
        return (found[0], found[-1] + 1) if found else (0, 0)

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
