"""The sampler: each stage against transformers' logits processors, each draw against its distribution.

A stage is compared on what ropechat's stage before it left, so that one known difference does not hide the
next. The survivors' probabilities, their number, mass and entropy, ranks and the interval of the draw are
computed in f64.
"""

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from matrix_model import gain, write_folder
from report import Outcome, Report
from runs import Run

from ropechat.engine._core import CancelToken, Engine, Event, Stage
from ropechat.sampling import Sampling

SUBJECT = "samplers"
COLUMNS = 64
"""Different logit rows of a model; the gain is a power of two then."""
DRAWS = 40
"""Draws with one model."""
LARGEST_F32 = float(np.finfo(np.float32).max)
OFF: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
STAGES = {
    "SequenceBiasLogitsProcessor": "logit_bias",
    "RepetitionPenaltyLogitsProcessor": "repetition_penalty",
    "TemperatureLogitsWarper": "temperature",
    "TopKLogitsWarper": "top_k",
    "TopPLogitsWarper": "top_p",
    "MinPLogitsWarper": "min_p",
}
Rng = np.random.Generator


@dataclass(frozen=True)
class Draw:
    """A token that was drawn or explained. history: the ids before it. row: raw logits.  # [vocab_size]"""

    event: Event
    history: list[int]
    row: np.ndarray
    settings: dict[str, Any]


def run(run: Run, report: Report) -> None:
    transformers.logging.set_verbosity_error()
    left, index = run.count, 0
    while left > 0:
        rng = run.generator(SUBJECT, index)
        for draw in _draws(rng, min(left, DRAWS)):
            _check(draw, report, seed=run.seed, index=index)
            left -= 1
        index += 1
    for kind in (*STAGES.values(), "draw"):
        report.done(SUBJECT, kind)


# ---- Random logits and settings


def _draws(rng: Rng, count: int) -> Iterator[Draw]:
    """Draws with one model of random logits, of several settings."""
    size = int(
        rng.choice([2, 3, 5, 17, 64, 131, 257, 1000, 5003, 32000], p=[0.07, 0.08] + [0.12] * 6 + [0.1, 0.03])
    )
    rows = np.stack([_row(rng, size) for _ in range(COLUMNS)])  # [COLUMNS, size]
    matrix = np.ascontiguousarray((rows / float(gain(COLUMNS))).astype(np.float32).T)
    with tempfile.TemporaryDirectory() as folder, np.errstate(over="ignore"):
        parts = {".weight": ("F32", list(matrix.shape), matrix.tobytes())}
        path = write_folder(Path(folder), size, COLUMNS, parts, None)
        engine = Engine.load(str(path), dtype="f32", threads=1, context=256, speculative="off")
    logits = engine.logits(list(range(min(COLUMNS, size))), CancelToken())
    while count > 0:
        settings = _settings(rng, size)
        prompt = rng.integers(0, size, int(rng.integers(2, 30))).tolist()
        if rng.random() < 0.7:
            wanted = min(count, int(rng.integers(1, 8)))
            events = _generated(engine, prompt, wanted, settings, size, rng)
        else:
            events = _explained(engine, prompt, settings, size)[:count]
        for event, history in events:
            yield Draw(event, history, logits[history[-1] % COLUMNS], settings)
            count -= 1


def _row(rng: Rng, size: int) -> np.ndarray:
    """Logits as models have them, and as they must not confuse it: ties, -inf, all equal, very sure."""
    row = rng.standard_normal(size) * 10 ** rng.uniform(-2, 1.3)
    match int(rng.integers(7)):
        case 0:
            row = np.round(row)  # many ties
        case 1:
            row = (row.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)  # as bf16
        case 2:
            row[:] = row[0]
        case 3:
            row[int(rng.integers(size))] += 10 ** rng.uniform(0, 3)
        case 4:
            row *= 10 ** rng.uniform(0, 3)
    if rng.random() < 0.3:
        masked = rng.random(size) < rng.random()
        masked[int(rng.integers(size))] = False
        row = np.where(
            masked, -LARGEST_F32 * float(gain(COLUMNS)), row.astype(np.float64)
        )  # -inf, after the gain
    return row


