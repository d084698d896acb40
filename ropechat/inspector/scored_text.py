"""A scored text on its way to an output: its tokens one by one, and the sums over those that have passed."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from ropechat.errors import CancelledError
from ropechat.inspector.look_up import Found, Strings
from ropechat.trace import SUMMED, Scores, TokenDistribution, TokenScore, Totals
from ropechat.util.text import count_of, one_line

LN2 = math.log(2)
_LAST_IDS = 1 << 17  # kept for look-ups; no context is longer


class ScoredText:
    """One scored text on its way to an output. name: of its file, "" for a text of the command line.

    look_up: the strings that are looked up in each place. before: the ids of the text's context. is_stopped:
    whether the computation was stopped on purpose, so that the text ends with what is computed.
    """

    def __init__(
        self,
        scores: Scores,
        name: str = "",
        look_up: Strings | None = None,
        before: Sequence[int] = (),
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_stopped = is_stopped
        self.name, self.meta = name, scores.meta
        self._scores, self._look_up, self._before = scores, look_up, before
        self._ids: deque[int] = deque(before, maxlen=_LAST_IDS)
        self.found: Sequence[Found] = ()

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that sums cover."""
        return tuple(self.meta.get("roles") or SUMMED)

    @property
    def tokens(self) -> Iterator[TokenScore]:
        """The tokens; read them once. `found` has the strings in the place of the last one."""
        try:
            if self._look_up is None:
                yield from self._scores
                return
            for token, found in self._look_up.watch(self._scores, self._before):
                self.found = found
                self._ids.append(token.id)
                yield token
        except CancelledError:
            if not self._is_stopped():
                raise

    @property
    def next(self) -> TokenDistribution | None:
        """The distribution after the last token, once the tokens have been read; None if stopped."""
        return None if self._is_stopped() else self._scores.next

    def looked_up(self) -> Sequence[Found]:
        """The strings that are looked up after the text, once its tokens have been read."""
        if self._look_up is None or self._is_stopped():
            return ()
        try:
            return self._look_up.after(list(self._ids))
        except CancelledError:
            if not self._is_stopped():
                raise
            return ()


def percent(logprob: float) -> str:
    """A log probability in nats as a percentage with two significant digits or more."""
    share = 100.0 * math.exp(min(0.0, logprob)) if not math.isnan(logprob) else math.nan
    if math.isnan(share):
        return "–"
    if share >= 1.0:
        return f"{share:.1f}%"
    return f"{share:.2g}%" if share >= 0.001 else "<0.001%"


class Summary:
    """Sums over the tokens that pass through `watch`.

    counted: the sums over the roles that count. by_role: over each role that has scored tokens.
    """

    def __init__(self, roles: Sequence[str] = SUMMED) -> None:
        self.counted = Totals(roles)
        self.by_role: dict[str, Totals] = {}

    def watch(self, tokens: Iterable[TokenScore]) -> Iterator[TokenScore]:
        """Yield the tokens, and add each."""
        for token in tokens:
            self.counted.add(token)
            if token.logprob is not None:
                self.by_role.setdefault(token.role, Totals((token.role,))).add(token)
            yield token

    def line(self) -> str:
        """The sums over the roles that count, in one line of text."""
        sums = self.counted
        if not sums.scored:
            return f"{count_of(sums.tokens, 'token')}, none scored"
        return f"{count_of(sums.tokens, 'token')}, {sums.scored} scored: {_sums(sums)}"

    def role_lines(self) -> Iterator[str]:
        """A line for each role, if several have scored tokens."""
        if len(self.by_role) > 1:
            for role, sums in self.by_role.items():
                yield f"{one_line(role)}: {sums.scored} scored: {_sums(sums)}"


def _sums(sums: Totals) -> str:
    """The sums in words; tokens without text, such as control tokens, have no bits per byte."""
    by_byte = f", {sums.bits_per_byte:.3f} bits/byte" if sums.bytes else ""
    return f"{sums.nll / LN2:.2f} bits, perplexity {sums.ppl:.2f}{by_byte}"
