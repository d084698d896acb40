"""The records of an inspected or generated text: what the model predicted at each token.

All numbers are raw (temperature 1, no filter) and over the full vocabulary unless a stage of the sampler is
named; logprobs and entropies are in nats. Records that exist once per token are NamedTuples, which take less
time and memory than dataclasses.

The stages of the sampler are applied in this order: logit_bias, repetition_penalty, temperature, top_k,
top_p, min_p. Each works on the renormalized survivors of the one before it; a setting that is off has no
stage. The survivors of the last stage are laid side by side in [0, 1), the most probable first (ties by lower
id), each as wide as its probability; the random number `u` falls into the interval of the drawn token.
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


class Stage(NamedTuple):
    """The candidates that survive one stage of the sampler. Temperature 0 keeps the best one."""

    name: str
    """The field of `Sampling`."""
    kept: int
    mass: float
    """Summed raw probability of the kept candidates."""
    entropy: float
    """Entropy of the renormalized kept candidates."""


class Candidate(NamedTuple):
    """What the stages of the sampler did to one id."""

    id: int
    rank: int
    """1 + the number of ids before it after bias and penalty; ties go to the lower id."""
    cut: str | None
    """The name of the stage that removed it."""
    penalized: bool
    """Whether the repetition penalty applies to it."""
    probability: float
    """Probability at the draw, after all stages; 0 if cut."""
    by_stage: tuple[float, ...] = ()
    """Probability after each of the stages; 0 from the one that cut it. Not stored with chats."""


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
    stages: tuple[Stage, ...] = ()
    """What sampler settings do with this token, as in `Step`; empty unless `Engine.score` was given some."""
    candidates: tuple[Candidate, ...] = ()
    interval: tuple[float, float] | None = None
    u: float | None = None
    """The random number that selected the token, if it was generated."""

    @property
    def outcome(self) -> Candidate | None:
        """What the sampler settings do with this token; None if not recorded."""
        return next((one for one in self.candidates if one.id == self.id), None)


class Step(NamedTuple):
    """One generated token.

    `text` is the text that became final with this token: empty while a character or a possible stop string is
    incomplete, and the text of several tokens once it is complete.
    u: the random number in [0, 1) that selected the token; None for greedy sampling. interval: the token is
    drawn for start <= u < end. candidates: the ids of `top`, then the token itself if it is not in `top`.
    stages, candidates, interval are empty or None unless candidates were recorded.
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
    candidates: tuple[Candidate, ...] = ()
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Trace(Sequence[TokenScore]):
    """The scores of a text's tokens, and the distribution of the token after the last.

    meta: model, dtype, vocab_size, top_k and more; meta["text"] is the text that spans refer to,
    meta["sampling"] the `Sampling` whose stages the tokens have, or None.
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
