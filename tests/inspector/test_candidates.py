"""What the inspector says of a draw, beside the engine's own draw and beside NumPy."""

import dataclasses
import math

import numpy as np
import pytest
from fakes import fake_step
from models import write_llama

from ropechat.engine.engine import Engine
from ropechat.errors import RequestError
from ropechat.inspector.explain import BANNED, GREEDY, explain
from ropechat.sampling import Sampling

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


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine.load(write_llama(tmp_path_factory.mktemp("tiny")), dtype="f32", threads=1)


@pytest.mark.parametrize("sampling", SETTINGS)
def test_the_engines_own_draw_is_explained(engine: Engine, sampling: Sampling) -> None:
    """With every id listed, `u` falls into the chosen candidate's share and into no other."""
    vocabulary, prompt = engine.facts["vocab_size"], [1, 2, 3, 4]
    settings = dataclasses.replace(sampling, seed=5, max_tokens=12)
    for step in engine.generate(prompt, settings, top_k=vocabulary):
        found = explain(step, settings)
        kept = [candidate for candidate in found.candidates if candidate.cut is None]
        banned = sum(candidate.cut == BANNED for candidate in found.candidates)
        assert found.kept in (None, len(kept), len(kept) + banned)
        assert found.exact
        shares = np.cumsum([candidate.sampled for candidate in kept])
        assert shares[-1] == pytest.approx(1.0, abs=1e-12)
        drawn = kept[int(np.searchsorted(shares, step.u, side="right"))]
        assert drawn.id == step.id == found.chosen.id
        end = shares[kept.index(drawn)]
        assert step.interval == pytest.approx((end - drawn.sampled, end), abs=1e-12)


@pytest.mark.parametrize("sampling", SETTINGS)
def test_twenty_listed_candidates_have_the_numbers_of_all(engine: Engine, sampling: Sampling) -> None:
    """What is not listed changes nothing: no number is an estimate."""
    settings = dataclasses.replace(sampling, seed=6, max_tokens=8)
    every = list(engine.generate([1, 2, 3], settings, top_k=engine.facts["vocab_size"]))
    few = list(engine.generate([1, 2, 3], settings, top_k=20))
    for one, other in zip(few, every, strict=True):
        shown, whole = explain(one, settings), explain(other, settings)
        assert shown.exact
        assert set(shown.candidates) <= set(whole.candidates)


def test_stages_are_the_definition(engine: Engine) -> None:
    """Each cut and share, computed again from the logits."""
    settings = Sampling(temperature=1.5, top_k=30, top_p=0.875, min_p=0.125, seed=1, max_tokens=1)
    prompt, vocabulary = [1, 2, 3, 4], engine.facts["vocab_size"]
    [step] = engine.generate(prompt, settings, top_k=vocabulary)
    logits = engine.logits(prompt)[-1].astype(np.float64)
    order = np.argsort(-logits, kind="stable")
    weights = np.exp((logits - logits.max()) / 1.5)[order]
    top_p = int(np.searchsorted(np.cumsum(weights[:30]) / weights[:30].sum(), 0.875)) + 1
    min_p = int((weights[:top_p] >= 0.125).sum())
    counts = {"temperature": vocabulary, "top_k": 30, "top_p": top_p, "min_p": min_p}
    assert {stage.name: stage.kept for stage in step.stages} == counts
    cuts = [next((name for name, n in counts.items() if place >= n), None) for place in range(vocabulary)]
    assert [(one.id, one.rank, one.cut) for one in step.candidates] == [
        (int(id), place + 1, cuts[place]) for place, id in enumerate(order)
    ]
    shares = weights[:min_p] / weights[:min_p].sum()
    assert [one.probability for one in step.candidates[:min_p]] == pytest.approx(shares, rel=1e-12)
    for place, count in enumerate(counts.values()):
        shares = np.concatenate([weights[:count] / weights[:count].sum(), np.zeros(vocabulary - count)])
        assert [one.by_stage[place] for one in step.candidates] == pytest.approx(shares, rel=1e-12)


def test_the_penalty_marks_what_was_said(engine: Engine) -> None:
    settings = dataclasses.replace(SETTINGS[-1], seed=5, max_tokens=3)
    step = next(iter(engine.generate([1, 2, 3, 4], settings, top_k=20)))
    found = explain(step, settings)
    assert {c.id for c in found.candidates if c.penalized} == {c.id for c in found.candidates} & {1, 2, 3, 4}


