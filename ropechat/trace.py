"""What the model says about each token of a text. A leaf: imports nothing of ours.

Every number is of the stage `raw` (temperature 1, no filter) and over the full vocabulary unless another
stage is named; logprobs and entropies are in nats. Records of which answers have many are NamedTuples: those
take less time and memory.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, overload

FinishReason = Literal["stop", "length", "context", "cancelled"]


class TokenDistribution(NamedTuple):
    """The distribution of the token that follows `position`."""

    position: int
    top: tuple[tuple[int, float], ...]
    """(id, logprob) of the k most probable ids, best first; ties by lower id."""
    logsumexp: float
    """log sum exp of the logits: a logit is its logprob plus this."""
    entropy: float
    top_mass: float
    """Sum of the probabilities of `top`."""


@dataclass(frozen=True)
class TokenScore:
    """A given token and how the model saw it coming.

    `row.position` is `index - 1`: the row that the tokens before this one produced.
    """

    index: int
    id: int
    bytes: bytes
    text: str
    """The bytes for people: an incomplete character shows as U+FFFD."""
    span: tuple[int, int]
    """Byte range in `Trace.meta["text"]` as UTF-8; empty for a token that stands for no text."""
    role: str
    """"text"; "bos" or "special" for a token that is no text; "template" for words of the chat template."""
    logprob: float | None
    """None where there is no context (the first token)."""
    rank: int | None
    """1 + how many ids have a larger logit."""
    entropy: float | None
    """Entropy of `row`."""
    row: TokenDistribution | None


class Stage(NamedTuple):
    """The candidates that survive one stage of the sampler."""

    name: str
    kept: int
    mass: float
    """Raw probability of the kept candidates."""
    entropy: float
    """Entropy of the renormalized kept candidates."""


class Step(NamedTuple):
    """One generated token.

    `text` is what became displayable with this token. It is empty while half a character or the beginning of
    a stop string is pending, and may then hold the text of several tokens: records are per token, texts not.
    """

    id: int
    bytes: bytes
    text: str
    logprob: float
    rank: int
    entropy: float
    top: tuple[tuple[int, float], ...]
    finish_reason: FinishReason | None
    position: int
    row: TokenDistribution | None
    stages: tuple[Stage, ...]
    u: float | None


@dataclass(frozen=True)
class Trace(Sequence[TokenScore]):
    """The scores of a text's tokens, and the distribution of the token after the last.

    meta: model, dtype, vocab_size, top_k, ... as the engine knows them; text: the text that spans point into.
    """

    tokens: tuple[TokenScore, ...]
    next: TokenDistribution
    meta: dict[str, Any] = field(default_factory=dict)

    def _scored(self, roles: Sequence[str]) -> list[TokenScore]:
        return [token for token in self.tokens if token.logprob is not None and token.role in roles]

    def nll(self, roles: Sequence[str] = ("text",)) -> float:
        """Negative log likelihood of the tokens of these roles that have a logprob, in nats; a sum."""
        return -math.fsum(token.logprob for token in self._scored(roles) if token.logprob is not None)

    def ppl(self, roles: Sequence[str] = ("text",)) -> float:
        """Perplexity: exp of the mean negative log likelihood; NaN when no token has a logprob."""
        count = len(self._scored(roles))
        if count == 0:
            return math.nan
        try:
            return math.exp(self.nll(roles) / count)
        except OverflowError:
            return math.inf

    def bits_per_byte(self, roles: Sequence[str] = ("text",)) -> float:
        """Negative log likelihood in bits per UTF-8 byte of the scored text; NaN when there is none.

        Comparable between tokenizers. Bytes that several tokens share are counted once.
        """
        scored, end, count = self._scored(roles), 0, 0
        for token in scored:
            count += max(0, token.span[1] - max(token.span[0], end))
            end = max(end, token.span[1])
        return self.nll(roles) / math.log(2) / count if count else math.nan

    @property
    def beyond_trained_length(self) -> int:
        """How many tokens stand at positions that the model never saw; 0 where its length is not known."""
        trained: int = self.meta.get("trained_length", len(self.tokens))
        return max(0, len(self.tokens) - trained)

    def __len__(self) -> int:
        return len(self.tokens)

    def __iter__(self) -> Iterator[TokenScore]:
        return iter(self.tokens)

    @overload
    def __getitem__(self, index: int) -> TokenScore: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TokenScore]: ...
    def __getitem__(self, index: int | slice) -> TokenScore | Sequence[TokenScore]:
        return self.tokens[index]
