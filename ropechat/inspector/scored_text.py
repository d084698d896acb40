"""A scored text on its way to an output: its tokens one by one, and the sums over those that have passed."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ropechat.errors import CancelledError
from ropechat.inspector.look_up import Found, Strings
from ropechat.inspector.stages import Producible
from ropechat.inspector.stoppable import Watcher
from ropechat.trace import SUMMED, Scores, TokenDistribution, TokenScore, Totals
from ropechat.util.text import count_of, one_line

LN2 = math.log(2)
_LAST_IDS = 1 << 17  # kept for look-ups; no context is longer


def percent(logprob: float) -> str:
    """A log probability in nats as a percentage with two significant digits or more."""
    share = 100.0 * math.exp(min(0.0, logprob)) if not math.isnan(logprob) else math.nan
    if math.isnan(share):
        return "–"
    if share >= 1.0:
        return f"{share:.1f}%"
    return f"{share:.2g}%" if share >= 0.001 else "<0.001%"


class Summary:
    """Sums over tokens. counted: over the roles that count. by_role: over each role with scored tokens."""

    def __init__(self, roles: Sequence[str] = SUMMED) -> None:
        self.counted = Totals(roles)
        self.by_role: dict[str, Totals] = {}

    def add(self, token: TokenScore) -> None:
        """Add a token."""
        self.counted.add(token)
        if token.logprob is not None:
            self.by_role.setdefault(token.role, Totals((token.role,))).add(token)

    def line(self, unit: str = "bit") -> str:
        """The sums over the roles that count, in one line of text."""
        sums = self.counted
        if not sums.scored:
            return f"{count_of(sums.tokens, 'token')}, none scored"
        return f"{count_of(sums.tokens, 'token')}, {sums.scored} scored: {_sums(sums, unit)}"

    def role_lines(self, unit: str = "bit") -> Iterator[str]:
        """A line for each role, if several have scored tokens."""
        if len(self.by_role) > 1:
            for role, sums in self.by_role.items():
                yield f"{one_line(role)}: {sums.scored} scored: {_sums(sums, unit)}"


def nats_of(unit: str) -> float:
    """How many nats a unit is: bit or nat."""
    return LN2 if unit == "bit" else 1.0


def _sums(sums: Totals, unit: str) -> str:
    """The sums in words; tokens without text, such as control tokens, have no bits per byte."""
    scale = 1.0 if unit == "bit" else LN2
    by_byte = f", {scale * sums.bits_per_byte:.3f} {unit}s/byte" if sums.bytes else ""
    return f"{scale * sums.nll / LN2:.2f} {unit}s, perplexity {sums.ppl:.2f}{by_byte}"


class Observer(Watcher):
    """Hears of the tokens of a text while they are scored."""

    def scoring(self, meta: Mapping[str, Any]) -> AbstractContextManager[object]:
        """Entered while a text is scored. meta: as of `ScoreStream`."""
        return nullcontext()

    def scored(self, token: TokenScore) -> None:
        """Called with each token, before it goes to the output."""


class ScoredText:
    """A scored text on its way to an output; iterate over its tokens once.

    name: of its file, "" for a text without one. bytes_of: id -> the bytes of a token. look_up: the strings
    that are looked up in each place. before: the ids of the text's context. observer: see `Observer`.

    While it is iterated over, `found` has the strings in the place of the last token; `summary` and
    `producible` have the sums of the tokens so far.
    """

    def __init__(
        self,
        scores: Scores,
        name: str = "",
        bytes_of: Callable[[int], bytes] = bytes,
        look_up: Strings | None = None,
        before: Sequence[int] = (),
        observer: Observer | None = None,
    ) -> None:
        self.name, self.meta, self.bytes_of = name, scores.meta, bytes_of
        self._scores, self._look_up, self._before = scores, look_up, before
        self._observer = observer or Observer()
        self._ids: deque[int] = deque(before, maxlen=_LAST_IDS)
        self.found: Sequence[Found] = ()
        self.roles: tuple[str, ...] = tuple(self.meta.get("roles") or SUMMED)
        self.summary, self.producible = Summary(self.roles), Producible(self.roles)

    def __iter__(self) -> Iterator[TokenScore]:
        places: Iterable[tuple[TokenScore, Sequence[Found]]]
        if self._look_up is None:
            places = ((token, ()) for token in self._scores)
        else:
            places = self._look_up.watch(self._scores, self._before)
        try:
            with self._observer.scoring(self.meta):
                for token, self.found in places:
                    self._ids.append(token.id)
                    self.summary.add(token)
                    self.producible.add(token)
                    self._observer.scored(token)
                    yield token
                    if self._observer.is_stopped:
                        return
        except CancelledError:
            if not self._observer.is_stopped:
                raise

    @property
    def next(self) -> TokenDistribution | None:
        """The distribution after the last token, once the tokens have been read; None if stopped."""
        return None if self._observer.is_stopped else self._scores.next

    def looked_up(self) -> Sequence[Found]:
        """The strings that are looked up after the text, once its tokens have been read."""
        if self._look_up is None or self._observer.is_stopped:
            return ()
        try:
            return self._look_up.after(list(self._ids))
        except CancelledError:
            if not self._observer.is_stopped:
                raise
            return ()
