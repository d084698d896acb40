"""Scoring of texts of any length: windows over a text, many of them in one forward pass, results in order.

A text that fits into the window is one sequence. A longer one is cut into windows, which are sequences of
their own: each begins at position 0, with BOS if the text does. Every token is scored once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ropechat.engine.convert import to_distribution, to_token_score
from ropechat.engine.score_input import ScoreInput, ScoreItem, TokenBuffer, counts
from ropechat.errors import CancelledError, InternalError, RopechatError
from ropechat.trace import Score, TokenDistribution, TokenScore, Totals, Trace

if TYPE_CHECKING:
    from ropechat.engine import _core
    from ropechat.engine.native import Request
    from ropechat.sampling import Sampling
    from ropechat.tokenizer import EncodedToken, Tokenizer

LOOKAHEAD = 4
"""How many times the sequences of a pass may be read ahead."""
SIZE = 16
"""Most windows of one text in a forward pass."""
ROWS_AHEAD = 1024
"""Tokens of windows that are read ahead of the window whose scores are being yielded."""
_NOTHING = Trace((), TokenDistribution(-1, (), math.nan, math.nan, 0.0))


@dataclass
class Window:
    """A sequence to score.

    ids: its tokens. start: the position of the first one that is scored. begin: the index in the text of
    position 0. tokens: the scored ones. is_last: whether the row after the last token is wanted. owner: the
    item that it is part of. error: why it cannot be scored. look_up: ids whose logprob and rank are recorded
    besides those of the pool. path: the ids that the owner is interested in.
    """

    ids: list[int]
    start: int
    begin: int
    tokens: list[EncodedToken]
    is_last: bool
    owner: Any = None
    error: RopechatError | None = None
    look_up: tuple[int, ...] = ()
    path: tuple[int, ...] = ()


def windows(tokens: TokenBuffer, first: int, size: int, stride: int) -> Iterator[Window]:
    """Yield the windows that score the tokens from `first` on, each of them once.

    A window has at most `size` rows. Row r (the token at index r) predicts token r + 1. The first window
    reads out all its rows; each later one the last `stride` rows, so a token has at least size - stride + 1
    tokens of context. A window ends where the text does.
    """
    bos = [token for token in tokens[0:1] if token.role == "bos"] if tokens.reaches(1) else []
    stride = min(stride, size - len(bos))
    row, is_last = max(first - 1, 0), False
    while not is_last:
        end = max(row + stride, size)
        is_last = not tokens.reaches(end + 1)
        end = min(end, tokens.known) if is_last else end
        if is_last and stride == size < end and row < end - 1:
            # As in lm-evaluation-harness, which predicts nothing after the text: that has its own window.
            end, is_last = end - 1, False
        lead = bos if end > size else []
        begin = end - size + len(lead) if end > size else 0
        part = tokens[begin : end if is_last else end + 1]
        start = row + 1 - begin if first or row else 0
        ids = [token.id for token in (*lead, *part)]
        yield Window(ids, len(lead) + start, begin - len(lead), part[start:], is_last)
        row = end
        tokens.forget(row + 1 - size)


_END = Window([], 0, 0, [], is_last=True)
"""Stands for the end of a source."""


@dataclass
class _Run:
    """A window in progress: waiting, active (with a sequence) or done."""

    window: Window
    sequence: int | None = None
    done: bool = False
    error: RopechatError | None = None
    events: list[_core.Event] = field(default_factory=list)
    cached: int = 0
    """Tokens that came from the cache, once it is done."""

    @property
    def is_active(self) -> bool:
        return self.sequence is not None and not self.done


class ScorePool:
    """Scores windows, up to `size` in each forward pass, and returns their events in order.

    rows: tokens of windows that are read ahead; None for any number. explained: settings whose stages are
    recorded, with the ids of their breakers. look_up: ids whose logprob and rank are recorded.
    """

    def __init__(
        self,
        request: Request,
        top_k: int,
        size: int,
        rows: int | None = None,
        explained: tuple[Sampling, _core.Breakers | None] | None = None,
        look_up: Sequence[int] = (),
    ) -> None:
        self._request = request  # kept: the engine cancels the requests that exist
        self._core, self._cancel = request.core, request.token
        self._top_k, self._size, self._rows, self._explained = top_k, size, rows, explained
        self._look_up = look_up
        self._runs: deque[_Run] = deque()

    def run(self, source: Iterator[Window | None]) -> Iterator[tuple[Window, list[_core.Event], _Run]]:
        """Yield (window, events, state) for the oldest window whenever it has new events or is done.

        source: None in place of a window says that there is none now, see `Engine.score_many`.
        """
        more = True
        try:
            while more or self._runs:
                while more and self._has_room():
                    window = next(source, _END)
                    if window is None:
                        break
                    if window is _END:
                        more = False
                    else:
                        self._runs.append(_Run(window, done=window.error is not None, error=window.error))
                self._start()
                self._advance()
                while self._runs and (self._runs[0].events or self._runs[0].done):
                    head = self._runs[0]
                    events, head.events = head.events, []
                    if head.done:
                        self._runs.popleft()
                    yield head.window, events, head
                    if not head.done:
                        break
        finally:
            for run in self._runs:
                if run.is_active:
                    self._end(run)

    def _has_room(self) -> bool:
        ahead = len(self._runs)
        if self._rows is not None and ahead and sum(len(run.window.ids) for run in self._runs) >= self._rows:
            return False
        return ahead < LOOKAHEAD * self._size

    def _start(self) -> None:
        """Start waiting windows, as many as a pass takes."""
        free = self._size - sum(run.is_active for run in self._runs)
        for run in self._runs:
            if free == 0:
                return
            if run.sequence is not None or run.done:
                continue
            window = run.window
            try:
                run.sequence = self._core.score(
                    window.ids, readout_top_k=self._top_k, start=window.start, read_next=window.is_last
                )
                if self._explained is not None:
                    sampling, breakers = self._explained
                    self._core.explain(run.sequence, sampling, breakers=breakers)
                if looked_up := (*self._look_up, *window.look_up):
                    self._core.look_up(run.sequence, looked_up)
            except RopechatError as error:
                run.error, run.done = error, True
            else:
                free -= 1

    def _advance(self) -> None:
        """Run one forward pass over the active sequences."""
        active = {run.sequence: run for run in self._runs if run.sequence is not None and not run.done}
        if not active:
            return
        try:
            events: Sequence[_core.Event] = self._core.step(list(active), self._cancel)
        except CancelledError:
            raise
        except RopechatError:
            events = self._advance_each(active)
        if not events and not any(run.done for run in active.values()):
            raise InternalError("engine: a pass over unfinished sequences made no progress")
        for event in events:
            if event.kind != "prefill":
                active[event.sequence].events.append(event)
        for run in active.values():
            if run.events and not run.done and _is_end(run.events[-1], run.window):
                self._end(run)

    def _advance_each(self, active: dict[int, _Run]) -> list[_core.Event]:
        """After a failed pass, which changed nothing, run each sequence alone to find the faulty one."""
        events: list[_core.Event] = []
        for number, run in active.items():
            try:
                events += self._core.step([number], self._cancel)
            except CancelledError:
                raise
            except RopechatError as error:
                run.error = error
                self._end(run)
        return events

    def _end(self, run: _Run) -> None:
        run.done = True
        if run.sequence is not None:
            run.cached = self._core.reused(run.sequence)
            self._core.free(run.sequence)


def _is_end(event: _core.Event, window: Window) -> bool:
    return event.kind == "next" if window.is_last else event.position == len(window.ids) - 1


class ScoreStream(Iterator[TokenScore]):
    """The scores of a text's tokens, in order, while the rest is still being computed.

    meta: as `Trace.meta`; meta["tokens"] is None while a long text is not encoded to its end. next: the
    distribution of the token after the last one, once the iterator has ended. before: the ids of the context,
    which have no scores. Close it to stop.
    """

    def __init__(
        self,
        meta: dict[str, Any],
        chunks: Generator[list[TokenScore], None, TokenDistribution],
        before: Sequence[int] = (),
    ) -> None:
        """Use `Engine.score_stream`."""
        self.meta, self.before = meta, before
        self.next: TokenDistribution | None = None
        self._chunks = chunks
        self._ready: deque[TokenScore] = deque()

    @property
    def text(self) -> str | None:
        """The text that spans refer to; None for ids without a tokenizer."""
        text: str | None = self.meta["text"]
        return text

    def __next__(self) -> TokenScore:
        while not self._ready:
            self._ready.extend(self._take())  # raises StopIteration at the end
        return self._ready.popleft()

    def _take(self) -> list[TokenScore]:
        try:
            return next(self._chunks)
        except StopIteration as end:
            if end.value is not None:
                self.next = end.value
            raise

    def chunks(self) -> Iterator[list[TokenScore]]:
        """The scores in the lists in which they are computed: one for each forward pass."""
        while True:
            try:
                yield self._take()
            except StopIteration:
                return

    def close(self) -> None:
        """Stop computing; scores that were not taken are dropped."""
        self._ready.clear()
        self._chunks.close()

    def trace(self) -> Trace:
        """The trace of all tokens, if none was taken before. Raises as the iterator."""
        tokens = tuple(self)
        if self.next is None:
            raise CancelledError("scoring: closed before the end of the text")
        return Trace(tokens, self.next, self.meta)


def stream_scores(
    pool: ScorePool, source: Iterator[Window], tokenizer: Tokenizer
) -> Generator[list[TokenScore], None, TokenDistribution]:
    """Yield the scores of one text's windows in lists; return the distribution after its last token."""
    scored = _Converter(tokenizer)
    for window, events, state in pool.run(source):
        if state.error is not None:
            raise state.error
        if tokens := scored.take(window, events):
            yield tokens
    if scored.next is None:
        raise InternalError("engine: the text has no row after its last token")
    return scored.next