def _settings(rng: Rng, size: int) -> dict[str, Any]:
    """Each setting off, at the ends of its range, or anywhere in it."""

    def some(name: str, *values: float) -> None:
        if rng.random() < 0.5:
            settings[name] = values[int(rng.integers(len(values)))]

    settings = dict(OFF)
    some("temperature", 0.0, 0.01, float(rng.uniform(0.05, 2)), float(rng.uniform(0.05, 2)), 5.0, 100.0)
    some("top_k", 1, 2, size, size + 3, int(rng.integers(1, size + 1)), int(rng.integers(1, 50)))
    some("top_p", 1e-6, float(rng.uniform(0.01, 1)), float(rng.uniform(0.8, 1)), 0.5, 0.999999)
    some("min_p", 1.0, float(rng.uniform(0, 1)), float(10 ** rng.uniform(-6, 0)), 0.5)
    some("repetition_penalty", float(rng.uniform(1, 2)), float(10 ** rng.uniform(-2, 2)), 0.5, 100.0)
    if rng.random() < 0.4:
        pairs = int(rng.integers(1, 6))
        biases = [*rng.uniform(-5, 5, pairs), -100.0, 100.0]
        ids = rng.integers(0, size, pairs)
        settings["logit_bias"] = [(int(id), float(np.float32(rng.choice(biases)))) for id in ids]
    return {
        name: float(np.float32(value)) if isinstance(value, float) else value
        for name, value in settings.items()
    }


def _generated(
    engine: Engine, prompt: list[int], count: int, settings: dict[str, Any], size: int, rng: Rng
) -> list[tuple[Event, list[int]]]:
    sampling = Sampling(**settings, max_tokens=count)
    sequence = engine.generate(prompt, sampling, seed=int(rng.integers(2**63)), readout_top_k=size)
    found, ids = [], list(prompt)
    while events := engine.step([sequence], CancelToken()):
        for event in events:
            if event.kind == "token":
                found.append((event, list(ids)))
                ids.append(event.id or 0)
    engine.free(sequence)
    return found


def _explained(
    engine: Engine, prompt: list[int], settings: dict[str, Any], size: int
) -> list[tuple[Event, list[int]]]:
    sequence = engine.score(prompt, readout_top_k=size, read_next=False)
    engine.explain(sequence, Sampling(**settings))
    found = []
    while events := engine.step([sequence], CancelToken()):
        found += [(e, prompt[: e.position]) for e in events if e.kind == "score" and e.position]
    engine.free(sequence)
    return found


# ---- Checks


def _check(draw: Draw, report: Report, **case: Any) -> None:
    described = case | {"settings": draw.settings, "history": draw.history, "vocab_size": len(draw.row)}
    by_id = {candidate[0]: candidate for candidate in draw.event.candidates}
    # An id that was drawn or given is a candidate, too, even one of -inf.
    if by_id.keys() != {*np.flatnonzero(draw.row > -np.inf).tolist(), draw.event.id}:
        report.fail(SUBJECT, "draw", Outcome.WRONG, "other candidates than the finite logits", **described)
        return
    scores, kept = draw.row.astype(np.float32), draw.row > -np.inf
    stages, found_stages = _processors(draw), draw.event.stages
    names = [name for name, _ in stages]
    if [stage.name for stage in found_stages] != names:
        found = [stage.name for stage in found_stages]
        report.fail(SUBJECT, "draw", Outcome.WRONG, f"stages {found}, {names} expected", **described)
        return
    for at, (name, processor) in enumerate(stages):
        after = _processed(processor, draw, np.where(kept, scores, -np.inf))
        ours = kept.copy()
        ours[[id for id, candidate in by_id.items() if candidate[2] in names[: at + 1]]] = False
        outcome, reason = _compare_sets(name, draw.settings, np.where(kept, scores, -np.inf), after, ours)
        scores = np.where(np.isfinite(after), after, scores) if name in CHANGES else scores
        # What transformers cannot represent stays the largest number here.
        scores = np.where(draw.row > -np.inf, np.clip(scores, -LARGEST_F32, LARGEST_F32), -np.inf)
        kept = ours
        if outcome != Outcome.WRONG and (
            said := _numbers(draw.row, found_stages[at], at, scores, kept, by_id)
        ):
            outcome, reason = Outcome.WRONG, said
        if outcome == Outcome.WRONG:
            report.fail(SUBJECT, name, outcome, reason, **described)
            return
        report.add(SUBJECT, name, outcome, reason)
    said = _drawn(draw, scores, kept, by_id)
    if said:
        report.fail(SUBJECT, "draw", Outcome.WRONG, said, **described)
    else:
        report.add(SUBJECT, "draw", Outcome.EQUAL)


