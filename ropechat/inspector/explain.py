"""Why a token was sampled: the candidates of its step, and the effect of each stage of the sampler on them.

The stages are the engine's: bias, penalty, temperature, top_k, top_p, min_p, each applied to the
renormalized survivors of the previous one, with candidates in order of penalized logit and ties going to the
lower id. A step records only its most probable candidates and how many survived each stage; `exact` tells
whether that determines the result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ropechat.sampling import MAX_BIAS

if TYPE_CHECKING:
    from collections.abc import Collection

    from ropechat.sampling import Sampling
    from ropechat.trace import Step

GREEDY, BANNED = "greedy", "banned"
EXACT_TOLERANCE = 0.005  # relative error up to which a probability counts as exact


@dataclass(frozen=True)
class Candidate:
    """A candidate for the next token."""

    id: int
    logprob: float  # raw
    rank: int  # raw, from 1
    sampled: float | None  # probability after all stages; None: unknown
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
    kept: int | None  # number of survivors of all stages; None: unknown
    exact: bool  # False: `sampled` is an estimate
    rest: float  # raw probability of all unlisted tokens
    why: str = ""  # why it is an estimate

    @property
    def chosen(self) -> Candidate:
        """The sampled token."""
        return next(candidate for candidate in self.candidates if candidate.chosen)


def explain(step: Step, sampling: Sampling, history: Collection[int] | None = None) -> Explanation:
    """Explain one step. history: the ids before it (prompt and answer); None if unknown."""
    listed, logits, why = apply_penalties(step, sampling, history)
    rest = max(0.0, 1.0 - sum(candidate.raw for candidate in listed))
    if sampling.temperature == 0.0:
        return Explanation(tuple(_greedy(candidate) for candidate in _listed(step)), 1, True, rest)
    kept, cuts = _stages(step, sampling, len(listed))
    found: list[Candidate] = []
    for order, candidate in enumerate(listed):
        place = order if candidate.rank <= len(step.top) or why else candidate.rank - 1
        cut = next((name for name, count in cuts if place >= count), None)
        cut = BANNED if candidate.bias <= -MAX_BIAS else cut
        found.append(replace(candidate, cut=None if candidate.chosen else cut))
    survivors = [candidate for candidate in found if candidate.cut is None]
    best = max(logits.values())
    weights = {c.id: math.exp((logits[c.id] - best) / sampling.temperature) for c in survivors}
    low, high = _others(step, sampling, survivors, kept, min(logits.values()) - best)
    own = sum(weights.values())
    exact = high - low <= EXACT_TOLERANCE * (own + low)
    if not exact:
        unlisted = "an unknown number of" if kept is None else f"{kept - len(survivors):,}"
        why = why or f"{unlisted} survivors not listed"
    total = own + (low + high) / 2
    sampled = tuple(replace(c, sampled=weights[c.id] / total if c.id in weights else 0.0) for c in found)
    return Explanation(sampled, kept, exact and not why, rest, why)


def apply_penalties(
    step: Step, sampling: Sampling, history: Collection[int] | None
) -> tuple[list[Candidate], dict[int, float], str]:
    """Candidates in order of their logits after bias and penalty, these logits, and what is uncertain."""
    listed = _listed(step)
    logits = {candidate.id: candidate.logprob for candidate in listed}
    if sampling.repetition_penalty != 1.0 and (history is None or step.row is None):
        return listed, logits, "the penalized tokens are unknown"
    if sampling.repetition_penalty == 1.0 and not sampling.logit_bias:
        return listed, logits, ""
    return _penalize(listed, logits, step, sampling, history or ())


def _listed(step: Step) -> list[Candidate]:
    found = [
        Candidate(id, logprob, rank, None, chosen=id == step.id)
        for rank, (id, logprob) in enumerate(step.top, 1)
    ]
    if not any(candidate.chosen for candidate in found):
        found.append(Candidate(step.id, step.logprob, max(step.rank, len(found) + 1), None, chosen=True))
    return found


def _greedy(candidate: Candidate) -> Candidate:
    cut = None if candidate.chosen else GREEDY
    return replace(candidate, cut=cut, sampled=float(candidate.chosen))


def _penalize(
    listed: list[Candidate],
    logits: dict[int, float],
    step: Step,
    sampling: Sampling,
    history: Collection[int],
) -> tuple[list[Candidate], dict[int, float], str]:
    """Apply bias and penalty: candidates in their new order, their logits, and what is uncertain."""
    seen, penalty = set(history), sampling.repetition_penalty
    shift = step.row.logsumexp if step.row is not None else 0.0
    raw = {id: logprob + shift for id, logprob in logits.items()}
    biases: dict[int, float] = {}
    for id, bias in sampling.logit_bias:
        biases[id] = biases.get(id, 0.0) + bias
    changed = {id: value + biases.get(id, 0.0) for id, value in raw.items()}
    if penalty != 1.0:
        for id in seen & changed.keys():
            changed[id] *= penalty if changed[id] < 0.0 else 1.0 / penalty
    order = sorted(listed, key=lambda candidate: (-changed[candidate.id], candidate.id))
    marked = [
        replace(one, penalized=penalty != 1.0 and one.id in seen, bias=biases.get(one.id, 0.0))
        for one in order
    ]
    unlisted = min(raw.values())  # no unlisted token had a larger logit
    favoured = any(bias > 0.0 and id not in raw for id, bias in biases.items())
    sunk = [id for id in changed if changed[id] < unlisted and biases.get(id, 0.0) > -MAX_BIAS]
    if penalty < 1.0 or favoured or sunk:
        return marked, changed, "unlisted tokens may rank in between"
    return marked, changed, ""


def _stages(step: Step, sampling: Sampling, listed: int) -> tuple[int | None, list[tuple[str, int]]]:
    """Number of survivors in total, and after each filter."""
    counts = [(stage.name, stage.kept) for stage in step.stages]
    if counts:
        return counts[-1][1], counts
    off = sampling.top_k == 0 and sampling.top_p == 1.0 and sampling.min_p == 0.0
    off = off and not sampling.logit_bias
    if off and sampling.temperature == 1.0 and sampling.repetition_penalty == 1.0:
        return None, []  # no stage is active: all tokens survive
    return (sampling.top_k, [("top_k", sampling.top_k)]) if 0 < sampling.top_k <= listed else (None, [])


def _others(
    step: Step, sampling: Sampling, survivors: list[Candidate], kept: int | None, smallest: float
) -> tuple[float, float]:
    """Bounds of the summed weights of unlisted survivors, relative to the weight of the best candidate.

    `n` of them share the raw probability m, each at most that of the least probable listed one, p. With
    a = 1/T, the sum of their q^a (q raw) is between n (m/n)^a (all equal) and (m/p) p^a (few, as large as
    possible) for a > 1, and the reverse for a < 1. At a = 1 it is m.
    """
    count = math.inf if kept is None else kept - len(survivors)
    if count <= 0 or not survivors:
        return 0.0, 0.0
    raw = sum(candidate.raw for candidate in survivors)
    mass = (step.stages[-1].mass if step.stages else 1.0) - raw
    if mass <= 0.0:
        return 0.0, 0.0
    power = 1.0 / sampling.temperature
    best = math.log(max(candidate.raw for candidate in survivors) or 1.0)
    large = min(math.exp(smallest + best), mass)
    few = mass * large ** (power - 1.0)
    if math.isinf(count):
        even = few if power == 1.0 else 0.0 if power > 1.0 else 2.0 * few
    else:
        even = count * (mass / count) ** power
    low, high = sorted((few, even))
    scale = math.exp(-best * power)
    return low * scale, high * scale
