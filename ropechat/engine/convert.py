"""Conversion of the compiled engine's events to the records of ropechat.trace."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from ropechat.engine.stop_strings import StopStringFilter
from ropechat.errors import InternalError
from ropechat.tokenizer import EncodedToken, Tokenizer
from ropechat.trace import Candidate, FinishReason, Stage, Step, TokenDistribution, TokenScore

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_ROWS = 64


class RowLike(Protocol):
    """The attributes used of `_core.Row`."""

    @property
    def logsumexp(self) -> float: ...
    @property
    def entropy(self) -> float: ...
    @property
    def top_ids(self) -> list[int]: ...
    @property
    def top_logprobs(self) -> list[float]: ...
    @property
    def top_mass(self) -> float: ...


class StageLike(Protocol):
    """The attributes used of `_core.Stage`."""

    @property
    def name(self) -> str: ...
    @property
    def kept(self) -> int: ...
    @property
    def mass(self) -> float: ...
    @property
    def entropy(self) -> float: ...


class EventLike(Protocol):
    """The attributes used of `_core.Event`."""

    @property
    def sequence(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def position(self) -> int: ...
    @property
    def id(self) -> int | None: ...
    @property
    def logprob(self) -> float | None: ...
    @property
    def rank(self) -> int | None: ...
    @property
    def row(self) -> RowLike | None: ...
    @property
    def stages(self) -> Sequence[StageLike]: ...
    @property
    def candidates(self) -> Sequence[tuple[int, int, str | None, bool, float, Sequence[float]]]: ...
    @property
    def interval(self) -> tuple[float, float] | None: ...
    @property
    def u(self) -> float | None: ...
    @property
    def drafted(self) -> bool: ...
    @property
    def looked_up(self) -> Sequence[tuple[float, int]]: ...
    @property
    def finish_reason(self) -> Literal["stop", "length", "context", "grammar"] | None: ...
    @property
    def done(self) -> int: ...


def to_distribution(row: RowLike, position: int) -> TokenDistribution:
    """Convert a row: the distribution after `position`."""
    top = tuple(zip(row.top_ids, row.top_logprobs, strict=True))
    return TokenDistribution(
        position, top, row.logsumexp, row.entropy, row.top_mass + 0.0
    )  # an empty sum is -0.0


def token_bytes(tokenizer: Tokenizer, id: int) -> bytes:
    """The token's bytes; b"" without a tokenizer."""
    return tokenizer.token_bytes(id) if tokenizer.present else b""


def to_step(event: EventLike, text_filter: StopStringFilter, tokenizer: Tokenizer) -> Step:
    """Convert a token event; its text is what `text_filter` releases with this token."""
    if event.id is None or event.logprob is None or event.rank is None:
        raise InternalError(f"engine: the token at position {event.position} has no id, logprob or rank")
    reason: FinishReason | None = "stop" if event.finish_reason == "grammar" else event.finish_reason
    text = "" if event.finish_reason == "stop" else text_filter.push(event.id)  # stop ids have no text
    if text_filter.stopped:
        reason = "stop"
    elif reason is not None:
        text += text_filter.finish()
    row = None if event.row is None else to_distribution(event.row, event.position - 1)
    return Step(
        id=event.id,
        bytes=token_bytes(tokenizer, event.id),
        text=text,
        logprob=event.logprob,
        rank=event.rank,
        entropy=math.nan if row is None else row.entropy,
        top=() if row is None else row.top,
        finish_reason=reason,
        position=event.position,
        row=row,
        stages=_stages(event),
        u=event.u,
        candidates=_candidates(event),
        interval=event.interval,
        drafted=event.drafted,
    )


def _stages(event: EventLike) -> tuple[Stage, ...]:
    return tuple(Stage(stage.name, stage.kept, stage.mass, stage.entropy) for stage in event.stages)


def _candidates(event: EventLike) -> tuple[Candidate, ...]:
    return tuple(Candidate(*one[:5], tuple(one[5])) for one in event.candidates)


def to_token_score(event: EventLike, token: EncodedToken, tokenizer: Tokenizer, begin: int = 0) -> TokenScore:
    """Convert a score event: the token at `position`, scored under the row of the position before.

    begin: the index in the text of the sequence's position 0.
    """
    index = begin + event.position
    row = None if event.row is None else to_distribution(event.row, index - 1)
    data = token_bytes(tokenizer, token.id)
    return TokenScore(
        index=index,
        id=token.id,
        bytes=data,
        text=data.decode("utf-8", "replace"),
        span=token.span,
        role=token.role,
        logprob=event.logprob,
        rank=event.rank,
        entropy=None if row is None else row.entropy,
        row=row,
        stages=_stages(event),
        candidates=_candidates(event),
        interval=event.interval,
        context=event.position,
        looked_up=tuple(event.looked_up),
    )


def softmax_rows(values: "npt.NDArray[np.float32]") -> "npt.NDArray[np.float32]":
    """Convert rows of logits to probabilities in place, in f64, a few rows at a time."""
    import numpy as np

    for start in range(0, len(values), _ROWS):
        block = values[start : start + _ROWS].astype(np.float64)
        block -= block.max(axis=1, keepdims=True)
        np.exp(block, out=block)
        block /= block.sum(axis=1, keepdims=True)
        values[start : start + _ROWS] = block
    return values
