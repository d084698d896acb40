"""The stages of the sampler at random settings, beside the definitions in NumPy."""

import dataclasses
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from models import write_llama

from ropechat.engine import _core
from ropechat.engine.engine import Engine
from ropechat.inspector.draws import recorded_draws
from ropechat.inspector.replay import replay
from ropechat.sampling import SETTINGS, Sampling
from ropechat.trace import Candidate, Stage

VOCAB = 60
TOKENS = 12
CLOSE = 1e-9
"""Relative distance from a limit, within which f64 sums of another order may decide otherwise."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = write_llama(tmp_path_factory.mktemp("oracle"), vocab_size=VOCAB)
    return Engine.load(folder, dtype="f32", threads=1)


def settings(draw: random.Random) -> Sampling:
    """Each stage off, or anywhere in its range."""

    def some(low: float, high: float, off: float, chance: float = 0.4) -> float:
        return draw.uniform(low, high) if draw.random() < chance else off

    biases = {draw.randrange(VOCAB): draw.choice([-100.0, draw.uniform(-3, 3)]) for _ in range(3)}
    return Sampling(
        temperature=some(0.05, 3, 1.0),
        top_k=draw.choice([0, 0, 1, draw.randrange(1, 80)]),
        top_p=some(0.05, 1, 1.0),
        min_p=some(0, 0.9, 0.0),
        top_n_sigma=some(0.05, 4, 0.0),
        xtc_probability=draw.choice([0.0, 1.0, draw.random()]),
        xtc_threshold=some(0, 0.6, 0.1),
        repetition_penalty=some(0.5, 2, 1.0),
        presence_penalty=some(-2, 2, 0.0),
        frequency_penalty=some(-2, 2, 0.0),
        dry_multiplier=some(0, 3, 0.0),
        dry_base=draw.uniform(1, 3),
        dry_allowed_length=draw.randrange(1, 5),
        dry_penalty_last_n=draw.choice([-1, -1, 0, 3, 8]),
        logit_bias=tuple(biases.items()) if draw.random() < 0.3 else (),
        seed=draw.randrange(1 << 40),
    )


def penalized(row: np.ndarray, history: list[int], answer: list[int], s: Sampling) -> dict[str, np.ndarray]:
    """The logits after each step that changes single ids. The engine rounds settings and results to f32."""
    f = np.float32
    found, now = {}, row.astype(f)
    if s.logit_bias:
        now = now.copy()
        for id, bias in s.logit_bias:
            now[id] += f(bias)
        found["logit_bias"] = now
    if s.repetition_penalty != 1:
        now, factor = now.copy(), f(s.repetition_penalty)
        for id in set(history):
            now[id] = now[id] * factor if now[id] < 0 else now[id] / factor
        found["repetition_penalty"] = now
    counts = Counter(answer)
    if s.presence_penalty:
        now = now - f(s.presence_penalty) * np.isin(np.arange(len(row)), list(counts)).astype(f)
        found["presence_penalty"] = now
    if s.frequency_penalty:
        times = np.array([counts[id] for id in range(len(row))], f)
        now = now - times * f(s.frequency_penalty)
        found["frequency_penalty"] = now
    if s.dry_multiplier and s.dry_penalty_last_n:
        text = history[-s.dry_penalty_last_n :] if s.dry_penalty_last_n > 0 else history
        less = np.zeros(len(row))
        for id in set(text[1:]):
            lengths = [0]
            for place in (place for place in range(1, len(text)) if text[place] == id):
                length = 0
                while length < place and text[place - 1 - length] == text[-1 - length]:
                    length += 1
                lengths.append(length)
            if max(lengths) >= s.dry_allowed_length:
                more = max(lengths) - s.dry_allowed_length
                less[id] = float(f(s.dry_multiplier)) * float(f(s.dry_base)) ** more
        now = (now.astype(float) - less).astype(f)
        found["dry"] = now
    return found


class Undecided(Exception):
    """A number is so close to a limit that the order of a sum decides."""


def at_least(values: np.ndarray, limit: float) -> int:
    """How many leading values reach a limit."""
    if (np.abs(values - limit) < CLOSE * max(1.0, abs(limit))).any():
        raise Undecided
    return int((values >= limit).sum())


def stages(
    row: np.ndarray, history: list[int], answer: list[int], s: Sampling, xtc_u: float | None
) -> list[tuple[str, dict[int, float]]]:
    """(name, probability of each survivor) after each stage."""
    found: list[tuple[str, dict[int, float]]] = []
    temperature, ids = 1.0, np.argsort(-row.astype(np.float32), kind="stable")
    now = row.astype(float)

    def shares() -> np.ndarray:
        weights = np.exp((now[ids] - now[ids].max()) / temperature)
        return np.asarray(weights / weights.sum())

    def tell(name: str) -> None:
        found.append((name, dict(zip(ids.tolist(), shares().tolist(), strict=True))))

    for name, changed in penalized(row, history, answer, s).items():
        now, ids = changed.astype(float), np.argsort(-changed, kind="stable")
        tell(name)
    if s.temperature != 1:
        temperature = float(np.float32(s.temperature))
        tell("temperature")
    if s.top_n_sigma:
        lowest = now.max() - float(np.float32(s.top_n_sigma)) * now.std()
        ids = ids[: at_least(now[ids], lowest)]
        tell("top_n_sigma")
    if s.top_k:
        ids = ids[: s.top_k]
        tell("top_k")
    if s.top_p < 1:
        before = np.concatenate([[0.0], np.cumsum(shares())[:-1]])
        limit = float(np.float32(s.top_p))
        if (np.abs(before - limit) < CLOSE).any():
            raise Undecided
        ids = ids[: int((before < limit).sum())]
        tell("top_p")
    if s.min_p:
        p = shares()
        ids = ids[: at_least(p / p[0], float(np.float32(s.min_p)))]
        tell("min_p")
    if s.xtc_probability and s.xtc_threshold <= 0.5:
        p, all_ids = shares(), ids
        best = at_least(p, float(np.float32(s.xtc_threshold)))
        best = int((p[:best] > 0).sum())
        chance = float(np.float32(s.xtc_probability))
        chance = chance if xtc_u is None else float(xtc_u < chance)
        both = dict(zip(ids.tolist(), (p * (1 - chance)).tolist(), strict=True))
        ids = ids[max(0, best - 1) :]
        for id, share in zip(ids.tolist(), shares().tolist(), strict=True):
            both[id] += chance * share
        found.append(("xtc", {id: both[id] for id in all_ids.tolist() if both[id] > 0 or id in ids}))
    return found


def same(
    expected: list[tuple[str, dict[int, float]]],
    told: tuple[Stage, ...],
    candidates: tuple[Candidate, ...],
    raw: np.ndarray,
) -> None:
    assert [stage.name for stage in told] == [name for name, _ in expected]
    ids = [one.id for one in candidates]
    found = np.array([one.by_stage for one in candidates])  # [candidates, stages]
    for at, (stage, (_, shares)) in enumerate(zip(told, expected, strict=True)):
        p = np.array(list(shares.values()))
        p = p[p > 0]
        numbers = stage.kept, stage.entropy, stage.mass
        np.testing.assert_allclose(
            numbers, (len(shares), -(p * np.log(p)).sum(), raw[list(shares)].sum()), rtol=1e-6, atol=1e-7
        )
        wanted = [shares.get(id, 0.0) for id in ids]
        np.testing.assert_allclose(found[:, at], wanted, rtol=1e-6, atol=1e-12, err_msg=str(stage))


def softmax(row: np.ndarray) -> np.ndarray:
    weights = np.exp(row.astype(float) - row.max())
    return np.asarray(weights / weights.sum())


def compare(engine: Engine, seed: int, count: int) -> int:
    """Given texts: every stage of `count` random settings. Returns how many tokens were compared."""
    draw, compared = random.Random(seed), 0
    for _ in range(count):
        few = draw.choice([2, 4, VOCAB])
        ids = [draw.randrange(few) for _ in range(TOKENS)]
        s = settings(draw)
        rows = engine.logits(ids)
        for token in list(engine.score(ids, top_k=VOCAB, sampling=s))[1:]:
            row, history = rows[token.index - 1], ids[: token.index]
            try:
                expected = stages(row, history, history, s, None)
            except Undecided:
                continue
            same(expected, token.stages, token.candidates, softmax(row))
            compared += 1
    return compared


@pytest.mark.slow
def test_given_texts(engine: Engine) -> None:
    """Any two stages meet in at least 15 of these settings, before 11 tokens each."""
    assert compare(engine, 0, 150) > 1400


@pytest.mark.trust
@pytest.mark.parametrize("seed", range(10, 20))
def test_ten_thousand_settings(engine: Engine, seed: int) -> None:
    assert compare(engine, seed, 1000) > 9000


@pytest.mark.parametrize("seed", range(3))
def test_drawn_tokens(engine: Engine, seed: int) -> None:
    """With the numbers that were drawn; only ids after the prompt count as the answer, given ones too."""
    draw = random.Random(100 + seed)
    for _ in range(60):
        s = dataclasses.replace(settings(draw), max_tokens=8)
        prompt = [draw.randrange(4) for _ in range(draw.randrange(1, 9))]
        prefix = [draw.randrange(4) for _ in range(draw.randrange(4))]
        sequence = engine._add(engine._core, [*prompt, *prefix], len(prompt), s, s.seed or 0, 0, VOCAB, None)  # type: ignore[arg-type]
        ids = [*prompt, *prefix]
        while events := engine._core.step([sequence], _core.CancelToken()):  # type: ignore[union-attr]
            for event in (one for one in events if one.kind == "token"):
                assert event.id is not None
                u, xtc_u = _core.uniforms(s.seed or 0, 0, event.position)
                row = engine.logits(ids)[-1]
                try:
                    expected = stages(row, ids, ids[len(prompt) :], s, xtc_u)
                except Undecided:
                    expected = []
                told = tuple(Stage(t.name, t.kept, t.mass, t.entropy, t.value) for t in event.stages)
                if expected:
                    same(expected, told, tuple(Candidate(*c) for c in event.candidates), softmax(row))
                assert event.u == u
                assert [t.value for t in told if t.name == "xtc"] in ([], [xtc_u])
                ids.append(event.id)
        engine._core.free(sequence)  # type: ignore[union-attr]


STAGES: list[dict[str, Any]] = [
    {"presence_penalty": 1.5},
    {"frequency_penalty": -0.5},
    {"dry_multiplier": 0.8, "dry_allowed_length": 1},
    {"top_n_sigma": 1.0},
    {"xtc_probability": 0.5, "xtc_threshold": 0.03},
    {"xtc_probability": 1.0, "xtc_threshold": 0.03, "top_k": 20},
]


@pytest.mark.parametrize("given", STAGES)
def test_draws_are_replayed_and_repeated(engine: Engine, given: dict[str, Any]) -> None:
    """The same seed gives the same tokens, in one answer or continued; each draw has its reason."""
    s = Sampling(**{"temperature": 1.0, "top_k": 0, "top_p": 1.0, **given}, seed=11, max_tokens=30)
    prompt = [1, 2, 1, 2]
    whole = list(engine.generate(prompt, s, top_k=VOCAB))
    report = replay(recorded_draws(whole, s, engine.trace_facts(VOCAB)), seed=11)
    assert report.draws == len(whole)
    assert not report.mismatches
    few = list(engine.generate(prompt, s, top_k=2))
    assert not replay(recorded_draws(few, s, engine.trace_facts(2)), seed=11).mismatches
    assert [step.id for step in few] == [step.id for step in whole]
    for cut in (1, 7):
        ids = [step.id for step in whole[:cut]]
        rest = dataclasses.replace(s, max_tokens=30 - cut)
        steps = list(engine._start(prompt, rest, VOCAB, None, None, ids))
        assert [step.id for step in steps] == [step.id for step in whole[cut:]]
        assert [step.candidates for step in steps] == [step.candidates for step in whole[cut:]]


def test_a_wrong_number_of_xtc_is_found(engine: Engine) -> None:
    s = Sampling(temperature=1.0, xtc_probability=0.5, xtc_threshold=0.03, seed=11, max_tokens=5)
    steps = list(engine.generate([1, 2], s, top_k=VOCAB))
    *before, last = steps[2].stages
    steps[2] = steps[2]._replace(stages=(*before, last._replace(value=0.25)))
    [found] = replay(recorded_draws(steps, s, engine.trace_facts(VOCAB)), seed=11).mismatches
    assert found.position == steps[2].position
    assert found.why.startswith("u of xtc = 0.25, but seed 11 gives ")


def test_each_stage_has_its_setting() -> None:
    assert {one.of for one in SETTINGS.values() if one.of} == {"dry_multiplier", "xtc_probability"}