CHANGES = ("logit_bias", "repetition_penalty", "temperature")
"""Stages that change logits; the others remove candidates."""


def _processors(draw: Draw) -> list[tuple[str, Any]]:
    """transformers' own list for these settings, in its own order; None for the stage that is greedy."""
    settings = draw.settings
    config: dict[str, Any] = {"do_sample": True, "repetition_penalty": settings["repetition_penalty"]}
    if settings["temperature"] not in (0, 1):
        config["temperature"] = settings["temperature"]
    if settings["temperature"] != 0:
        config["top_k"] = settings["top_k"]
        config["top_p"] = settings["top_p"]
        config["min_p"] = settings["min_p"] or None
    else:
        config |= {"top_k": 0, "top_p": 1.0}
    if settings.get("logit_bias"):
        sums: dict[tuple[int, ...], float] = {}
        for id, bias in settings["logit_bias"]:
            sums[id,] = float(np.float32(sums.get((id,), 0.0)) + np.float32(bias))
        config["sequence_bias"] = sums
    generation = transformers.GenerationConfig(**config)
    processors = MODEL._get_logits_processor(
        generation_config=generation, input_ids_seq_length=1, encoder_input_ids=None, device="cpu"
    )
    found = [(STAGES[type(processor).__name__], processor) for processor in processors]
    return [*found, ("temperature", None)] if settings["temperature"] == 0 else found


def _tiny_model() -> Any:
    config = transformers.LlamaConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=8
    )
    return transformers.LlamaForCausalLM(config)


MODEL = _tiny_model()


def _processed(processor: Any, draw: Draw, scores: np.ndarray) -> np.ndarray:
    if processor is None:  # greedy: the first of the largest
        best = np.full_like(scores, -np.inf)
        best[scores.argmax()] = scores.max()
        return best
    ids = torch.tensor([draw.history])
    with torch.no_grad(), np.errstate(all="ignore"):
        return processor(ids, torch.from_numpy(scores)[None].clone())[0].numpy()


def _compare_sets(
    name: str, settings: dict[str, Any], before: np.ndarray, after: np.ndarray, ours: np.ndarray
) -> tuple[Outcome, str]:
    """Whether the same ids survive; else why not."""
    if np.isnan(after).any() or np.isposinf(after).any():
        return Outcome.EXPLAINED, "beyond f32 in transformers"
    theirs = after > -np.inf
    apart = np.flatnonzero(theirs != ours)
    if not len(apart):
        return Outcome.EQUAL, ""
    if name in CHANGES and settings["temperature"] != 0 and np.isinf(after[apart]).all():
        return Outcome.EXPLAINED, "beyond f32 in transformers"
    values = before[apart].astype(np.float64)
    if name == "top_k" and (ours <= theirs).all() and int(ours.sum()) == settings["top_k"]:
        worst = before[ours].min()
        if (values == worst).all():
            return Outcome.EXPLAINED, "ties of the k-th: transformers keeps all, ropechat exactly k"
    order = np.lexsort((np.arange(len(before)), -before))
    weights = np.exp(before.astype(np.float64) - before.max())
    if name == "top_p":
        if ours.sum() == theirs.sum() and len(set(values.tolist())) == 1:
            return Outcome.EXPLAINED, "ties at the end: which of equal ids are kept"
        mass_before = np.concatenate(([0.0], np.cumsum(weights[order])[:-1])) / weights.sum()
        at = {int(id): float(mass) for id, mass in zip(order, mass_before, strict=True)}
        # transformers adds f32 numbers from the other end: 1 - top_p is compared with a sum of small ones.
        limit = 2e-6 + 1e-7 * math.sqrt(len(before))
        if all(abs(at[int(id)] - settings["top_p"]) < limit for id in apart):
            return Outcome.EXPLAINED, "a sum next to top_p, rounded to f32 in transformers"
    if name == "min_p":
        ratio = weights[apart]
        if (np.abs(ratio - settings["min_p"]) <= 3e-6 * settings["min_p"]).all():
            return Outcome.EXPLAINED, "a probability next to min_p, rounded to f32 in transformers"
    return (
        Outcome.WRONG,
        f"{int(ours.sum())} ids are kept, {int(theirs.sum())} expected: {apart[:5].tolist()} differ",
    )


