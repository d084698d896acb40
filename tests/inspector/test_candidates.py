"""What the inspector says of a draw, beside the engine's own draw and beside NumPy."""

import dataclasses
import math

import numpy as np
import pytest
from fakes import fake_step
from models import write_llama

from ropechat.engine.engine import Engine
from ropechat.inspector.explain import explain
from ropechat.sampling import Sampling
from ropechat.trace import Stage, Step, TokenDistribution

BIAS = ((2, 3.0), (7, -100.0), (11, -1.5))
SETTINGS = [
    Sampling(temperature=0.7, top_k=0, top_p=1.0),
    Sampling(temperature=1.0, top_k=5, top_p=1.0),
    Sampling(temperature=1.3, top_k=40, top_p=0.6),
    Sampling(temperature=0.5, top_k=0, top_p=1.0, min_p=0.2),
    Sampling(temperature=1.0, top_k=0, top_p=1.0),
    Sampling(temperature=0.8, top_k=10, top_p=1.0, logit_bias=BIAS),
    Sampling(temperature=0.8, top_k=10, repetition_penalty=1.4, logit_bias=BIAS),
    Sampling(temperature=0.9, top_k=30, top_p=0.9, repetition_penalty=1.4),
]


def made(logits: "np.ndarray", stages: tuple[Stage, ...], listed: int, chosen: int = 0) -> Step:
    shift = float(np.log(np.exp(logits).sum()))
    order = np.argsort(-logits, kind="stable")
    top = tuple((int(id), float(logits[id]) - shift) for id in order[:listed])
    rank = int(np.where(order == chosen)[0][0]) + 1
    base = fake_step(chosen, b"x", "x")
    row = TokenDistribution(0, top, shift, 1.0, 0.9)
    logprob = float(logits[chosen]) - shift
    return base._replace(id=chosen, top=top, row=row, stages=stages, logprob=logprob, rank=rank)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine.load(write_llama(tmp_path_factory.mktemp("tiny")), dtype="f32", threads=1)


@pytest.mark.parametrize("sampling", SETTINGS)
def test_the_engines_own_draw_is_explained(engine: Engine, sampling: Sampling) -> None:
    """With every id listed, `u` falls into the chosen candidate's share and into no other."""
    vocabulary, prompt = engine.facts["vocab_size"], [1, 2, 3, 4]
    settings = dataclasses.replace(sampling, seed=5, max_tokens=12)
    seen = list(prompt)
    for step in engine.generate(prompt, settings, top_k=vocabulary):
        found = explain(step, settings, seen)
        kept = [candidate for candidate in found.candidates if candidate.cut is None]
        assert found.kept in (None, len(kept))
        assert found.exact or "rank in between" in found.why
        shares = np.cumsum([candidate.sampled for candidate in kept])
        assert shares[-1] == pytest.approx(1.0, abs=1e-6)
        drawn = kept[int(np.searchsorted(shares, step.u, side="right"))]
        assert drawn.id == step.id == found.chosen.id
        seen.append(step.id)


def test_the_penalty_marks_what_was_said(engine: Engine) -> None:
    settings = dataclasses.replace(SETTINGS[-1], seed=5, max_tokens=3)
    step = next(iter(engine.generate([1, 2, 3, 4], settings, top_k=20)))
    found = explain(step, settings, [1, 2, 3, 4])
    assert {c.id for c in found.candidates if c.penalized} == {c.id for c in found.candidates} & {1, 2, 3, 4}
    unknown = explain(step, settings, None)
    assert not unknown.exact
    assert "unknown" in unknown.why


def test_greedy() -> None:
    step = made(np.array([3.0, 2.0, 1.0]), (), 3)
    found = explain(step, Sampling(temperature=0))
    assert [(c.sampled, c.cut) for c in found.candidates] == [(1.0, None), (0.0, "greedy"), (0.0, "greedy")]
    assert found.exact


def test_each_cut_names_its_stage() -> None:
    stages = (Stage("top_k", 5, 0.9, 1.0), Stage("top_p", 3, 0.8, 1.0), Stage("min_p", 2, 0.7, 1.0))
    step = made(np.linspace(3, 0, 8), stages, 8)
    cuts = [candidate.cut for candidate in explain(step, Sampling()).candidates]
    assert cuts == [None, None, "min_p", "top_p", "top_p", "top_k", "top_k", "top_k"]


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.5])
@pytest.mark.parametrize("spread", [0.5, 2.0, 6.0])
def test_estimates_are_near_and_said_to_be_estimates(temperature: float, spread: float) -> None:
    """300 survivors of which 20 are listed."""
    logits = np.random.default_rng(int(10 * spread)).normal(size=300) * spread
    stages = (Stage("temperature", 300, 1.0, 1.0),) if temperature != 1.0 else ()
    chosen = int(logits.argmax())
    found = explain(made(logits, stages, 20, chosen), Sampling(temperature=temperature, top_k=0, top_p=1.0))
    weights = np.exp((logits - logits.max()) / temperature)
    true = float(weights[chosen] / weights.sum())
    sampled = found.chosen.sampled
    assert sampled is not None
    if found.exact:
        assert sampled == pytest.approx(true, rel=0.01)
    else:
        assert "not listed" in found.why
        assert true / 3 < sampled < true * 3


def test_a_chosen_token_beyond_the_list_is_shown() -> None:
    logits = np.linspace(3, 0, 50)
    found = explain(made(logits, (), 20, chosen=30), Sampling(temperature=1.0, top_k=0, top_p=1.0))
    assert len(found.candidates) == 21
    assert (found.chosen.rank, found.chosen.cut) == (31, None)
    assert found.chosen.sampled == pytest.approx(math.exp(found.chosen.logprob), rel=0.01)