def next_distributions(pool: ScorePool, prompts: Iterable[list[int]]) -> Iterator[TokenDistribution]:
    """Yield the distribution of the token after each of these ids, in their order."""
    source = (Window(ids, len(ids), 0, [], is_last=True) for ids in prompts)
    for window, events, state in pool.run(source):
        if state.error is not None:
            raise state.error
        for event in events:
            if event.kind == "next" and event.row is not None:
                yield to_distribution(event.row, len(window.ids) - 1)


class _Converter:
    """Converts the events of one text's windows, and checks that no token is missing."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._expected: int | None = None
        self.next: TokenDistribution | None = None

    def take(self, window: Window, events: Sequence[_core.Event]) -> list[TokenScore]:
        """The scores of these events."""
        scores = []
        for event in events:
            if event.kind == "next" and event.row is not None:
                self.next = to_distribution(event.row, window.begin + len(window.ids) - 1)
                continue
            token = window.tokens[event.position - window.start]
            score = to_token_score(event, token, self._tokenizer, window.begin)
            if score.index != (score.index if self._expected is None else self._expected):
                raise InternalError(f"engine: token {score.index} scored in place of {self._expected}")
            self._expected = score.index + 1
            scores.append(score)
        return scores


class _Item:
    """An item of `score_rows` whose windows are in progress."""

    def __init__(self, item: ScoreItem | RopechatError, tokenizer: Tokenizer) -> None:
        self.item = item
        self.joined = False
        self.meta: dict[str, Any] = {}
        self.error: RopechatError | None = None
        self.cached = 0
        self.converter = _Converter(tokenizer)
        self.tokens: list[TokenScore] = []
        self.following: TokenDistribution | None = None
        """After the last token; once it is there, the item is scored."""

    def plan(self, encode: Encode) -> Iterator[Window]:
        """Yield its windows; if it cannot be encoded, one with the error."""
        try:
            if isinstance(self.item, RopechatError):
                raise self.item
            given, self.meta, planned = encode(self.item)
            self.joined = given.joined
            for window in planned:
                window.owner = self
                yield window
        except RopechatError as error:
            yield Window([], 0, 0, [], is_last=True, owner=self, error=error)

    def result(self) -> Score:
        """The score, once its windows are done or one of them failed."""
        item, following = self.item, self.following
        if self.error is not None or isinstance(item, RopechatError) or following is None:
            error = self.error or InternalError("engine: no scores")
            return Score(math.nan, 0, 0, False, _NOTHING, error=error)
        scored = [token for token in self.tokens if counts(token, item)]
        totals = Totals(sorted({token.role for token in scored}))
        for token in scored:
            totals.add(token)
        greedy = bool(scored) and all(token.rank == 1 for token in scored)
        trace = Trace(tuple(self.tokens), following, self.meta)
        return Score(
            0.0 - totals.nll,
            totals.scored,
            totals.bytes,
            greedy,
            trace,
            self.joined,
            cached_tokens=self.cached,
        )


class _Alike:
    """Items of a row whose one scored token follows the same ids: one row of a forward pass has them all."""

    def __init__(self, items: Sequence[_Item], windows: Sequence[Window], tokenizer: Tokenizer) -> None:
        self._items, self._windows, self._tokenizer = items, windows, tokenizer

    @classmethod
    def of(
        cls, items: Sequence[_Item], plans: Sequence[Sequence[Window]], tokenizer: Tokenizer
    ) -> _Alike | None:
        """None unless there are several such items, and no others."""
        windows = [plan[0] for plan in plans if len(plan) == 1 and len(plan[0].tokens) == 1]
        if not 1 < len(windows) == len(plans) or any(window.error for window in windows):
            return None
        before = {(tuple(window.ids[:-1]), window.start, window.begin) for window in windows}
        return cls(items, windows, tokenizer) if len(before) == 1 else None

    def window(self) -> Window:
        """What is read."""
        looked_up = tuple(window.ids[-1] for window in self._windows)
        return replace(self._windows[0], is_last=False, owner=self, look_up=looked_up)

    def take(self, events: Sequence[_core.Event], state: _Run) -> None:
        """Give each item its score."""
        for item in self._items:
            item.error = state.error
        self._items[0].cached = state.cached
        for event in events:
            for item, window, (logprob, rank) in zip(
                self._items, self._windows, event.looked_up, strict=True
            ):
                score = to_token_score(event, window.tokens[0], self._tokenizer, window.begin)
                item.tokens = [replace(score, logprob=logprob, rank=rank, looked_up=())]
                item.following = _NOTHING.next


Encode = Callable[[ScoreItem], tuple[ScoreInput, dict[str, Any], Iterator[Window]]]
"""Makes of an item the encoded one, its trace's meta, and its windows."""


