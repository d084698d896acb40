"""Conversion of the compiled engine's events to the records of ropechat.trace."""

import math
from typing import TYPE_CHECKING

from ropechat.errors import InternalError
from ropechat.tokenizer import EncodedToken, Tokenizer
from ropechat.trace import Candidate, FinishReason, Stage, Step, TokenDistribution, TokenScore

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ropechat.engine import _core
    from ropechat.engine.reasoning import ReplyText

_ROWS = 64


def to_distribution(row: "_core.Row", position: int) -> TokenDistribution:
    """Convert a row: the distribution after `position`."""
    top = tuple(zip(row.top_ids, row.top_logprobs, strict=True))
    mass = row.top_mass + 0.0  # an empty sum is -0.0
    return TokenDistribution(position, top, row.logsumexp, row.entropy, mass, row.varentropy)


def token_bytes(tokenizer: Tokenizer, id: int) -> bytes:
    """The token's bytes; b"" without a tokenizer."""
    return tokenizer.token_bytes(id) if tokenizer.present else b""


def to_step(event: "_core.Event", reply: "ReplyText", tokenizer: Tokenizer) -> Step:
    """Convert a token event; its text is what `reply` releases with this token."""
    if event.id is None or event.logprob is None or event.rank is None:
        raise InternalError(f"engine: the token at position {event.position} has no id, logprob or rank")
    reason: FinishReason | None = "stop" if event.finish_reason == "grammar" else event.finish_reason
    text = reasoning = ""
    if event.finish_reason != "stop":  # stop ids have no text
        text, reasoning = reply.push(event.id, event.channel)
    if reply.stopped:
        reason = "stop"
    elif reason is not None:
        rest = reply.finish(event.channel)
        text, reasoning = text + rest.text, reasoning + rest.reasoning
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
        reasoning=reasoning,
        channel=event.channel,
        drafted=event.drafted,
    )


def _stages(event: "_core.Event") -> tuple[Stage, ...]:
    return tuple(
        Stage(stage.name, stage.kept, stage.mass, stage.entropy, stage.value) for stage in event.stages
    )


def _candidates(event: "_core.Event") -> tuple[Candidate, ...]:
    return tuple(Candidate(*one[:5], tuple(one[5])) for one in event.candidates)


def to_token_score(
    event: "_core.Event", token: EncodedToken, tokenizer: Tokenizer, begin: int = 0
) -> TokenScore:
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
