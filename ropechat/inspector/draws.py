"""A generated text as the tokens of a trace."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ropechat.sampling import Sampling
from ropechat.trace import Step, TokenDistribution, TokenScore, Trace


def draw_trace(steps: Sequence[Step], sampling: Sampling, facts: Mapping[str, Any]) -> Trace:
    """The trace of a generated text. facts: `Engine.trace_facts`.

    The distribution after the last token was not computed: `next` is empty and its entropy NaN.
    """
    tokens = tuple(drawn_tokens(steps))
    text = b"".join(token.bytes for token in tokens if token.span[1] > token.span[0])
    following = TokenDistribution(steps[-1].position if steps else -1, (), math.nan, math.nan, 0.0)
    meta = {**facts, "text": text.decode("utf-8", "replace"), "sampling": sampling}
    return Trace(tokens, following, meta)


def drawn_tokens(steps: Iterable[Step]) -> Iterator[TokenScore]:
    """Yield the steps as scored tokens. `index` is the position in the model's context, prompt included.

    Spans are byte ranges of the steps' joined text. A token that ended the answer has the role "special".
    """
    end = 0
    for step in steps:
        ended = step.finish_reason == "stop" and not step.text
        start, end = end, end + (0 if ended else len(step.bytes))
        yield TokenScore(
            index=step.position,
            id=step.id,
            bytes=step.bytes,
            text=step.bytes.decode("utf-8", "replace"),
            span=(start, end),
            role="special" if ended else "text",
            logprob=step.logprob,
            rank=step.rank,
            entropy=step.entropy,
            row=step.row,
            stages=step.stages,
            candidates=step.candidates,
            interval=step.interval,
            u=step.u,
        )
