"""GGUF files of newer families: what they compute, and what of them is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf_converter
import numpy as np
import pytest
from core import load, logits
from gguf_converter import Converter
from gguf_facts import FACTS
from gguf_newer import NewerConverter
from golden_cases import CASES, GOLDEN, QUANTIZED_CASES, Golden, model_type
from quantized import write_stored

from ropechat.engine._core import check
from ropechat.errors import ConfigError, RefusedInputError

PLAIN_CASES = [folder for folder in CASES if folder not in QUANTIZED_CASES]
NEWER = [folder for folder in PLAIN_CASES if model_type(folder) in FACTS]


@pytest.mark.parametrize("folder", NEWER, ids=lambda folder: folder.name)
def test_an_architecture_is_its_family(folder: Path, tmp_path: Path) -> None:
    """A golden model as the converter stores it: its logits.

    Where llama.cpp takes another value for granted, they are those of a model folder that has it.
    """
    converter, golden = NewerConverter(folder), Golden.read(folder)
    file = converter.write(tmp_path / "model.gguf")
    engine = load(file, context=256)
    granted = None
    if converter.facts.granted:
        granted = load(converter.as_granted(folder, tmp_path / "granted"), context=256)
    for prompt in golden.prompts:
        found = logits(engine, golden.ids(prompt))
        if granted is None:
            golden.check(found, f"logits.{prompt}")
        else:
            expected = logits(granted, golden.ids(prompt))
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=golden.atol)
    assert check(str(file))["warnings"] == []


def test_every_family_has_a_case() -> None:
    assert {model_type(folder) for folder in NEWER} == set(FACTS)


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("llama3_new", "internlm2"),
        ("llama3_new", "exaone"),
        ("granite_old", "minicpm"),
        ("qwen2_old", "qwen2vl"),
        ("qwen3_new", "qwen3vl"),
        ("qwen3_moe_old", "qwen3vlmoe"),
    ],
)
def test_a_family_under_another_name(
    name: str, arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if arch == "exaone":  # its rows are not moved
        monkeypatch.setattr(gguf_converter, "_MOVED", set())
    golden, converter = Golden.read(GOLDEN / name), Converter(GOLDEN / name)
    converter.arch = arch
    engine = load(converter.write(tmp_path / "model.gguf"), context=256)
    golden.check(logits(engine, golden.ids("p33")), "logits.p33")


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    """They are the last ones that the file counts, whether their tensors are there or not."""
    golden, converter = Golden.read(GOLDEN / "glm4_moe"), NewerConverter(GOLDEN / "glm4_moe")
    of_layer = {"blk.2.nextn.eh_proj.weight": np.zeros((32, 64)), "blk.2.attn_norm.weight": np.ones(32)}
    for tensors in ({}, of_layer):
        file = tmp_path / f"{len(tensors)}.gguf"
        converter.write(file, tensors, block_count=3, nextn_predict_layers=1)
        golden.check(logits(load(file), golden.ids("p33")), "logits.p33")
        assert check(str(file))["warnings"] == []
    with pytest.raises(ConfigError, match=r"glm4moe\.block_count: 3, and the file has tensors of 2 layers"):
        check(str(converter.write(tmp_path / "model.gguf", block_count=3)))


@pytest.mark.parametrize(
    ("case", "key", "value", "named"),
    [
        ("glm4_moe", "expert_gating_func", 1, r"must be 2 \(got 1\)"),
        ("granitemoe", "rope.scaling.finetuned", False, "must be true"),
        ("exaone_moe", "rope.freq_base_swa", 5.0, "must be the base of all layers"),
        ("minimax_m2", "expert_weights_scale", 2.0, "2; this key is not known"),
        ("hunyuan_v1_moe", "expert_shared_count", 2, r"must be 1 \(got 2\)"),
        ("hunyuan_v1_moe", "expert_shared_feed_forward_length", 8, "must be the width of the other experts"),
        ("gemma4_text", "rope.dimension_count_swa", 8, r"must be the width of keys \(got 8\)"),
        ("gemma3n_text", "activation_sparsity_scale", [1.0], r"must have one number per layer, 4 \(got 1\)"),
        ("cohere2_moe", "expert_gating_func", 3, r"must be 1 \(softmax\) or 2 \(sigmoid\)"),
        ("mimo_v2_flash", "attention.head_count_kv", [2, 2], "must be twice as many in layers with a window"),
    ],
)
def test_what_an_architecture_does_not_compute(
    case: str, key: str, value: Any, named: str, tmp_path: Path
) -> None:
    converter = NewerConverter(GOLDEN / case)
    file = converter.write(tmp_path / "model.gguf", **{key.replace(".", "__"): value})
    with pytest.raises(RefusedInputError, match=rf"{converter.facts.arch}\.{key}: {named}"):
        check(str(file))


def test_the_activation_of_bitnet(tmp_path: Path) -> None:
    """llama.cpp's files may state it; without it, heads that share keys leave open which model it is."""
    golden, converter = Golden.read(GOLDEN / "bitnet"), NewerConverter(GOLDEN / "bitnet")
    converter.facts = replace(converter.facts, arch="bitnet")
    linear = {"rope__scaling__type": "linear", "rope__scaling__factor": 1.0}
    stated = converter.write(tmp_path / "stated.gguf", hidden_activation="relu2", **linear)
    golden.check(logits(load(stated), golden.ids("p33")), "logits.p33")
    with pytest.raises(RefusedInputError, match=r"bitnet\.hidden_activation: it is missing; .relu2. or"):
        check(str(converter.write(tmp_path / "missing.gguf")))

    several = {"num_key_value_heads": converter.config["num_attention_heads"]}
    folder = tmp_path / "silu"
    converter.config |= several | {"hidden_act": "silu"}
    for name, values in converter.tensors.items():
        if "k_proj" in name or "v_proj" in name:
            converter.tensors[name] = np.concatenate([values, values])
    unstated = converter.write(tmp_path / "unstated.gguf")
    write_stored(
        converter.as_granted(GOLDEN / "bitnet", folder) / "model.safetensors",
        {name: ("F32", list(values.shape), values.tobytes()) for name, values in converter.tensors.items()},
    )
    found, expected = (logits(load(model), golden.ids("p33")) for model in (unstated, folder))
    np.testing.assert_array_equal(found, expected)


def test_divisors_of_gemma_4(tmp_path: Path) -> None:
    """Ones and then 1e30: other divisors would be another rope."""
    converter = NewerConverter(GOLDEN / "gemma4_text")
    for values, given in (([1.0] * 6 + [8.0] * 6, 12), ([1.0] * 6, 6)):
        tensors = {"rope_freqs.weight": np.array(values)}
        with pytest.raises(RefusedInputError, match=rf"rope_freqs.weight: must hold 12 .* \(got {given}\)"):
            check(str(converter.write(tmp_path / "model.gguf", tensors)))


def test_keys_that_do_nothing_here(tmp_path: Path) -> None:
    golden, converter = Golden.read(GOLDEN / "minimax_m2"), NewerConverter(GOLDEN / "minimax_m2")
    same: dict[str, Any] = {
        "expert_group_count": 1,
        "expert_weights_scale": 1.0,
        "rope__dimension_sections": [4, 2, 2, 0],
    }
    engine = load(converter.write(tmp_path / "model.gguf", **same))
    golden.check(logits(engine, golden.ids("p33")), "logits.p33")
