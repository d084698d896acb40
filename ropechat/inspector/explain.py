"""Why a token was sampled: the candidates of its step, and what each stage of the sampler did to them.

All numbers come from the engine, see `ropechat.trace.Step`; none is estimated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ropechat.sampling import MAX_BIAS

if TYPE_CHECKING:
    from ropechat.sampling import Sampling
    from ropechat.trace import Candidate as TraceCandidate
    from ropechat.trace import Step

GREEDY, BANNED = "greedy", "banned"


@dataclass(frozen=True)
class Candidate:
    """A candidate for the next token."""

    id: int
    logprob: float  # raw
    rank: int  # raw, from 1
    sampled: float | None  # probability after all stages; None: not recorded
    cut: str | None = None  # the stage that removed it
    penalized: bool = False
    bias: float = 0.0  # added to its logit
    chosen: bool = False

    @property
    def raw(self) -> float:
        """Raw probability."""
        return math.exp(self.logprob)

    @property
    def bits(self) -> float:
        """Raw surprisal in bits."""
        return max(0.0, -self.logprob / math.log(2.0))


@dataclass(frozen=True)
class Explanation:
    """The candidates of one step, most probable first, including the chosen one."""

    candidates: tuple[Candidate, ...]
    kept: int | None  # number of survivors of all stages; None: all tokens, or not recorded
    exact: bool  # False: `sampled` is an estimate (of `what_if.resample`) or not recorded
    rest: float  # raw probability of all unlisted tokens
    why: str = ""  # why it is not exact

    @property
    def chosen(self) -> Candidate:
        """The sampled token."""
        return next(candidate for candidate in self.candidates if candidate.chosen)


def explain(step: Step, sampling: Sampling) -> Explanation:
    """Explain one step that was sampled with these settings."""
    listed, biases = listed_candidates(step), summed_biases(sampling)
    rest = max(0.0, 1.0 - sum(candidate.raw for candidate in listed))
    recorded = {one.id: one for one in step.candidates}
    kept = step.stages[-1].kept if step.stages else None
    if any(candidate.id not in recorded for candidate in listed):
        return Explanation(tuple(listed), kept, False, rest, "the stages were not recorded")
    found = [
        Candidate(
            one.id,
            one.logprob,
            one.rank,
            recorded[one.id].probability,
            _cut(recorded[one.id], sampling, biases.get(one.id, 0.0)),
            recorded[one.id].penalized,
            biases.get(one.id, 0.0),
            one.chosen,
        )
        for one in listed
    ]
    found.sort(key=lambda one: recorded[one.id].rank)
    return Explanation(tuple(found), kept, True, rest)


def listed_candidates(step: Step) -> list[Candidate]:
    """The recorded candidates in raw order, and the chosen token."""
    found = [
        Candidate(id, logprob, rank, None, chosen=id == step.id)
        for rank, (id, logprob) in enumerate(step.top, 1)
    ]
    if not any(candidate.chosen for candidate in found):
        found.append(Candidate(step.id, step.logprob, max(step.rank, len(found) + 1), None, chosen=True))
    return found


def summed_biases(sampling: Sampling) -> dict[int, float]:
    """The bias of each id; those of an id that is named more than once add up."""
    biases: dict[int, float] = {}
    for id, bias in sampling.logit_bias:
        biases[id] = biases.get(id, 0.0) + bias
    return biases


def _cut(one: TraceCandidate, sampling: Sampling, bias: float) -> str | None:
    """What removed a candidate: a stage, its ban, or another one's being the best."""
    if bias <= -MAX_BIAS and one.probability < 1e-30:
        return BANNED
    return GREEDY if one.cut == "temperature" else one.cut
