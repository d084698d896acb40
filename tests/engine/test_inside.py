"""Inside the model: the lens against NumPy, captured heads against the scores they make, the shift test."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_cases import GOLDEN, LLAMA_CASES, Golden
from models import TINY, write_llama
from reference import Model, forward, rms_norm

from ropechat import Engine, builtin
from ropechat.errors import CancelledError, MemoryLimitError, RequestError

TEXT = "Once upon a time there was a little girl who liked to read. " * 2
IDS = [(7 * i * i + 3 * i + 1) % 300 for i in range(90)]  # more than two chunks of 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("tiny"), **TINY, tie_word_embeddings=False)


@pytest.fixture(scope="module")
def tiny(folder: Path) -> Engine:
    return Engine.load(folder, dtype="f32", threads=2)


@pytest.fixture(scope="module")
def chat() -> Engine:
    return Engine.load(builtin.NAME, dtype="f32", threads=2)


# ---- The lens


def test_lens_is_norm_and_head_of_each_layer(folder: Path, tiny: Engine) -> None:
    model, hidden = Model.load(folder), list[np.ndarray]()
    last = forward(IDS, model, hidden)  # [V, T]; hidden: before layer 0, before layer 1, after the final norm
    logits = [model.linear("lm_head", rms_norm(hidden[1], "model.norm", model)), last]
    expected = [x - np.log(np.exp(x - x.max(0)).sum(0)) - x.max(0) for x in logits]
    rows = list(tiny.lens(IDS, top_k=3))
    assert [(row.i, row.layer) for row in rows] == [(i, n) for i in range(1, 91) for n in (0, 1)]
    for row in rows:
        column = expected[row.layer][:, row.i - 1]
        assert row.entropy == pytest.approx(-(np.exp(column) * column).sum(), abs=1e-4)
        assert [logprob for _, logprob in row.top] == pytest.approx(sorted(column)[:-4:-1], abs=1e-4)
        assert row.top[0][0] == column.argmax()
        if row.i == len(IDS):
            assert row.rank is row.logprob is None
        else:
            assert row.logprob == pytest.approx(column[IDS[row.i]], abs=1e-4)
            assert row.rank == 1 + (column > column[IDS[row.i]]).sum()


@pytest.mark.parametrize("path", LLAMA_CASES, ids=lambda path: path.name)
def test_the_lens_reads_the_hidden_states_of_transformers(path: Path) -> None:
    golden, model = Golden.read(path), Model.load(path)
    hidden = golden.tensors["debug.hidden.p7"].astype(np.float64).transpose(0, 2, 1)  # [layers + 1, H, T]
    ids, layers = golden.ids("p7"), len(hidden) - 1
    normed = [rms_norm(x, "model.norm", model) for x in hidden[1:-1]] + [hidden[-1]]
    logits = [model.linear("lm_head", x) for x in normed]  # of [V, T]
    rows = list(Engine.load(path, dtype="f32", kv_dtype="f32").lens(ids))
    assert len(rows) == len(ids) * layers
    for row in rows[:-layers]:
        column = logits[row.layer][:, row.i - 1]
        expected = column[ids[row.i]] - column.max() - np.log(np.exp(column - column.max()).sum())
        assert row.logprob == pytest.approx(expected, abs=5e-4)  # what TransformerLens is to agree within


def test_the_last_layer_is_the_trace_to_the_bit(chat: Engine) -> None:
    trace, last = chat.score(TEXT, top_k=5), chat.facts["num_hidden_layers"] - 1
    rows = list(chat.lens(TEXT, [last]))
    assert [(row.logprob, row.rank, row.entropy) for row in rows[:-1]] == [
        (token.logprob, token.rank, token.entropy) for token in trace[1:]
    ]
    tops = [row.top for row in rows]
    assert tops == [token.row.top for token in trace[1:] if token.row is not None] + [trace.next.top]


def test_layers_may_be_any_in_any_order(tiny: Engine) -> None:
    both = list(tiny.lens(IDS, [1, 0, 1]))
    assert both == list(tiny.lens(IDS))
    assert [row for row in both if row.layer == 1] == list(tiny.lens(IDS, [1]))


@pytest.mark.parametrize("layers", [[], [2], [-1], ["a"]])
def test_layers_that_are_not_there(layers: list[Any], tiny: Engine) -> None:
    with pytest.raises(RequestError, match=r"^layers: must be"):
        tiny.lens(IDS, layers)
    with pytest.raises(RequestError, match=r"^layers: must be"):
        tiny.capture(IDS, layers)
    with pytest.raises(RequestError, match=r"^layers: must be"):
        tiny.attention_by_distance(IDS, layers)


def test_a_cancelled_lens_ends_and_leaves_no_trace(tiny: Engine) -> None:
    before, rows = tiny.score(IDS), tiny.lens(IDS)
    next(rows)
    tiny.cancel()
    with pytest.raises(CancelledError):
        list(rows)
    assert tiny.score(IDS) == before


# ---- Captured heads


def rotate(x: np.ndarray, rope: dict[str, Any], positions: np.ndarray) -> np.ndarray:
    """x [.., T, d] in f64, rotated as in RoFormer, half-split."""
    angles = positions[:, None] * np.array(rope["inv_freq"])
    cos, sin, pairs = np.cos(angles), np.sin(angles), len(rope["inv_freq"])
    a, b, rest = x[..., :pairs], x[..., pairs : 2 * pairs], x[..., 2 * pairs :]
    turned = [a * cos - b * sin, a * sin + b * cos]
    return np.concatenate([rope["attention_factor"] * part for part in turned] + [rest], axis=-1)


@pytest.mark.parametrize("name", ["builtin", "llama3_old", "llama_yarn_old"])
@pytest.mark.parametrize("start", [0, 5000])
def test_captured_heads_make_the_attention(name: str, start: int, chat: Engine) -> None:
    engine = chat if name == "builtin" else Engine.load(GOLDEN / name, dtype="f32")
    ids = [(i * i + 3) % 120 for i in range(60)]
    what = ("q_pre", "k_pre", "attn_logit", "attn_row")
    found = engine.capture(ids, what=what, start_position=start)
    layers, heads = engine.facts["num_hidden_layers"], engine.facts["num_attention_heads"]
    assert found["attn_row"].shape == (layers, heads, 60, 60)
    assert found["q_pre"].shape == (layers, heads, 60, engine.facts["widest_head_dim"])
    np.testing.assert_allclose(found["attn_row"].sum(-1), 1.0, atol=1e-5)
    assert engine._core is not None
    ropes = engine._core.rope_spec(start + 60)["ropes"]
    for place in range(layers):
        rope = ropes[found["rope"][place]]
        q, k = (rotate(found[x][place].astype(float), rope, found["positions"]) for x in ("q_pre", "k_pre"))
        logits = found["scale"][place] * found["query_scale"][:, None] * (q @ k.transpose(0, 2, 1))
        logits[:, ~np.tri(60, dtype=bool)] = -np.inf
        np.testing.assert_allclose(found["attn_logit"][place], logits, atol=1e-4)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        np.testing.assert_allclose(found["attn_row"][place], weights, atol=1e-4)


def test_a_part_is_the_part_of_the_whole(tiny: Engine) -> None:
    whole = tiny.capture(IDS, what={"q_pre", "k_pre", "attn_logit", "attn_row"})
    part = tiny.capture(IDS, [1], [3, 0], rows=[89, 4, 40], what="attn_row")
    assert "q_pre" not in part
    assert [part[name].tolist() for name in ("layers", "heads", "rows")] == [[1], [0, 3], [4, 40, 89]]
    assert (part["attn_row"] == whole["attn_row"][np.ix_([1], [0, 3], [4, 40, 89])]).all()
    assert (whole["k_pre"][:, 0] == whole["k_pre"][:, 1]).all()  # 4 query heads read 2 keys
    assert not (whole["k_pre"][:, 1] == whole["k_pre"][:, 2]).all()


def test_captures_are_bounded(chat: Engine) -> None:
    with pytest.raises(MemoryLimitError, match=r"arrays: must be at most 1\.07 GB"):
        chat.capture([5] * 8000, what=["attn_row"])
    with pytest.raises(RequestError, match="what: must be some of q_pre, k_pre"):
        chat.capture([5], what=["v"])
    for wrong in (
        {"heads": [chat.facts["num_attention_heads"]]},
        {"rows": [1]},
        {"start_position": -1},
        {"start_position": 2**40},
    ):
        with pytest.raises(RequestError, match=f"^{next(iter(wrong))}: must be"):
            chat.capture([5], **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("deepseek_v3_old", "MLA"),
        ("gpt_oss_old", "learned sinks"),
        ("gemma2_old", "softcap"),
        ("gemma2_old", "windows"),
        ("gpt2_old", "learned positions"),
    ],
)
def test_what_a_family_has_differently_is_said(name: str, words: str) -> None:
    if not (GOLDEN / name).exists():
        pytest.skip(f"no golden {name}")
    found = Engine.load(GOLDEN / name, dtype="f32").capture([5, 6, 7], what=["attn_row"])
    assert any(words in note for note in found["notes"]), found["notes"]


# ---- Attention by distance


def test_attention_by_distance_sums_the_rows_up(tiny: Engine) -> None:
    found, T = tiny.attention_by_distance(IDS), len(IDS)
    rows = tiny.capture(IDS, what=["attn_row"])["attn_row"].astype(float)
    assert found["mean"].shape == (2, 4, T)
    for distance in (0, 1, 2, 50, T - 1):
        mean = np.diagonal(rows, -distance, axis1=2, axis2=3).mean(-1)
        np.testing.assert_allclose(found["mean"][:, :, distance], mean, atol=1e-12)
    np.testing.assert_allclose(found["sink"], rows[:, :, 1:, 0].mean(-1), atol=1e-12)
    np.testing.assert_allclose(found["previous"], found["mean"][:, :, 1], atol=1e-12)
    steps = np.arange(T)[:, None] - np.arange(T)
    np.testing.assert_allclose(found["distance"], (rows * steps).sum(-1).mean(-1), rtol=1e-5)
    short = tiny.attention_by_distance(IDS, [1], max_distance=3)
    assert (short["mean"] == found["mean"][1:, :, :4]).all()
    assert (found["learned_sink"] == 0).all()
    one = tiny.attention_by_distance([5])
    assert np.isnan(one["sink"]).all()
    assert (one["mean"] == 1).all()


# ---- The shift test


@pytest.mark.parametrize("name", ["builtin", "llama1_mha_old", "llama3_old"])
@pytest.mark.parametrize("shift", [1, 131_072])
def test_a_shifted_text_has_the_same_logits(name: str, shift: int, chat: Engine) -> None:
    engine = chat if name == "builtin" else Engine.load(GOLDEN / name, dtype="f32")
    ids = [(i * i + 3) % 120 for i in range(60)]
    here, there = engine.logits(ids), engine.logits(ids, start_position=shift)
    assert np.abs(here - there).max() <= 1e-4
    assert not (here == there).all()


def test_what_is_not_relative_shows(tmp_path: Path) -> None:
    dynamic = Engine.load(GOLDEN / "llama_dynamic_old", dtype="f32")
    ids = [(i * i + 3) % 120 for i in range(40)]
    assert np.abs(dynamic.logits(ids) - dynamic.logits(ids, start_position=8192)).max() > 1e-2
    learned = Engine.load(GOLDEN / "gpt2_old", dtype="f32")
    with pytest.raises(RequestError, match=r"^start_position: must be 0 to \d+ for 40 tokens"):
        learned.logits(ids, start_position=10**6)
    assert np.abs(learned.logits(ids) - learned.logits(ids, start_position=5)).max() > 1e-2


# ---- rope_spec


def test_rope_spec_needs_no_weights(tmp_path: Path, folder: Path) -> None:
    from ropechat.engine._core import rope_spec

    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    found = rope_spec(str(tmp_path))
    assert found == rope_spec(str(tmp_path / "config.json")) == rope_spec(str(folder))
    expected = [10000.0 ** (-2 * i / 8) for i in range(4)]
    assert found["ropes"][0]["inv_freq"] == pytest.approx(expected, rel=1e-15)
    assert [layer["rope"] for layer in found["layers"]] == [0, 0]
    assert (found["attention"], found["sinks"], found["position"]) == ("heads", False, "none")
    assert found["attention_multiplier"] == pytest.approx(1 / math.sqrt(8))
