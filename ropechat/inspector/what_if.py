"""What other sampler settings would do with a recorded distribution, without a pass through the model.

Only the most probable candidates are recorded. The total weight of all others is between two bounds; if the
result depends on it, the result is marked as an estimate. `Engine.score(..., sampling=)` has exact results.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from ropechat.inspector.explain import (
    BANNED,
    GREEDY,
    Candidate,
    Explanation,
    listed_candidates,
    summed_biases,
)
from ropechat.sampling import MAX_BIAS

if TYPE_CHECKING:
    from collections.abc import Collection

    from ropechat.sampling import Sampling
    from ropechat.trace import Step

MASKS = ("forced", "grammar")  # the stages whose cuts no other settings undo
TOLERANCE = 0.005  # relative error up to which a probability counts as exact


def resample(
    step: Step, sampling: Sampling, vocab_size: int, history: Collection[int] | None = None
) -> Explanation:
    """Explain a step as if sampled with these settings; the best candidate counts as chosen.

    history: the ids before it (prompt and answer), for the repetition penalty; None if unknown.
    """
    masked = _masked(step)
    if masked:
        return _with_masked(resample(_unmasked(step, masked), sampling, vocab_size, history), step, masked)
    first = step.stages[0] if step.stages and step.stages[0].name in MASKS else None
    vocab_size, whole = (vocab_size, 1.0) if first is None else (first.kept, first.mass)
    best = step._replace(id=step.top[0][0], logprob=step.top[0][1], rank=1)
    order, logits, why = _adjusted(best, sampling, history)
    rest = max(0.0, 1.0 - sum(one.raw for one in order))
    if sampling.temperature == 0.0:
        found = [
            replace(one, chosen=not place, sampled=float(not place), cut=GREEDY if place else None)
            for place, one in enumerate(order)
        ]
        return Explanation(tuple(found), 1, not why, rest, why)
    weights = [math.exp((logits[one.id] - logits[order[0].id]) / sampling.temperature) for one in order]
    others = max(0, vocab_size - len(order))
    alive = min(others, max(0, sampling.top_k - len(order))) if sampling.top_k else others
    bounds = _bounds(weights, [one.raw for one in order], others, alive, sampling.temperature, whole)
    cuts, sure = _filters(weights, sampling, others, bounds)
    kept = cuts[-1][1] if cuts else len(order) + others
    low, high = bounds if kept > len(order) else (0.0, 0.0)
    own = sum(weights[:kept])
    total = own + (low + high) / 2
    if not sure or high - low > TOLERANCE * (own + low):
        why = why or "unlisted tokens weigh too much to tell"
    found = [
        _sampled(one, next((name for name, count in cuts if place >= count), None), weight / total, not place)
        for place, (one, weight) in enumerate(zip(order, weights, strict=True))
    ]
    return Explanation(tuple(found), kept, not why, rest, why)


def _masked(step: Step) -> set[int]:
    """The recorded ids that no other settings bring back: a grammar or the end of a thought cut them."""
    return {one.id for one in step.candidates if one.cut in MASKS}


def _unmasked(step: Step, masked: set[int]) -> Step:
    """The step without what is masked."""
    top = tuple(one for one in step.top if one[0] not in masked)
    left = tuple(one for one in step.candidates if one.id not in masked)
    return step._replace(top=top or ((step.id, step.logprob),), candidates=left)


def _with_masked(found: Explanation, step: Step, masked: set[int]) -> Explanation:
    """The explanation of the step without what is masked, and that at its end."""
    ranks = {id: rank for rank, (id, _) in enumerate(step.top, 1)}
    others = [replace(one, rank=ranks.get(one.id, one.rank)) for one in found.candidates]
    cut = [one for one in listed_candidates(step) if one.id in masked]
    others += [replace(one, cut=step.stages[0].name, sampled=0.0, chosen=False) for one in cut]
    rest = max(0.0, found.rest - sum(one.raw for one in cut))
    return replace(found, candidates=tuple(others), rest=rest)


def _sampled(one: Candidate, cut: str | None, share: float, chosen: bool) -> Candidate:
    if one.bias <= -MAX_BIAS and share < 1e-30:
        cut = BANNED
    return replace(one, cut=cut, sampled=0.0 if cut else share, chosen=chosen)


def _adjusted(
    step: Step, sampling: Sampling, history: Collection[int] | None
) -> tuple[list[Candidate], dict[int, float], str]:
    """Candidates in order of their logits after bias and penalty, these logits, and what is uncertain."""
    listed, penalty, biases = listed_candidates(step), sampling.repetition_penalty, summed_biases(sampling)
    if penalty != 1.0 and (history is None or step.row is None):
        return listed, {one.id: one.logprob for one in listed}, "the penalized tokens are unknown"
    shift = step.row.logsumexp if step.row is not None else 0.0
    raw = {one.id: one.logprob + shift for one in listed}
    changed = {id: value + biases.get(id, 0.0) for id, value in raw.items()}
    seen = set(history or ()) & changed.keys() if penalty != 1.0 else set()
    for id in seen:
        changed[id] *= penalty if changed[id] < 0.0 else 1.0 / penalty
    if changed == raw and not biases:
        return listed, raw, ""
    order = sorted(listed, key=lambda one: (-changed[one.id], one.id))
    order = [replace(one, penalized=one.id in seen, bias=biases.get(one.id, 0.0)) for one in order]
    unlisted = min(raw.values())  # no unlisted token had a larger logit
    favoured = any(bias > 0.0 and id not in raw for id, bias in biases.items())
    sunk = any(value < unlisted and biases.get(id, 0.0) > -MAX_BIAS for id, value in changed.items())
    why = "unlisted tokens may rank in between" if penalty < 1.0 or favoured or sunk else ""
    return order, changed, why


def _filters(
    weights: list[float], sampling: Sampling, others: int, bounds: tuple[float, float]
) -> tuple[list[tuple[str, int]], bool]:
    """(name, number of survivors) of the active filters, and whether these are certain.

    others: number of unlisted tokens. bounds: of the total weight of those that top_k keeps.
    """
    cuts: list[tuple[str, int]] = []
    listed, sure = len(weights), True
    kept = listed + others
    if sampling.top_k:
        kept = min(kept, sampling.top_k)
        cuts.append(("top_k", kept))
    if sampling.top_p < 1.0:
        low, high = bounds
        own = sum(weights[:kept])
        reached = [_reaching(weights[:kept], sampling.top_p * (own + more)) for more in bounds]
        if reached[0] is None:
            return cuts, False
        sure = reached[0] == reached[1] or high - low <= TOLERANCE * (own + low)
        kept = reached[0]
        cuts.append(("top_p", kept))
    if sampling.min_p > 0.0:
        count = sum(weight >= sampling.min_p for weight in weights[:kept])
        if count == listed < kept:
            return cuts, False
        kept = count
        cuts.append(("min_p", kept))
    return cuts, sure


def _bounds(
    weights: list[float], raws: list[float], others: int, alive: int, temperature: float, whole: float
) -> tuple[float, float]:
    """Bounds of the total weight of the `alive` heaviest of `others` unlisted tokens.

    whole: raw probability of these and the listed ones. The n others share the raw probability m, each at
    most that of the last listed one, p. With a = 1/T, the sum of their q^a (q raw) is between n (m/n)^a (all
    equal) and (m/p) p^a (few, as large as possible) for a > 1, and the reverse for a < 1. At a = 1 it is m.
    The heaviest have at least their share by number.
    """
    mass = max(0.0, whole - sum(raws))
    if alive == 0 or mass == 0.0 or not raws[-1]:
        return 0.0, 0.0
    power = 1.0 / temperature
    scale = weights[-1] / raws[-1] ** power
    few = mass * min(raws[-1], mass) ** (power - 1.0)
    even = others * (mass / others) ** power
    low, high = sorted((few * scale, even * scale))
    return low * alive / others, min(high, alive * weights[-1])


def _reaching(weights: list[float], wanted: float) -> int | None:
    """Number of leading weights whose sum reaches `wanted`; None if all together do not."""
    sums = enumerate(accumulate(weights), 1)
    return next((count for count, total in sums if total >= wanted * (1 - 1e-12)), None)
