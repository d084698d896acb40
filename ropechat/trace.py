"""The records of an inspected or generated text: what the model predicted at each token.

All numbers are raw (temperature 1, no filter) and over the full vocabulary unless a stage of the sampler is
named; logprobs and entropies are in nats. Records that exist once per token are NamedTuples, which take less
time and memory than dataclasses.

The stages of the sampler are applied in this order: forced (what closes a thought whose budget is spent),
grammar, logit_bias, repetition_penalty, presence_penalty, frequency_penalty, dry, temperature, top_n_sigma,
top_k, top_p, min_p, xtc. Each works on the renormalized survivors of the one before it; a setting that is off
has no stage. The survivors of the last stage are laid side by side in [0, 1), the most probable first (ties
by lower id), each as wide as its probability; the random number `u` falls into the interval of the drawn
token.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, overload

from ropechat.errors import RequestError, RopechatError

FinishReason = Literal["stop", "length", "context", "cancelled"]
Channel = Literal["answer", "thought", "marker"]
"""Where a generated token belongs: to the answer, to the thought before it, or to what separates the two."""


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
    varentropy: float | None = None
    """Variance of the log probability over the full vocabulary in nats^2: sum p (ln p + entropy)^2
    (Kontoyiannis and Verdu, "Optimal Lossless Data Compression", 2014). None without candidates."""


class Stage(NamedTuple):
    """The candidates that survive one stage of the sampler. Temperature 0 keeps the best one."""

    name: str
    """The field of `Sampling`; "dry" and "xtc" have several."""
    kept: int
    mass: float
    """Summed raw probability of the kept candidates."""
    entropy: float
    """Entropy of the renormalized kept candidates."""
    value: float | None = None
    """Of top_n_sigma the standard deviation of the logits. Of xtc the random number in [0, 1) that it drew,
    which removes candidates below xtc_probability; None for a given text, whose probabilities are the mean of
    both cases."""


class Candidate(NamedTuple):
    """What the stages of the sampler did to one id."""

    id: int
    rank: int
    """1 + the number of ids before it after bias and penalties; ties go to the lower id."""
    cut: str | None
    """The name of the stage that removed it."""
    penalized: bool
    """Whether a penalty applies to it."""
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
    """"text", "template" (written by the chat template), "bos" or "special"; in a conversation scored by
    author also "system", "user" or "assistant"."""
    logprob: float | None
    """None for the first token, which has no context."""
    rank: int | None
    """1 + the number of ids with a larger logit."""
    entropy: float | None
    """Entropy of `row`."""
    row: TokenDistribution | None
    context: int = 0
    """Number of tokens before it that the model saw: `index`, or fewer in a text scored in windows."""
    stages: tuple[Stage, ...] = ()
    """What sampler settings do with this token, as in `Step`; empty unless `Engine.score` was given some."""
    candidates: tuple[Candidate, ...] = ()
    interval: tuple[float, float] | None = None
    u: float | None = None
    """The random number that selected the token, if it was generated."""
    drafted: bool = field(default=False, compare=False)
    """Whether it is an accepted draft of speculative decoding; depends on measured times."""
    looked_up: tuple[tuple[float, int], ...] = ()
    """(logprob, rank) in this place of each id that `Engine.score` was asked to look up."""

    @property
    def outcome(self) -> Candidate | None:
        """What the sampler settings do with this token; None if not recorded."""
        return next((one for one in self.candidates if one.id == self.id), None)


class Step(NamedTuple):
    """One generated token.

    `text` is the text of the answer that became final with this token: empty while a character or a possible
    stop string is incomplete, and the text of several tokens once it is complete. reasoning: the same of the
    thought that a model that reasons writes before its answer. channel: which of the two the token belongs
    to; the texts of tokens between them ("marker") are in neither. `bytes` has what the token itself says. u:
    the random number in [0, 1) that selected the token; None for greedy sampling. interval: the token is
    drawn for start <= u < end. candidates: the ids of `top`, then the token itself if it is not in `top`.
    stages, candidates, interval are empty or None unless candidates were recorded. drafted: whether the token
    was an accepted draft of speculative decoding; that depends on measured times, so it is not compared.
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
    reasoning: str = ""
    channel: Channel = "answer"
    drafted: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Step) and self[:-1] == other[:-1]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self[:-1])


