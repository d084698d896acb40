"""The records of an inspected or generated text: what the model predicted at each token.

All numbers are raw (temperature 1, no filter) and over the full vocabulary unless a stage of the sampler is
named; logprobs and entropies are in nats. Records that exist once per token are NamedTuples, which take less
time and memory than dataclasses.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, overload

FinishReason = Literal["stop", "length", "context", "cancelled"]


class TokenDistribution(NamedTuple):
    """The predicted distribution of the token after `position`."""

    position: int
    top: tuple[tuple[int, float], ...]
    """(id, logprob) of the k most probable ids, most probable first; ties go to the lower id."""
    logsumexp: float
    """log-sum-exp of the logits: logit = logprob + logsumexp."""
    entropy: float
    top_mass: float
    """Sum of the probabilities of `top`."""


@dataclass(frozen=True)
class TokenScore:
    """A token of a given text, scored under the distribution predicted from the tokens before it.

    `row.position` is `index - 1`.
    """

    index: int
    id: int
    bytes: bytes
    text: str
    """The bytes as text; an incomplete character becomes U+FFFD."""
    span: tuple[int, int]
    """Byte range in the UTF-8 of `Trace.meta["text"]`; empty for a token without text."""
    role: str
    """"text", "template" (written by the chat template), "bos" or "special"."""
    logprob: float | None
    """None for the first token, which has no context."""
    rank: int | None
    """1 + the number of ids with a larger logit."""
    entropy: float | None
    """Entropy of `row`."""
    row: TokenDistribution | None


class Stage(NamedTuple):
    """The candidates that survive one stage of the sampler."""

    name: str
    kept: int
    mass: float
    """Summed raw probability of the kept candidates."""
    entropy: float
    """Entropy of the renormalized kept candidates."""


class Step(NamedTuple):
    """One generated token.

    `text` is the text that became final with this token: empty while a character or a possible stop string is
    incomplete, and the text of several tokens once it is complete.
    u: the random number in [0, 1) that selected the token; None for greedy sampling.
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


class LensRow(NamedTuple):
    """What one layer predicts for token `i`, were it the last one: final norm and lm_head after that layer.

    Logit lens: nostalgebraist, "interpreting GPT: the logit lens" (2020). logprob and rank are those of the
    text's token, None for the token after the last one.
    """

    i: int
    layer: int
    rank: int | None
    logprob: float | None
    entropy: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Trace(Sequence[TokenScore]):
    """The scores of a text's tokens, and the distribution of the token after the last.

    meta: model, dtype, vocab_size, top_k and more; meta["text"] is the text that spans refer to.
    """

    tokens: tuple[TokenScore, ...]
    next: TokenDistribution
    meta: dict[str, Any] = field(default_factory=dict)

    def _scored(self, roles: Sequence[str]) -> list[TokenScore]:
        return [token for token in self.tokens if token.logprob is not None and token.role in roles]

    def nll(self, roles: Sequence[str] = ("text",)) -> float:
        """Summed negative log likelihood of the scored tokens of these roles, in nats."""
        return -math.fsum(token.logprob for token in self._scored(roles) if token.logprob is not None)

    def ppl(self, roles: Sequence[str] = ("text",)) -> float:
        """Perplexity: exp of the mean negative log likelihood; NaN without scored tokens."""
        count = len(self._scored(roles))
        if count == 0:
            return math.nan
        try:
            return math.exp(self.nll(roles) / count)
        except OverflowError:
            return math.inf

    def bits_per_byte(self, roles: Sequence[str] = ("text",)) -> float:
        """Negative log likelihood in bits per UTF-8 byte of the scored text; NaN without scored tokens.

        Comparable between tokenizers. Bytes shared by several tokens count once.
        """
        scored, end, count = self._scored(roles), 0, 0
        for token in scored:
            count += max(0, token.span[1] - max(token.span[0], end))
            end = max(end, token.span[1])
        return self.nll(roles) / math.log(2) / count if count else math.nan

    @property
    def beyond_trained_length(self) -> int:
        """Number of tokens beyond the trained context length; 0 if that length is unknown."""
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
