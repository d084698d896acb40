"""The KV cache in types of its own: less memory or time, nearly the same numbers; other names are refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from core import CancelToken, add_score, load
from golden_cases import GOLDEN
from models import write_llama

from ropechat.errors import RequestError

IDS = [(7 * i * i + 3) % 97 for i in range(70)]


def test_bytes_take_about_half_and_stay_near(tmp_path: Path) -> None:
    model = write_llama(tmp_path, head_dim=64, num_attention_heads=2, num_key_value_heads=1, seed=3)
    bytes_of, logits = {}, {}
    for kv in ("f32", "f16", "bf16", "q8_0"):
        engine = load(model, dtype="f32", kv_dtype=kv)
        assert engine.facts["kv_dtype"] == kv
        logits[kv] = np.asarray(engine.logits(IDS, CancelToken()))
        sequence = add_score(engine, IDS)
        while engine.step([sequence], CancelToken()):
            pass
        bytes_of[kv] = engine.kv_bytes
    assert bytes_of["bf16"] == bytes_of["f16"] == bytes_of["f32"] // 2
    assert bytes_of["q8_0"] * 16 == bytes_of["f16"] * 9  # a byte and 4/32 of a scale, where f16 has two
    spread = logits["f32"].std()
    for kv, allowed in (("f16", 5e-4), ("bf16", 4e-3), ("q8_0", 1e-2)):
        off = np.sqrt(np.square(logits[kv] - logits["f32"]).mean()) / spread
        assert 0 < off < allowed, (kv, off)


def test_bytes_keep_the_numbers_of_keys_with_large_biases(tmp_path: Path) -> None:
    """As in Qwen 2.5: keys of 150 in the dimensions that turn slowest, and in one that turns."""
    shape = {"head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 64}
    model = write_llama(tmp_path, attention_bias=True, rope_theta=1e6, seed=3, **shape)
    data = (model / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little") + 8
    begin, end = json.loads(data[8:size])["model.layers.0.self_attn.k_proj.bias"]["data_offsets"]
    bias = np.frombuffer(data[size + begin : size + end], "<f4").copy()
    bias[[27, 31, 62, 63]], bias[10] = (-120, 135, -145, 72), 20
    (model / "model.safetensors").write_bytes(data[: size + begin] + bias.tobytes() + data[size + end :])
    exact, near = (
        np.asarray(load(model, dtype="f32", kv_dtype=kv).logits(IDS, CancelToken())) for kv in ("f32", "q8_0")
    )
    assert np.sqrt(np.square(near - exact).mean()) / exact.std() < 2e-2


@pytest.mark.parametrize("name", ["deepseek_v2_old", "youtu"])
def test_latent_attention_caches_a_latent_and_a_rotated_part(name: str) -> None:
    ids, values, logits = IDS[:64], 16 + 8, {}
    for kv in ("f32", "f16", "q8_0"):
        engine = load(GOLDEN / name, dtype="f32", kv_dtype=kv)
        logits[kv] = np.asarray(engine.logits(ids, CancelToken()))
        sequence = add_score(engine, ids)
        while engine.step([sequence], CancelToken()):
            pass
        layers = engine.facts["num_hidden_layers"]
        assert engine.facts["kv_token_bytes"] == 2 * layers * values
        if kv != "q8_0":
            assert engine.kv_bytes == int(kv[1:]) // 8 * layers * values * len(ids)
    for kv, allowed in (("f16", 2e-3), ("q8_0", 5e-2)):
        off = np.sqrt(np.square(logits[kv] - logits["f32"]).mean()) / logits["f32"].std()
        assert 0 < off < allowed, (kv, off)


def test_an_indexer_caches_a_key_beside_them() -> None:
    engine = load(GOLDEN / "deepseek_v32", dtype="f32")
    assert engine.facts["kv_token_bytes"] == 2 * engine.facts["num_hidden_layers"] * (16 + 8 + 12)


def test_auto_follows_the_weights_and_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_llama(tmp_path)
    assert load(model, dtype="f32").facts["kv_dtype"] == "f32"
    facts = load(model, dtype="q8_0").facts
    assert facts["kv_dtype"] == ("bf16" if facts["isa"] == "avx512-bf16" else "f16")
    monkeypatch.setenv("ROPECHAT_ISA", "scalar")
    assert load(model, dtype="q8_0").facts["kv_dtype"] == "f16"


def test_latents_are_f16_where_bf16_is_asked_for() -> None:
    engine = load(GOLDEN / "deepseek_v2_old", dtype="f32", kv_dtype="bf16")
    assert engine.facts["kv_dtype"] == "f16"


def test_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r'kv_dtype: must be auto, f32, f16, bf16 or q8_0 \(got "q4_0"\)'):
        load(write_llama(tmp_path), kv_dtype="q4_0")
