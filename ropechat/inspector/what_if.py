"""What other sampler settings would do with a recorded distribution, without a pass through the model.

Only the most probable candidates are recorded. The total weight of all others is between two bounds; if the
result depends on it, the result is marked as an estimate. `Engine.score(..., sampling=)` has exact results.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

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
    from collections.abc import Sequence

    from ropechat.sampling import Sampling
    from ropechat.trace import Step

MASKS = ("forced", "grammar")  # the stages whose cuts no other settings undo
TOLERANCE = 0.005  # relative error up to which a probability counts as exact


class Before(NamedTuple):
    """What came before a token: the ids of the prompt, None if unknown, and the answer."""

    prompt: Sequence[int] | None
    answer: Sequence[Step] = ()


def resample(step: Step, sampling: Sampling, vocab_size: int, before: Before | None = None) -> Explanation:
    """Explain a step as if sampled with these settings; the best candidate counts as chosen.

    Of xtc, which draws by itself, probabilities are the mean of both cases.
    """
    before = before or Before(None)
    masked = _masked(step)
    if masked:
        return _with_masked(resample(_unmasked(step, masked), sampling, vocab_size, before), step, masked)
    first = step.stages[0] if step.stages and step.stages[0].name in MASKS else None
    vocab_size, whole = (vocab_size, 1.0) if first is None else (first.kept, first.mass)
    best = step._replace(id=step.top[0][0], logprob=step.top[0][1], rank=1)
    order, logits, why = _adjusted(best, sampling, before)
    rest = max(0.0, 1.0 - sum(one.raw for one in order))
    if sampling.temperature == 0.0:
        found = [
            replace(one, chosen=not place, sampled=float(not place), cut=GREEDY if place else None)
            for place, one in enumerate(order)
        ]
        return Explanation(tuple(found), 1, not why, rest, why)
    weights = [math.exp((logits[one.id] - logits[order[0].id]) / sampling.temperature) for one in order]
    others = max(0, vocab_size - len(order))
    within, unknown = _within_sigma(step, sampling, [logits[one.id] for one in order])
    why = why or unknown
    alive = min(others, max(0, sampling.top_k - len(order))) if sampling.top_k else others
    alive = 0 if within < len(order) else alive
    bounds = _bounds(weights, [one.raw for one in order], others, alive, sampling.temperature, whole)
    cuts, sure = _filters(weights, sampling, others, bounds, within)
    kept = cuts[-1][1] if cuts else len(order) + others
    low, high = bounds if kept > len(order) else (0.0, 0.0)
    own = sum(weights[:kept])
    total = own + (low + high) / 2
    excluded = _excluded(weights[:kept], total, sampling)
    sure = sure and excluded < len(order)
    if not sure or high - low > TOLERANCE * (own + low):
        why = why or "unlisted tokens weigh too much to tell"
    always = sampling.xtc_probability == 1.0
    found = []
    for place, (one, weight) in enumerate(zip(order, weights, strict=True)):
        cut = next((name for name, count in cuts if place >= count), None)
        share = weight / total
        if excluded:
            chance = sampling.xtc_probability
            rest_of = total - sum(weights[:excluded])
            share = (1 - chance) * share + (chance * weight / rest_of if place >= excluded else 0.0)
            cut = "xtc" if always and place < excluded else cut
        found.append(_sampled(one, cut, share, not place))
    return Explanation(tuple(found), kept - (excluded if always else 0), not why, rest, why)


def _within_sigma(step: Step, sampling: Sampling, logits: list[float]) -> tuple[int, str]:
    """How many of the listed logits, best first, top_n_sigma keeps, and why that is uncertain."""
    if not sampling.top_n_sigma:
        return len(logits), ""
    sigma = next((stage.value for stage in step.stages if stage.name == "top_n_sigma"), None)
    if sigma is None:
        return len(logits), "the spread of all logits was not recorded: top_n_sigma was off"
    within = sum(logit >= logits[0] - sampling.top_n_sigma * sigma for logit in logits)
    return within, "top_n_sigma may keep unlisted tokens" if within == len(logits) else ""


def _excluded(weights: list[float], total: float, sampling: Sampling) -> int:
    """How many of the best candidates xtc excludes."""
    if not sampling.xtc_probability or sampling.xtc_threshold > 0.5:
        return 0
    best = sum(weight > 0.0 and weight >= sampling.xtc_threshold * total for weight in weights)
    return max(0, best - 1)


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
    step: Step, sampling: Sampling, before: Before
) -> tuple[list[Candidate], dict[int, float], str]:
    """Candidates in order of their logits after bias and penalties, these logits, and what is uncertain."""
    listed, biases = listed_candidates(step), summed_biases(sampling)
    answer = Counter(one.id for one in before.answer)
    said = set(answer).union(before.prompt or ()) if sampling.repetition_penalty != 1.0 else set()
    repeats, why = _repetitions(before, sampling)
    if sampling.repetition_penalty != 1.0 and before.prompt is None:
        why = "the tokens of the prompt are unknown"
    if (said or repeats or sampling.presence_penalty or sampling.frequency_penalty) and step.row is None:
        return listed, {one.id: one.logprob for one in listed}, "the logits are unknown"
    shift = step.row.logsumexp if step.row is not None else 0.0
    raw = {one.id: one.logprob + shift for one in listed}
    changed = {id: value + biases.get(id, 0.0) for id, value in raw.items()}
    penalized = set()
    for id in changed:
        now = changed[id]
        if id in said:
            now *= sampling.repetition_penalty if now < 0.0 else 1.0 / sampling.repetition_penalty
        now -= (id in answer) * sampling.presence_penalty + answer[id] * sampling.frequency_penalty
        now -= repeats.get(id, 0.0)
        if now != changed[id]:
            changed[id] = now
            penalized.add(id)
    if changed == raw and not biases:
        return listed, raw, why
    order = sorted(listed, key=lambda one: (-changed[one.id], one.id))
    order = [replace(one, penalized=one.id in penalized, bias=biases.get(one.id, 0.0)) for one in order]
    unlisted = min(raw.values())  # no unlisted token had a larger logit
    favoured = any(bias > 0.0 and id not in raw for id, bias in biases.items())
    favoured |= (
        sampling.repetition_penalty < 1.0 or min(sampling.presence_penalty, sampling.frequency_penalty) < 0
    )
    sunk = any(value < unlisted and biases.get(id, 0.0) > -MAX_BIAS for id, value in changed.items())
    return order, changed, why or ("unlisted tokens may rank in between" if favoured or sunk else "")


def _repetitions(before: Before, sampling: Sampling) -> tuple[dict[int, float], str]:
    """What DRY subtracts from the logit of each id, and what is uncertain.

    The prompt's tokens have no texts here, so it counts as a breaker; where a repetition may begin in it,
    that is uncertain.
    """
    if not sampling.dry_multiplier or not sampling.dry_penalty_last_n:
        return {}, ""
    ids = [one.id for one in before.answer]
    breakers = [text.encode() for text in sampling.dry_sequence_breakers]
    free, text = 0, b""
    for one in reversed(before.answer):
        text = one.bytes + text
        if any(breaker in text for breaker in breakers):
            break
        free += 1
    last = sampling.dry_penalty_last_n
    history = [*(before.prompt or ()), *ids]
    history = history if last < 0 else history[-last:]
    longest: dict[int, int] = {}
    for place in range(1, len(history)):
        length = 0
        while length < min(free, place) and history[place - 1 - length] == history[-1 - length]:
            length += 1
        longest[history[place]] = max(length, longest.get(history[place], 0))
    unsure = before.prompt is None or (free == len(ids) and free in longest.values())
    why = "a repetition may begin in the prompt" if unsure else ""
    allowed = sampling.dry_allowed_length
    found = {id: length for id, length in longest.items() if length >= allowed}
    return {id: _dry_penalty(sampling, length - allowed) for id, length in found.items()}, why


def _dry_penalty(sampling: Sampling, more: int) -> float:
    try:
        return sampling.dry_multiplier * sampling.dry_base**more
    except OverflowError:
        return math.inf


def _filters(
    weights: list[float], sampling: Sampling, others: int, bounds: tuple[float, float], within: int
) -> tuple[list[tuple[str, int]], bool]:
    """(name, number of survivors) of the active filters, and whether these are certain.

    others: number of unlisted tokens. bounds: of the total weight of those that top_k keeps. within: how many
    of the listed ones top_n_sigma keeps.
    """
    cuts: list[tuple[str, int]] = []
    listed, sure = len(weights), True
    kept = listed + others
    if within < listed:
        kept = within
        cuts.append(("top_n_sigma", kept))
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
