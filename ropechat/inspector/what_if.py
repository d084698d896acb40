"""What other sampler settings would do with a recorded distribution.

Only the most probable candidates are recorded. The total weight of all others is between two bounds; if the
result depends on it, the result is marked as an estimate.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from ropechat.inspector.explain import EXACT_TOLERANCE, apply_penalties, explain
from ropechat.trace import Stage

if TYPE_CHECKING:
    from collections.abc import Collection

    from ropechat.inspector.explain import Explanation
    from ropechat.sampling import Sampling
    from ropechat.trace import Step


def resample(
    step: Step, sampling: Sampling, vocab_size: int, history: Collection[int] | None = None
) -> Explanation:
    """Explain a step as if sampled with these settings; the best candidate counts as chosen."""
    best = step._replace(id=step.top[0][0], logprob=step.top[0][1], rank=1, stages=())
    order, logits, _ = apply_penalties(best, sampling, history)
    best = best._replace(id=order[0].id, logprob=order[0].logprob, rank=order[0].rank)
    if sampling.temperature == 0.0:
        return explain(best, sampling, history)
    top = max(logits.values())
    weights = [math.exp((logits[one.id] - top) / sampling.temperature) for one in order]
    raws = [one.raw for one in order]
    stages, sure = _stages(weights, raws, sampling, vocab_size)
    found = explain(best._replace(stages=stages), sampling, history)
    if sure:
        return found
    return replace(found, exact=False, why=found.why or "unlisted tokens weigh too much to tell")


def _stages(
    weights: list[float], raws: list[float], sampling: Sampling, vocab_size: int
) -> tuple[tuple[Stage, ...], bool]:
    """The active filters with their number of survivors, and whether these are certain."""
    stages: list[Stage] = []
    count, sure = len(weights), True
    others = max(0, vocab_size - count)
    if 0 < sampling.top_k <= count:
        count, others = sampling.top_k, 0
    elif sampling.top_k:
        others = min(others, sampling.top_k - count)
    if sampling.top_k:
        stages.append(_stage("top_k", count, others, raws))
    if sampling.top_p < 1.0:
        low, high = _bounds(weights, raws, others, sampling.temperature)
        own = sum(weights[:count])
        reached = [_reaching(weights[:count], sampling.top_p * (own + rest)) for rest in (low, high)]
        if reached[0] is None:
            return tuple(stages), others == 0
        sure = reached[0] == reached[1] or high - low <= EXACT_TOLERANCE * (own + low)
        count, others = reached[0], 0
        stages.append(_stage("top_p", count, others, raws))
    if sampling.min_p > 0.0:
        kept = sum(weight >= sampling.min_p for weight in weights[:count])
        if kept == count and others:
            return tuple(stages), False
        stages.append(_stage("min_p", kept, 0, raws))
    return tuple(stages), sure


def _stage(name: str, count: int, others: int, raws: list[float]) -> Stage:
    listed = sum(raws[:count])
    return Stage(name, count + others, listed if others == 0 else 1.0, math.nan)


def _bounds(weights: list[float], raws: list[float], others: int, temperature: float) -> tuple[float, float]:
    """Bounds of the total weight of `others` tokens, none heavier than the last listed one.

    Their total raw probability is known. Their total weight is extreme if few of them have as much
    probability as possible, or if all have the same (as in `explain`).
    """
    mass = max(0.0, 1.0 - sum(raws))
    if others == 0 or mass == 0.0 or not raws[-1]:
        return 0.0, 0.0
    power = 1.0 / temperature
    scale = weights[-1] / raws[-1] ** power
    few = mass * min(raws[-1], mass) ** (power - 1.0)
    even = others * (mass / others) ** power
    low, high = sorted((few * scale, even * scale))
    return low, min(high, others * weights[-1])


def _reaching(weights: list[float], wanted: float) -> int | None:
    """Number of leading weights whose sum reaches `wanted`; None if all together do not."""
    total = 0.0
    for count, weight in enumerate(weights, 1):
        total += weight
        if total >= wanted * (1 - 1e-12):
            return count
    return None
