"""A scored text on its way to an output: its tokens one by one, and the sums over those that have passed."""

import math
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ropechat.inspector.look_up import Found
from ropechat.trace import TokenDistribution, TokenScore

LN2 = math.log(2)
_LAST_IDS = 1 << 17  # kept for look-ups; no context is longer


class Scores(Protocol):
    """The scores of a text's tokens, read once and in order: a `Trace`, or scores that are still coming.

    meta: as of `Trace`. next: the distribution after the last token; None before it is known.
    """

    @property
    def meta(self) -> Mapping[str, Any]: ...
    @property
    def next(self) -> TokenDistribution | None: ...
    def __iter__(self) -> Iterator[TokenScore]: ...


class Reading:
    """One scored text on its way to an output. name: of its file, "" for a text of the command line.

    look_up: finds the strings that are looked up after the text, given the ids of its last tokens.
    """

    def __init__(
        self,
        scores: Scores,
        name: str = "",
        look_up: "Callable[[Sequence[int]], Sequence[Found]] | None" = None,
    ) -> None:
        self.name, self.meta = name, scores.meta
        self._scores, self._look_up = scores, look_up
        self._ids: deque[int] = deque(maxlen=_LAST_IDS)

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that sums cover."""
        return tuple(self.meta.get("roles") or ("text",))

    @property
    def tokens(self) -> Iterator[TokenScore]:
        """The tokens; read them once."""
        for token in self._scores:
            self._ids.append(token.id)
            yield token

    @property
    def next(self) -> TokenDistribution | None:
        """The distribution after the last token, once the tokens have been read."""
        return self._scores.next

    def looked_up(self) -> Sequence[Found]:
        """The strings that are looked up after the text, once its tokens have been read."""
        return () if self._look_up is None else self._look_up(list(self._ids))


@dataclass
class Sums:
    """Sums over the scored tokens of one role."""

    bytes: int = 0
    """Bytes of the scored text; bytes shared by several tokens count once."""
    _end: int = 0
    _logprobs: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, token: TokenScore) -> None:
        """Add a token that has a logprob."""
        if token.logprob is None:
            return
        self._logprobs.append(token.logprob)
        self.bytes += max(0, token.span[1] - max(token.span[0], self._end))
        self._end = max(self._end, token.span[1])

    @property
    def scored(self) -> int:
        """Number of tokens."""
        return len(self._logprobs)

    @property
    def nll(self) -> float:
        """Negative log likelihood in nats."""
        return -math.fsum(self._logprobs)

    @property
    def ppl(self) -> float:
        """Perplexity; NaN without tokens."""
        if not self._logprobs:
            return math.nan
        try:
            return math.exp(self.nll / self.scored)
        except OverflowError:
            return math.inf

    @property
    def bits_per_byte(self) -> float:
        """Bits per UTF-8 byte; NaN without bytes."""
        return self.nll / LN2 / self.bytes if self.bytes else math.nan


class Summary:
    """Counts the tokens that pass through `watch`, and sums them by role.

    The sums are those of `Trace.nll`, `ppl` and `bits_per_byte`, to the bit.
    """

    def __init__(self, roles: Iterable[str] = ("text",)) -> None:
        self.roles = tuple(roles)
        self.tokens = 0
        self.counted = Sums()
        self.by_role: dict[str, Sums] = {}

    def watch(self, tokens: Iterable[TokenScore]) -> Iterator[TokenScore]:
        """Yield the tokens, and add each."""
        for token in tokens:
            self.tokens += 1
            if token.logprob is not None:
                self.by_role.setdefault(token.role, Sums()).add(token)
                if token.role in self.roles:
                    self.counted.add(token)
            yield token

    def line(self) -> str:
        """The sums in one line of text."""
        sums = self.counted
        if not sums.scored:
            return f"{self.tokens} tokens, none scored"
        return (
            f"{self.tokens} tokens, {sums.scored} scored: nll {sums.nll:.3f}, perplexity {sums.ppl:.2f}, "
            f"{sums.bits_per_byte:.3f} bits/byte"
        )
