"""The RoPE views of a loaded model, beside the engine's own scores and NumPy."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from golden_cases import GOLDEN
from models import write_llama

from ropechat.engine.engine import Engine
from ropechat.errors import RequestError
from ropechat.inspector.rope import attention, formulas, measured
from ropechat.inspector.rope.report import WEIGHT_VIEWS, ViewOptions, most_attended, weight_views
from ropechat.inspector.rope.spec import rope_spec

IDS = [1, 7, 40, 3, 99, 12, 55, 80, 7, 40, 21, 64]
SPLIT_CASES = (
    "llama_yarn_new",
    "phi_old",
    "gemma3_text_old",
    "smollm3_old",
    "gptj_old",
    "deepseek_v2_old",
    "llama_dynamic_old",
    "gpt2_old",
)
"""An attention factor; partial rotation; windows and two thetas; NoPE layers; interleaved pairs; MLA; a theta
that depends on the length; no rope at all."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = write_llama(tmp_path_factory.mktemp("llama"), num_attention_heads=4, num_key_value_heads=2)
    loaded = Engine.load(folder, dtype="f32", kv_dtype="f32", threads=1, cache="off")
    yield loaded
    loaded.close()


def golden_engine(name: str) -> Engine:
    return Engine.load(GOLDEN / name, dtype="f32", kv_dtype="f32", threads=1, cache="off")


@pytest.mark.parametrize("name", SPLIT_CASES)
def test_the_parts_of_a_score_sum_to_the_engines_score(name: str) -> None:
    engine = golden_engine(name)
    ids = [id % engine.facts["vocab_size"] for id in IDS]
    for layer in range(engine.facts["num_hidden_layers"]):
        for query, key in ((11, 11), (11, 9), (6, 5)):
            result = measured.score_split(engine, ids, layer, 1, query, key)
            assert result.difference <= 1e-4
            assert np.isfinite(result.weight)
            spec = rope_spec(engine, len(ids))
            assert len(result.split.parts) == len(spec.of_layer(layer).inv_freq)
            here = result.split.at(np.array([float(query - key)]))[0]
            assert here == pytest.approx(result.split.total, abs=1e-9)
    engine.close()


def test_a_split_elsewhere_is_the_score_of_a_moved_key() -> None:
    seed = 5
    random = np.random.default_rng(seed)
    group = rope_spec(GOLDEN / "llama_yarn_new").groups[0]
    q, k = random.standard_normal((2, group.rotary_dim))
    split = attention.split_score(q, k, 3, group, 0.25)
    for distance in (0, 3, 900):
        how = {"interleaved": group.interleaved, "factor": group.attention_factor}
        one = formulas.rotate(q, 1000, group.inv_freq, **how)
        other = formulas.rotate(k, 1000 - distance, group.inv_freq, **how)
        expected = 0.25 * float(one @ other)
        assert split.at(np.array([float(distance)]))[0] == pytest.approx(expected, abs=1e-10), f"seed {seed}"


def test_a_split_refuses_what_is_not_there(engine: Engine) -> None:
    for query, key in ((3, 4), (12, 0), (2, -1)):
        with pytest.raises(RequestError, match="query and key"):
            measured.score_split(engine, IDS, 0, 0, query, key)
    windowed = golden_engine("gemma3_text_old")
    window = rope_spec(windowed).of_layer(0).window
    assert window is not None
    ids = [3] * (window + 2)
    with pytest.raises(RequestError, match="outside the window"):
        measured.score_split(windowed, ids, 0, 0, window + 1, 0)
    windowed.close()


