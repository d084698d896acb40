"""GGUF files of models with recurrent layers: what they compute, against goldens."""

from pathlib import Path

import numpy as np
import pytest
from core import load, logits
from gguf_hybrids import ARCHS, HybridConverter
from golden_cases import GOLDEN, Golden

from ropechat.engine._core import check
from ropechat.errors import ConfigError, UnsupportedModelError

FAMILIES = sorted(ARCHS)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_architecture_is_its_family(family: str, tmp_path: Path) -> None:
    """Merged experts, -exp(A_log), moved value heads, multipliers in the weights."""
    file = HybridConverter(GOLDEN / family).write(tmp_path / "model.gguf")
    golden, engine = Golden.read(GOLDEN / family), load(file, context=256)
    for prompt in golden.prompts:
        golden.check(logits(engine, golden.ids(prompt)), f"logits.{prompt}")
    facts = check(str(file))
    assert facts["warnings"] == []
    assert facts["num_parameters"] == check(str(GOLDEN / family))["num_parameters"]


def test_the_first_files_of_qwen3next(tmp_path: Path) -> None:
    """q, k, v and z in one tensor, by key head."""
    golden = Golden.read(GOLDEN / "qwen3_next")
    file = HybridConverter(GOLDEN / "qwen3_next", first_files=True).write(tmp_path / "model.gguf")
    golden.check(logits(load(file, context=256), golden.ids("p33")), "logits.p33")


def test_dimensions_of_length_one_do_not_count(tmp_path: Path) -> None:
    """llama-quantize drops outer ones that the converter writes."""
    converter = HybridConverter(GOLDEN / "kimi_linear")
    tensors = {name: values.squeeze() for name, values in converter.converted().items()}
    converter.converted = lambda: tensors  # type: ignore[method-assign]
    golden = Golden.read(GOLDEN / "kimi_linear")
    engine = load(converter.write(tmp_path / "model.gguf"), context=256)
    golden.check(logits(engine, golden.ids("p33")), "logits.p33")


def test_layers_that_predict_further_tokens_are_not_computed(tmp_path: Path) -> None:
    converter = HybridConverter(GOLDEN / "qwen3_5_moe_text")
    plain = logits(load(converter.write(tmp_path / "a.gguf")), list(range(20)))
    tensors = converter.converted()
    last = {name: values for name, values in tensors.items() if name.startswith("blk.2.")}
    tensors |= {name.replace("blk.2.", "blk.3."): values for name, values in last.items()}
    tensors["blk.3.nextn.eh_proj.weight"] = np.zeros((32, 64))
    converter.converted = lambda: tensors  # type: ignore[method-assign]
    file = converter.write(tmp_path / "b.gguf", block_count=4, nextn_predict_layers=1)
    assert (logits(load(file), list(range(20))) == plain).all()


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    for family, changes, error, named in (
        ("lfm2", {"swing": 1.0}, UnsupportedModelError, r"lfm2\.swing: 1; this key is not known"),
        (
            "lfm2_moe",
            {"expert_gating_func": 1},
            UnsupportedModelError,
            r"lfm2moe\.expert_gating_func: must be 2 \(got 1\)",
        ),
        (
            "jamba",
            {"attention__head_count_kv": [2, 1, 0]},
            UnsupportedModelError,
            r"jamba\.attention\.head_count_kv: must be the same number in all layers with attention",
        ),
        (
            "bamba",
            {"ssm__inner_size": 66},
            ConfigError,
            r"granitehybrid\.ssm\.inner_size: must be a multiple of granitehybrid\.ssm\.time_step_rank, 4",
        ),
        ("qwen3_5_text", {"block_count": 1 << 31}, ConfigError, r"qwen35\.block_count: must be"),
        ("jamba", {"block_count": 2}, ConfigError, r"jamba\.block_count: 2, and the file has tensors of 3"),
    ):
        with pytest.raises(error, match=named):
            check(str(HybridConverter(GOLDEN / family).write(file, **changes)))