class Scores(Protocol):
    """The scores of a text's tokens in order: a Trace, or a stream that is still being computed."""

    @property
    def meta(self) -> Mapping[str, Any]:
        """As `Trace.meta`."""

    def __iter__(self) -> Iterator[TokenScore]: ...
    @property
    def next(self) -> TokenDistribution | None:
        """The distribution of the token after the last one, once the tokens were read."""


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
    looked_up: tuple[tuple[float, int], ...] = ()
    """(logprob, rank) of each id that was asked for."""


SUMMED = ("text",)
"""The roles that sums cover unless meta["roles"] names others."""


class Totals:
    """Sums over the scored tokens of some roles, in one pass and with a fixed amount of memory.

    roles: the roles to sum; tokens: all tokens; scored: those that count; bytes: of text that the scored
    tokens cover, bytes shared by several tokens counting once. Add tokens in the order of the text.
    """

    def __init__(self, roles: Sequence[str] = SUMMED) -> None:
        self.roles = tuple(roles)
        self.tokens = self.scored = self.bytes = 0
        self._end = 0
        self._parts: list[float] = []

    def add(self, token: TokenScore) -> None:
        """Count a token."""
        self.tokens += 1
        if token.logprob is None or token.role not in self.roles:
            return
        start, end = token.span
        self.scored += 1
        self.bytes += max(0, end - max(start, self._end))
        self._end = max(self._end, end)
        self._add_exactly(-token.logprob)

    def _add_exactly(self, value: float) -> None:
        """Add to a sum of non-overlapping parts, which loses no digit (Shewchuk 1997), as math.fsum does."""
        if not math.isfinite(value):
            self._parts = [math.fsum([*self._parts, value])]
            return
        kept = 0
        for part in self._parts:
            if abs(value) < abs(part):
                value, part = part, value
            high = value + part
            low = part - (high - value)
            if low:
                self._parts[kept] = low
                kept += 1
            value = high
        self._parts[kept:] = [value]

    @property
    def nll(self) -> float:
        """Summed negative log likelihood in nats; bit for bit what math.fsum gives."""
        return math.fsum(self._parts)

    @property
    def ppl(self) -> float:
        """Perplexity: exp of the mean negative log likelihood; NaN without scored tokens."""
        if not self.scored:
            return math.nan
        try:
            return math.exp(self.nll / self.scored)
        except OverflowError:
            return math.inf

    @property
    def bits_per_byte(self) -> float:
        """Negative log likelihood in bits per UTF-8 byte of the scored text; NaN without scored text."""
        return self.nll / math.log(2) / self.bytes if self.bytes else math.nan


