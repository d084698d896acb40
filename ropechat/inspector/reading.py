"""A scored text on its way to an output: its tokens one by one, and the sums over those that have passed."""

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ropechat.inspector.look_up import Found
from ropechat.trace import TokenDistribution, TokenScore, Trace

LN2 = math.log(2)


@dataclass
class Reading:
    """One scored text. `tokens` is read once; `following` is known when it has been read to its end.

    name: of the file, "" for a text of the command line. meta: as `Trace.meta`.
    """

    name: str
    meta: Mapping[str, Any]
    tokens: Iterable[TokenScore]
    following: TokenDistribution | None = None
    ids: Sequence[int] = ()
    """The last tokens of the text, for strings that are looked up after it."""
    looked_up: Callable[[], Sequence[Found]] = tuple
    """The strings that were looked up after the text; called once, when the tokens have been read."""

    @classmethod
    def of(cls, trace: Trace, name: str = "") -> "Reading":
        """A trace that is complete."""
        counts = {"tokens": len(trace), "beyond_trained_length": trace.beyond_trained_length}
        return cls(name, {**counts, **trace.meta}, trace.tokens, trace.next, [token.id for token in trace])

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that sums cover."""
        return tuple(self.meta.get("roles") or ("text",))


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