def _numbers(
    row: np.ndarray, stage: Stage, at: int, scores: np.ndarray, kept: np.ndarray, by_id: dict[int, Any]
) -> str:
    """What is wrong with the numbers of a stage; "" for nothing."""
    if stage.kept != int(kept.sum()):
        return f"kept is {stage.kept}, {int(kept.sum())} expected"
    raw = _softmax(row, row > -np.inf)
    if abs(stage.mass - raw[kept].sum()) > 1e-9:
        return f"mass is {stage.mass}, {raw[kept].sum()} expected"
    probabilities = _softmax(scores, kept)
    positive = probabilities[probabilities > 0]
    entropy = float(-(positive * np.log(positive)).sum())
    # Logits were rounded to f32 by transformers after the division by the temperature.
    tolerance = 1e-9 + 4e-7 * float(np.abs(scores[kept]).max()) if kept.any() else 0
    if abs(stage.entropy - entropy) > tolerance * max(1.0, entropy):
        return f"entropy is {stage.entropy}, {entropy} expected"
    found = np.zeros(len(scores))
    found[list(by_id)] = [candidate[5][at] for candidate in by_id.values()]
    apart = np.abs(found - probabilities).max()
    return f"a probability is {apart:.3g} off" if apart > tolerance else ""


def _softmax(row: np.ndarray, kept: np.ndarray) -> np.ndarray:
    x = np.where(kept, row.astype(np.float64), -np.inf)
    weights = np.exp(x - x.max())
    return weights / weights.sum()


def _drawn(draw: Draw, scores: np.ndarray, kept: np.ndarray, by_id: dict[int, Any]) -> str:
    """What is wrong with the draw: its rank, its interval, the number that drew it."""
    event, settings = draw.event, draw.settings
    adjusted = draw.row.copy()
    for name, processor in _processors(draw):
        if name in ("logit_bias", "repetition_penalty"):
            adjusted = np.clip(_processed(processor, draw, adjusted), -LARGEST_F32, LARGEST_F32)
            adjusted[draw.row == -np.inf] = -np.inf
    order = np.lexsort((np.arange(len(adjusted)), -adjusted))
    place = np.empty(len(order), int)
    place[order] = np.arange(len(order))
    place[adjusted == -np.inf] = (adjusted > -np.inf).sum()
    wrong = [id for id, candidate in by_id.items() if candidate[1] != place[id] + 1]
    if wrong:
        return f"the rank of {wrong[0]} is {by_id[wrong[0]][1]}, {place[wrong[0]] + 1} expected"
    history = set(draw.history)
    penalizes = settings["repetition_penalty"] != 1
    if any(candidate[3] != (penalizes and id in history) for id, candidate in by_id.items()):
        return "an id is penalized that is not in the history, or not penalized that is"
    id = event.id or 0
    probabilities = _softmax(scores, kept)
    if event.u is not None and not kept[id]:
        return f"{id} was drawn, and no stage keeps it"
    if event.interval is None:
        return "" if probabilities[id] == 0 else "no interval"
    ends = np.cumsum(probabilities[order])
    start, end = ends[place[id]] - probabilities[id], ends[place[id]]
    tolerance = 1e-9 + 4e-7 * float(np.abs(scores[kept]).max())
    last = probabilities[order][place[id] + 1 :].sum() == 0
    if abs(event.interval[0] - start) > tolerance or (not last and abs(event.interval[1] - end) > tolerance):
        return f"the interval is {event.interval}, {(start, end)} expected"
    if event.u is not None and not event.interval[0] <= event.u < event.interval[1]:
        return f"{event.u} is outside of the interval {event.interval}"
    if event.u is None and event.kind == "token" and id != int(adjusted.argmax()):
        return f"greedy: {id}, {int(adjusted.argmax())} expected"
    return ""