@dataclass(frozen=True)
class Trace(Sequence[TokenScore]):
    """The scores of a text's tokens, and the distribution of the token after the last.

    meta: model, dtype, vocab_size, top_k and more; meta["text"] is the text that spans refer to;
    meta["tokens"] their number, None in a stream whose text is not encoded to its end.
    meta["window"] and meta["stride"] are None if the text was scored as one sequence; meta["roles"], if set,
    names the roles that sums cover; meta["sampling"] is the `Sampling` whose stages the tokens have, or None.
    """

    tokens: tuple[TokenScore, ...]
    next: TokenDistribution
    meta: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def merge(cls, traces: "Iterable[Trace]") -> "Trace":
        """Join the traces of several texts, in order, as the trace of one text, for sums over all of them.

        Indexes and spans are those of the concatenated text; scores stay as they are, so the first token of
        each text has its own context or none. Raises RequestError without traces, or if they come from
        different models or settings.
        """
        parts = list(traces)
        if not parts:
            raise RequestError("traces: must have at least one trace (got none)")
        joined, texts, size = list[TokenScore](), list[str](), 0
        first = parts[0].meta
        for trace in parts:
            for name in ("model", "revision", "dtype", "kv_dtype", "isa", "roles"):
                if trace.meta.get(name) != first.get(name):
                    got = f"{first.get(name)!r:.60} and {trace.meta.get(name)!r:.60}"
                    raise RequestError(f"traces: {name}: must be the same in all traces (got {got})")
            base = len(joined)
            for token in trace.tokens:
                row = token.row and token.row._replace(position=token.row.position + base)
                span = (token.span[0] + size, token.span[1] + size)
                joined.append(dataclasses.replace(token, index=token.index + base, span=span, row=row))
            texts.append(trace.meta.get("text") or "")
            size += len(texts[-1].encode())
        following = parts[-1].next._replace(position=len(joined) - 1)
        beyond = sum(trace.beyond_trained_length for trace in parts)
        sizes = {"tokens": len(joined), "beyond_trained_length": beyond}
        return cls(tuple(joined), following, {**first, **sizes, "text": "".join(texts)})

    def totals(self, roles: Sequence[str] | None = None) -> Totals:
        """Sums over the tokens of these roles; None takes meta["roles"], by default ("text",)."""
        totals = Totals(roles if roles is not None else self.meta.get("roles") or SUMMED)
        for token in self.tokens:
            totals.add(token)
        return totals

    def nll(self, roles: Sequence[str] | None = None) -> float:
        """Summed negative log likelihood of the scored tokens of these roles (see `totals`), in nats."""
        return self.totals(roles).nll

    def ppl(self, roles: Sequence[str] | None = None) -> float:
        """Perplexity: exp of the mean negative log likelihood; NaN without scored tokens."""
        return self.totals(roles).ppl

    def bits_per_byte(self, roles: Sequence[str] | None = None) -> float:
        """Negative log likelihood in bits per UTF-8 byte of the scored text; NaN without scored tokens.

        Comparable between tokenizers. Bytes shared by several tokens count once.
        """
        return self.totals(roles).bits_per_byte

    @property
    def beyond_trained_length(self) -> int:
        """Number of tokens beyond the trained context length; 0 if that length is unknown."""
        trained: int = self.meta.get("trained_length", len(self.tokens))
        if self.meta.get("window") is not None:
            trained += 1  # the last token that a window scores is not part of it
        return sum(token.context >= trained for token in self.tokens)

    def __repr__(self) -> str:
        """The sums in place of all tokens."""
        sums = self.totals()
        facts = f"tokens={sums.tokens}, scored={sums.scored}, nll={sums.nll:.6g}, ppl={sums.ppl:.6g}"
        return f"Trace({facts}, model={self.meta.get('model')!r})"

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


@dataclass(frozen=True)
class Pair:
    """A continuation to score under its context: both text, or both token ids.

    Text is encoded as one text, and spaces at the end of the context are scored with the continuation, which
    is where tokenizers put them.
    """

    context: str | Sequence[int]
    continuation: str | Sequence[int]


@dataclass(frozen=True)
class Score:
    """The score of one item of `Engine.score_many`. With an `error`, logprob is NaN and the trace is empty.

    Of a Pair or an answer only the continuation is scored; of a text, its tokens with the role "text".
    """

    logprob: float
    """Summed logprob of the scored tokens, in nats."""
    tokens: int
    """Number of scored tokens."""
    bytes: int
    """Bytes of text that they cover; 0 without a tokenizer."""
    is_greedy: bool
    """Whether each of them is the most probable token (rank 1)."""
    trace: Trace
    """The tokens from the first scored one on, with the index and span that they have in the whole text."""
    joined: bool = False
    """Whether the first scored token also covers bytes of the context."""
    error: RopechatError | None = None
    cached_tokens: int = field(default=0, compare=False)
    """Tokens of the context whose keys and values came from an earlier sequence."""

    @property
    def bits_per_byte(self) -> float:
        """Negative logprob in bits per byte; NaN without bytes."""
        return -self.logprob / math.log(2) / self.bytes if self.bytes else math.nan