def test_llama_sees_only_distances(engine: Engine) -> None:
    results = measured.shift_test(engine, IDS, (1, 1000, 131_072, 1_000_000))
    assert [one.shift for one in results] == [1, 1000, 131_072, 1_000_000]
    assert all(one.is_relative and one.max_logit <= 1e-4 for one in results)
    assert all(0.0 <= one.max_kl < 1e-6 for one in results)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dtransformer_rope", "no, because the token embedding itself is rotated"),
        ("llama_dynamic_old", "no, because the frequencies depend on the length"),
        ("phi3_longrope_old", "no, because the frequencies depend on the length"),
        ("gpt2_old", "no, because positions are learned vectors"),
        ("llama_yarn_new", "yes, the logits differ by rounding only"),
        ("smollm3_old", "yes, the logits differ by rounding only"),
    ],
)
def test_who_sees_only_distances_and_why(name: str, words: str) -> None:
    engine = golden_engine(name)
    ids = [id % engine.facts["vocab_size"] for id in IDS]
    shift = 100 if name == "gpt2_old" else 131_072
    view = measured.shift_view(engine, ids, rope_spec(engine, len(ids)), (shift,))
    assert f"Relative: {words}" in view.blocks[0].text
    (row,) = view.blocks[1].rows
    relative = words.startswith("yes")
    assert row[3] is relative
    assert (row[1] <= 1e-4) is relative
    assert row[2] >= 0.0
    assert relative or row[1] > 1e-2
    engine.close()


def test_the_divergence_is_that_of_the_distributions() -> None:
    seed = 8
    one, other = np.random.default_rng(seed).standard_normal((2, 5, 30))
    p, q = (np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True) for rows in (one, other))
    expected = (p * np.log(p / q)).sum(axis=1).max()
    assert measured._divergence(one, other) == pytest.approx(expected), f"seed {seed}"


def test_usage_is_the_share_of_each_pair(engine: Engine) -> None:
    spec = rope_spec(engine)
    ((group, shares),) = measured.usage(engine, IDS, spec)
    assert shares.shape == (2, 4, len(group.inv_freq))
    assert shares.sum(axis=2) == pytest.approx(np.ones((2, 4)))
    found = engine.capture(IDS, [1], [3], what=("q_pre", "k_pre"))
    half = group.rotary_dim // 2

    def norms(rows: np.ndarray) -> np.ndarray:
        return np.hypot(rows[:, :half], rows[:, half:]).astype(np.float64).mean(axis=0)

    product = norms(found["q_pre"][0, 0]) * norms(found["k_pre"][0, 0])
    assert shares[1, 3] == pytest.approx(product / product.sum(), rel=1e-5)


def test_usage_in_several_calls_is_the_same(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = rope_spec(engine)
    ((_, whole),) = measured.usage(engine, IDS, spec)
    monkeypatch.setattr(measured, "_CAPTURE_BYTES", 1)
    ((_, parts),) = measured.usage(engine, IDS, spec)
    assert np.array_equal(whole, parts)


def test_the_most_attended_token_is_not_the_sink(engine: Engine) -> None:
    row = engine.capture(IDS, [1], [2], rows=[9], what=("attn_row",))["attn_row"][0, 0, 0]
    assert most_attended(engine, IDS, 1, 2, 9) == 1 + int(np.argmax(row[1:10]))
    assert most_attended(engine, IDS, 1, 2, 0) == 0


def test_every_view_of_a_model(engine: Engine) -> None:
    wishes = ViewOptions(shifts=(1, 1000))
    views = list(weight_views(engine, IDS, WEIGHT_VIEWS, wishes))
    assert [view.name for view in views] == list(WEIGHT_VIEWS)
    distances = views[3].blocks[-2]
    assert len(distances.rows) == 8
    assert all(0.0 <= row[2] <= 1.0 and 0.0 <= row[3] <= 1.0 for row in distances.rows)
    one_head = next(weight_views(engine, IDS, ("distance",), ViewOptions(layer=1, head=2))).blocks[-2]
    assert [row[:2] for row in one_head.rows] == [(1, 2)]
    with pytest.raises(RequestError, match="head: must be from 0 to 3"):
        list(weight_views(engine, IDS, ("split",), ViewOptions(head=4)))
    with pytest.raises(RequestError, match="text: must have at least 2 tokens"):
        list(weight_views(engine, [1], ("usage",), wishes))


@pytest.mark.parametrize("name", ["gpt2_old", "smollm3_old", "dtransformer_rope"])
def test_models_without_rope_have_views_too(name: str, tmp_path: Path) -> None:
    engine = golden_engine(name)
    ids = [id % engine.facts["vocab_size"] for id in IDS]
    wishes = ViewOptions(shifts=(1,))
    assert len(list(weight_views(engine, ids, WEIGHT_VIEWS, wishes))) == 4
    engine.close()