def test_bans_and_biases_are_named(engine: Engine) -> None:
    settings = Sampling(temperature=0.7, top_k=0, top_p=1.0, seed=5, max_tokens=1)
    best = next(engine.generate([1, 2, 3, 4], settings, top_k=3)).top
    bias = ((best[0][0], -100.0), (best[1][0], 1.5))
    settings = dataclasses.replace(settings, logit_bias=bias)
    found = explain(next(engine.generate([1, 2, 3, 4], settings, top_k=20)), settings)
    assert [one.id for one in found.candidates if one.cut == BANNED] == [best[0][0]]
    assert {one.id: one.bias for one in found.candidates if one.bias} == dict(bias)


def test_greedy(engine: Engine) -> None:
    settings = Sampling(temperature=0, max_tokens=1)
    [step] = engine.generate([1, 2, 3, 4], settings, top_k=3)
    found = explain(step, settings)
    assert [(c.sampled, c.cut) for c in found.candidates] == [(1.0, None), (0.0, GREEDY), (0.0, GREEDY)]
    assert found.exact
    assert (step.u, step.interval, [stage.kept for stage in step.stages]) == (None, (0.0, 1.0), [1])


def test_a_record_without_stages_says_so() -> None:
    """As in chats that were saved by older versions."""
    step = fake_step(0, b"x", "x", top_k=3)._replace(candidates=())
    found = explain(step, Sampling())
    assert (found.exact, found.why) == (False, "the stages were not recorded")
    assert {candidate.sampled for candidate in found.candidates} == {None}


def test_a_chosen_token_beyond_the_list_is_shown(engine: Engine) -> None:
    settings = Sampling(temperature=1.0, top_k=0, top_p=1.0, max_tokens=40, seed=3)
    steps = [step for step in engine.generate([1, 2], settings, top_k=2) if step.rank > 2]
    assert steps
    for step in steps:
        found = explain(step, settings)
        assert len(found.candidates) == 3
        assert (found.chosen.rank, found.chosen.cut) == (step.rank, None)
        assert found.chosen.sampled == pytest.approx(math.exp(step.logprob), rel=1e-12)


# ---- a given text


def test_a_given_text_has_the_stages_of_a_drawn_one(engine: Engine) -> None:
    """Scoring what was drawn gives the record of the draw, but for u."""
    settings = dataclasses.replace(SETTINGS[0], repetition_penalty=1.2, seed=8, max_tokens=10)
    prompt = [1, 2, 3, 4]
    steps = list(engine.generate(prompt, settings, top_k=10))
    trace = engine.score([*prompt, *(step.id for step in steps)], top_k=10, sampling=settings)
    assert trace[0].stages == trace[0].candidates == ()
    for token, step in zip(trace[len(prompt) :], steps, strict=True):
        assert (token.stages, token.candidates, token.interval) == (
            step.stages,
            step.candidates,
            step.interval,
        )
        assert (token.u, token.outcome) == (None, next(c for c in step.candidates if c.id == token.id))
    assert all(token.candidates == () for token in engine.score(prompt))


def test_what_the_settings_cannot_produce(engine: Engine) -> None:
    trace = engine.score([1, 2, 3, 4, 5, 6], top_k=0, sampling=Sampling(temperature=0))
    judged = [token.outcome for token in trace][1:]
    cuts = [None if token.rank == 1 else "temperature" for token in trace[1:]]
    assert [one.cut for one in judged if one] == cuts
    assert [one.rank for one in judged if one] == [token.rank for token in trace[1:]]
    with pytest.raises(RequestError, match="logit_bias: ids must be below"):
        engine.score([1, 2], sampling=Sampling(logit_bias=((100_000, 1.0),)))


def test_a_text_in_windows_has_stages_too(engine: Engine) -> None:
    ids = [1 + place * 7 % 50 for place in range(90)]
    settings = Sampling(temperature=0.7, top_k=5, repetition_penalty=1.3)
    stream = engine.score_stream(ids, top_k=0, window=32, sampling=settings)
    tokens = list(stream)
    assert stream.meta["sampling"] == settings
    assert [token.outcome is not None for token in tokens] == [False] + [True] * 89
    whole = engine.score(ids[:20], top_k=0, sampling=settings)
    assert [token.outcome for token in whole] == [token.outcome for token in tokens[:20]]
    assert len({token.outcome.cut for token in tokens[1:] if token.outcome}) == 2  # top_k and None
