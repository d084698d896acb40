"""The sampling sheet: keys, presets, typed settings; what it says a change would do, beside NumPy."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import numpy as np
import pytest
from fakes import FakeEngine, fake_step

from ropechat.chat import presets
from ropechat.inspector.what_if import Before, resample
from ropechat.sampling import Sampling
from ropechat.trace import Stage, TokenDistribution
from ropechat.tui.screens.sampling import SamplingScreen


def step_of(logits: np.ndarray, listed: int) -> Any:
    shift = float(np.log(np.exp(logits).sum()))
    order = np.argsort(-logits, kind="stable")
    top = tuple((int(id), float(logits[id]) - shift) for id in order[:listed])
    return fake_step(0, b"x", "x")._replace(top=top, row=TokenDistribution(0, top, shift, 1.0, 0.9))


PROMPT = 9
"""The id of a prompt."""


def sampled(
    logits: np.ndarray, settings: Sampling, seen: set[int], answer: list[int] | None = None
) -> dict[int, float]:
    """The probabilities of the draw, by the definition, over all ids; of XTC the mean of both cases."""
    logits = logits.astype(float).copy()
    for id, bias in settings.logit_bias:
        logits[id] += bias
    for id in seen if settings.repetition_penalty != 1 else ():
        logits[id] = (
            logits[id] * settings.repetition_penalty
            if logits[id] < 0
            else (logits[id] / settings.repetition_penalty)
        )
    for id in set(answer or ()):
        logits[id] -= settings.presence_penalty + (answer or []).count(id) * settings.frequency_penalty
    text = [PROMPT, *(answer or ())]
    for id in set(text) if settings.dry_multiplier else ():
        ends = [place for place in range(1, len(text)) if text[place] == id]
        same = [next(n for n in range(99) if n >= end or text[end - 1 - n] != text[-1 - n]) for end in ends]
        if (more := max(same, default=-1) - settings.dry_allowed_length) >= 0:
            logits[id] -= settings.dry_multiplier * settings.dry_base**more
    order = list(np.argsort(-logits, kind="stable"))
    if settings.temperature == 0:
        return {int(order[0]): 1.0}
    weights = np.exp((logits - logits.max()) / settings.temperature)
    kept = order
    if settings.top_n_sigma:
        kept = [id for id in order if logits[id] >= logits.max() - settings.top_n_sigma * logits.std()]
    kept = kept[: settings.top_k] if settings.top_k else kept
    share = np.cumsum([weights[id] for id in kept]) / sum(weights[id] for id in kept)
    kept = kept[: int(np.searchsorted(share, settings.top_p * (1 - 1e-12))) + 1]
    kept = [id for id in kept if weights[id] >= settings.min_p * weights[kept[0]]]
    total = sum(weights[id] for id in kept)
    shares = {int(id): float(weights[id] / total) for id in kept}
    best = [id for id, share in shares.items() if share >= settings.xtc_threshold][:-1]
    chance = settings.xtc_probability if settings.xtc_threshold <= 0.5 else 0.0
    rest = 1.0 - sum(shares[id] for id in best)
    mixed = {
        id: share * (1 - chance + (chance / rest if id not in best else 0.0)) for id, share in shares.items()
    }
    return {id: share for id, share in mixed.items() if share > 0}


SETTINGS = [
    Sampling(temperature=0),
    Sampling(temperature=0.7, top_k=40, top_p=0.95),
    Sampling(temperature=0.3, top_k=5, top_p=1.0),
    Sampling(temperature=1.0, top_k=0, top_p=0.6),
    Sampling(temperature=1.4, top_k=12, top_p=0.9, min_p=0.2),
    Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.05),
    Sampling(temperature=1.0, top_k=200, top_p=1.0),
    Sampling(temperature=0.7, top_k=40, top_p=0.95, logit_bias=((4, 1.5), (9, -100.0), (11, -2.0))),
    Sampling(temperature=0.8, top_k=10, top_p=0.9, repetition_penalty=1.5, logit_bias=((3, -1.0),)),
    Sampling(temperature=0.8, top_k=0, top_p=1.0, xtc_probability=1.0, xtc_threshold=0.02),
    Sampling(temperature=1.2, top_k=10, top_p=0.9, xtc_probability=0.3, xtc_threshold=0.05),
    Sampling(temperature=1.0, top_k=0, top_p=0.9, top_n_sigma=1.0),
]
WITH_BEFORE = [
    Sampling(temperature=0.8, top_k=10, top_p=0.9, repetition_penalty=1.5),
    Sampling(temperature=1.0, top_k=0, top_p=1.0, presence_penalty=1.2, frequency_penalty=0.4),
    Sampling(temperature=1.0, top_k=10, top_p=1.0, frequency_penalty=-0.4),
    Sampling(temperature=1.0, top_k=0, top_p=1.0, dry_multiplier=0.8, dry_allowed_length=1),
]


@pytest.mark.parametrize("settings", [*SETTINGS, *WITH_BEFORE])
@pytest.mark.parametrize("spread", [1.0, 3.0])
def test_a_trial_is_the_draw_where_all_is_listed(settings: Sampling, spread: float) -> None:
    logits = np.random.default_rng(3).normal(size=60) * spread
    best = int(np.argmax(logits))
    answer = [7, best, 2, 7, best, 9, 7]
    before = Before((PROMPT,), [fake_step(0, b"x", "x")._replace(id=id) for id in answer])
    step = step_of(logits, 60)
    sigma = float(logits.std())
    step = step._replace(stages=(Stage("top_n_sigma", 1, 1.0, 1.0, sigma),))
    found = resample(step, settings, 60, before)
    assert found.exact == (settings.frequency_penalty >= 0)
    true = sampled(logits, settings, {*answer, PROMPT}, answer)
    assert {one.id: one.sampled for one in found.candidates if one.cut is None} == pytest.approx(true)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
def test_a_trial_on_twenty_of_many_is_right_or_says_that_it_is_an_estimate(
    settings: Sampling, spread: float
) -> None:
    logits = np.random.default_rng(4).normal(size=2000) * spread
    found = resample(step_of(logits, 20), settings, 2000)
    true = sampled(logits, settings, set())
    shown = {one.id: one.sampled for one in found.candidates if one.cut is None}
    assert not found.exact or shown == pytest.approx(
        {id: value for id, value in true.items() if id in shown}, rel=0.02
    )
    if found.exact and found.kept is not None:
        assert found.kept == len(true)


def test_trials_can_be_exact_with_twenty_of_many() -> None:
    logits = np.random.default_rng(4).normal(size=2000) * 3
    assert resample(step_of(logits, 20), Sampling(temperature=0.7, top_k=10, top_p=0.9), 2000).exact
    assert not resample(step_of(logits / 9, 20), Sampling(temperature=1.5, top_k=0, top_p=0.9), 2000).exact


@pytest.mark.parametrize("bias", [((4, 1.5),), ((9, -100.0), (11, -2.0))])
@pytest.mark.parametrize("spread", [1.0, 3.0])
def test_a_trial_with_a_bias_names_it(bias: Any, spread: float) -> None:
    settings = Sampling(temperature=0.7, top_k=0, top_p=1.0, logit_bias=bias)
    logits = np.random.default_rng(3).normal(size=60) * spread
    true = sampled(logits, settings, set())
    found = resample(step_of(logits, 60), settings, 60)
    assert found.chosen.id == max(true, key=lambda one: true[one])
    assert {one.id: one.sampled for one in found.candidates if one.cut is None} == pytest.approx(
        {one: share for one, share in true.items() if (one, -100.0) not in bias}
    )
    assert {one.id for one in found.candidates if one.cut == "banned"} == {
        one for one, weight in bias if weight == -100.0
    }
    assert {one.id: one.bias for one in found.candidates if one.bias} == dict(bias)


@pytest.mark.parametrize(
    ("bias", "words"),
    [
        (((1, 101.0),), "logit_bias: must be a number from -100 to 100 (got 101.0)"),
        (((-1, 1.0),), "logit_bias: must be an integer from 0 to 2147483647 (got -1)"),
        (((1, float("nan")),), "logit_bias: must be a number from -100 to 100 (got nan)"),
        ((1, 2), "logit_bias: must be a list of [id, bias] pairs (got (1, 2))"),
        (7, "logit_bias: must be a list of [id, bias] pairs (got 7)"),
    ],
)
def test_biases_that_cannot_be(bias: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        Sampling(logit_bias=bias)


def test_biases_read_from_a_file_are_the_same() -> None:
    settings = Sampling(logit_bias=((3, -1.0), (5, 2.0)))
    assert Sampling(**json.loads(json.dumps(dataclasses.asdict(settings)))) == settings


def test_presets() -> None:
    mine = Sampling(max_tokens=77, seed=5, repetition_penalty=1.3)
    for name in presets.PRESETS:
        made = presets.with_preset(mine, name)
        assert (made.max_tokens, made.seed, made.repetition_penalty) == (77, 5, 1.0)
        assert presets.preset_of(made) == name
    assert presets.preset_of(mine) == ""
    assert presets.with_preset(Sampling(temperature=1.9), "balanced") == Sampling()


@pytest.mark.parametrize("name", presets.NAMES)
def test_steps_stay_within_what_is_allowed(name: str) -> None:
    settings = Sampling()
    for by in [1] * 300 + [-1] * 600 + [1] * 3:
        settings = presets.step_value(settings, name, by)  # Sampling refuses what is not
    assert settings != Sampling() or name in ("top_p", "repetition_penalty")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("temp 0.25", "temperature", 0.25),
        ("top_k 7", "top_k", 7),
        ("top-p 0.5", "top_p", 0.5),
        ("min 0.1", "min_p", 0.1),
        ("rep 1.2", "repetition_penalty", 1.2),
        ("max 33", "max_tokens", 33),
        ("seed 9", "seed", 9),
    ],
)
async def test_set(chat: Any, line: str, field: str, value: float) -> None:
    async with chat(FakeEngine("ok")) as c:
        await c.ask(f"/set {line}")
        assert getattr(c.app.session.sampling, field) == value
        await c.ask("Hi")
        await c.idle()
        assert getattr(c.engine.settings[0], field) == value


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("top 3", "several settings begin with this: top_k, top_p"),
        ("qqq 3", "unknown setting; there are temperature, top_k"),
        ("top_p 0", "must be a number above 0 to 1 (got 0"),
        ("temp warm", "must be a number"),
        ("top_k 2.5", "must be a number"),
        ("temp", "temperature 0.7"),
    ],
)
async def test_set_says_what_is_wrong(chat: Any, line: str, words: str) -> None:
    async with chat(FakeEngine("ok"), size=(120, 24)) as c:
        before = c.app.session.sampling
        await c.ask(f"/set {line}")
        assert words in c.line("footer")
        assert c.app.session.sampling == before


async def test_seed_none_and_presets_are_typed(chat: Any) -> None:
    async with chat(FakeEngine("ok"), seed=4) as c:
        await c.ask("/set seed none")
        assert c.app.session.sampling.seed is None
        await c.ask("/sampling creative")
        assert c.app.session.sampling.min_p == 0.05
        await c.ask("/sampling loud")
        assert "greedy|precise" in c.line("footer")


@pytest.mark.slow
async def test_the_sheet_changes_settings_and_shows_the_effect_at_once(chat: Any) -> None:
    async with chat(FakeEngine("ok yes"), size=(100, 40)) as c:
        await c.pilot.press("f7")
        await c.until(lambda: isinstance(c.app.screen, SamplingScreen))
        assert "Ask something" in c.screen()
        await c.pilot.press("escape")
        await c.ask("Hi")
        await c.idle()
        await c.ask("/sampling")
        await c.until(lambda: isinstance(c.app.screen, SamplingScreen))
        assert "tokens possible" in c.screen()
        await c.pilot.press("1")
        assert c.app.session.sampling.temperature == 0
        assert "not the best" in c.screen()
        await c.pilot.press("3", "down", "left")
        assert c.app.session.sampling.top_k == 39
        await c.pilot.press("enter", *["backspace"] * 2, "2", "enter")
        await c.pilot.pause(0.05)
        assert c.app.session.sampling.top_k == 2
        assert ": 2 tokens possible" in c.screen()
        assert c.screen().count("cut by top_k") > 3
        await c.pilot.press("enter", "x", "enter")
        await c.until(lambda: "must be a number" in c.screen())
        await c.pilot.press("escape")  # out of typing
        assert isinstance(c.app.screen, SamplingScreen)
        await c.pilot.press("k", "right", "r")
        assert c.app.session.sampling.top_k == 40
        await c.pilot.press("f7")
        await c.until(lambda: not isinstance(c.app.screen, SamplingScreen))


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (60, 20), (40, 12), (160, 45)])
async def test_the_sheet_fits(chat: Any, size: tuple[int, int]) -> None:
    async with chat(FakeEngine("ok yes"), size=size) as c:
        await c.ask("Hi")
        await c.idle()
        await c.pilot.press("f7")
        await c.pilot.pause(0.1)
        assert "temperature" in c.screen()
        if size[1] >= 20:
            assert "tokens possible" in c.screen()
            assert "esc back" in c.screen() or size[0] < 80