def score_items(
    items: Iterable[ScoreItem | RopechatError | None], encode: Encode, pool: ScorePool, tokenizer: Tokenizer
) -> Iterator[tuple[int, Score]]:
    """Yield (index, Score) in the order of the items, which are as in `Engine.score_many`."""
    rows = (None if item is None else [item] for item in items)
    for index, scores in score_rows(rows, encode, pool, tokenizer):
        yield index, scores[0]


def score_rows(
    rows: Iterable[Sequence[ScoreItem | RopechatError] | None],
    encode: Encode,
    pool: ScorePool,
    tokenizer: Tokenizer,
) -> Iterator[tuple[int, list[Score]]]:
    """Yield (index, scores of its items) in the order of the rows; windows of different rows share passes.

    Where the items of a row differ in one last token only, which alone is scored, one row of a pass has the
    scores of all; their traces then have no distribution after the text.
    """
    waiting: deque[list[_Item]] = deque()

    def source() -> Iterator[Window | None]:
        for row in rows:
            if row is None:
                yield None
                continue
            items = [_Item(item, tokenizer) for item in row]
            waiting.append(items)
            if len(items) == 1:
                yield from items[0].plan(encode)
                continue
            plans = [list(item.plan(encode)) for item in items]
            alike = _Alike.of(items, plans, tokenizer)
            if alike is not None:
                yield alike.window()
                continue
            for plan in plans:
                yield from plan

    index, done = 0, 0
    for window, events, state in pool.run(source()):
        owner: _Item | _Alike = window.owner
        if isinstance(owner, _Alike):
            owner.take(events, state)
            done += len(waiting[0]) if state.done else 0
        else:
            if owner.error is None:
                owner.error = state.error
            if owner.error is None:
                owner.tokens += owner.converter.take(window, events)
                owner.following = owner.converter.next
                owner.cached += state.cached if state.done else 0
            done += state.done and window.is_last
        if done == len(waiting[0]):
            yield index, [item.result() for item in waiting.popleft()]
            index, done = index + 1, 0
