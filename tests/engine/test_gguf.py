"""GGUF files: what they compute, against goldens and against the same models as safetensors."""

from pathlib import Path

import numpy as np
import pytest
from core import generate, load, logits, score
from gguf_converter import ARCHS, Converter
from gguf_files import write
from golden_cases import CASES, GOLDEN, QUANTIZED_CASES, Golden, model_type

from ropechat import Engine, Sampling
from ropechat.engine._core import check, gguf_metadata
from ropechat.errors import ConfigError, TensorError, UnsupportedModelError

FOLDERS = sorted(path.parent for path in (GOLDEN / "gguf").glob("*/golden.safetensors"))
FILES = sorted(file for folder in FOLDERS for file in folder.glob("*.gguf"))
# Says what no GGUF file can: dynamic NTK, a window that llama lacks there, another GELU, scales by layer.
BEYOND = {
    "llama_dynamic_old",
    "mistral_old",
    "gpt_neox_new",
    "gpt2_inverse_layers_old",
    "gpt2_unscaled_old",
}


PLAIN_CASES = [folder for folder in CASES if folder not in QUANTIZED_CASES]
CONVERTED = [folder for folder in PLAIN_CASES if model_type(folder) in ARCHS and folder.name not in BEYOND]


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_file_in_f32_is_what_its_numbers_say(file: Path, isa: str) -> None:
    golden, engine = Golden.read(file.parent), load(file, context=256, threads=2)
    golden.check(logits(engine, golden.ids("p33")), f"{file.stem}.logits.p33")
    golden.check(logits(engine, golden.ids("long"))[-8:], f"{file.stem}.logits_last.long")
    expected = golden.tensors[f"{file.stem}.greedy.output_ids"].tolist()
    assert generate(engine, golden.ids("p33"), len(expected))[0] == expected


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_auto_keeps_what_the_file_has(file: Path) -> None:
    """Its type, and numbers as near as kernels that round their input can be: these weights are random."""
    golden, engine = Golden.read(file.parent), load(file, context=256, dtype="auto", kv_dtype="f32")
    kept = file.stem
    assert engine.facts["dtype"] == kept
    expected = golden.tensors[f"{file.stem}.logits.p33"]
    found = logits(engine, golden.ids("p33"))
    apart = np.abs(found - expected).mean() / expected.std()
    assert apart < {"f32": 1e-5, "f16": 1e-3}.get(kept, 0.06)
    assert (found.argmax(axis=1) == expected.argmax(axis=1)).mean() >= 0.7


@pytest.mark.parametrize("folder", CONVERTED, ids=lambda folder: folder.name)
def test_an_architecture_is_its_family(folder: Path, tmp_path: Path) -> None:
    """The golden models as the converter stores them: moved rows, merged experts, other names."""
    file = Converter(folder).write(tmp_path / "model.gguf")
    golden, engine = Golden.read(folder), load(file, context=256)
    for prompt in ("p7", "p33", "long"):
        golden.check(logits(engine, golden.ids(prompt)), f"logits.{prompt}")
    facts = check(str(file))
    assert facts["warnings"] == []
    assert facts["num_parameters"] >= check(str(folder))["num_parameters"]


@pytest.mark.parametrize("name", ["deepseek_v2_old", "deepseek_v3_old"])
def test_latent_attention_in_newer_files(name: str, tmp_path: Path) -> None:
    golden = Golden.read(GOLDEN / name)
    file = Converter(GOLDEN / name, apart=True).write(tmp_path / "model.gguf")
    engine = load(file, context=256)
    for prompt in ("p7", "p33", "long"):
        golden.check(logits(engine, golden.ids(prompt)), f"logits.{prompt}")


def test_every_architecture_has_a_case() -> None:
    assert {model_type(folder) for folder in CONVERTED} == set(ARCHS)


@pytest.mark.parametrize(
    "name",
    ["llama3/q8_0", "llama3/q4_0", "llama3/f16", "llama_k256/q6_k", "llama_k256/q5_k", "llama_k256/q4_k"],
)
def test_rows_do_not_see_their_company(name: str, rng: np.random.Generator) -> None:
    """Law 1, on weights that were taken over block by block."""
    file = GOLDEN / f"gguf/{name}.gguf"
    one, two = load(file, dtype="auto", threads=1), load(file, dtype="auto", threads=2)
    prompts = [rng.integers(0, 64, length).tolist() for length in (3, 40, 71)]
    together = score(two, *prompts)
    for prompt, rows in zip(prompts, together, strict=True):
        assert score(one, prompt)[0] == rows
    grown = generate(one, prompts[1], 12)
    assert generate(two, prompts[1], 12)[:2] == grown[:2]


@pytest.mark.parametrize(
    ("name", "dtype", "words"),
    [
        ("llama_k256/q4_k", "auto", "mixed, as stored (q6_k, q4_k)"),
        ("llama_k256/q5_k", "auto", "mixed, as stored (q6_k, q5_k)"),
        ("llama_k256/q6_k", "auto", "q6_k, as stored"),
        ("llama_k256/q4_k", "q8_0", "q8_0, made from q4_k, q6_k"),
        ("llama3/f16", "auto", "f16, as stored"),
    ],
)
def test_the_types_of_a_file_are_said(name: str, dtype: str, words: str) -> None:
    assert load(GOLDEN / f"gguf/{name}.gguf", dtype=dtype).facts["notes"][0].startswith(f"dtype: {words} (")


def test_the_python_engine_takes_a_file() -> None:
    file = GOLDEN / "gguf/qwen2/q8_0.gguf"
    engine = Engine.load(file, dtype="f32")
    assert engine.facts["model_type"] == "qwen2"
    assert engine.facts["tensor_types"].keys() == {"F32", "Q8_0"}
    assert sum(engine.facts["tensor_types"].values()) == engine.facts["num_parameters"]
    golden = Golden.read(file.parent)
    steps = list(engine.generate(golden.ids("p33"), Sampling(temperature=0, max_tokens=6)))
    expected = golden.tensors["q8_0.greedy.output_ids"].tolist()
    assert [step.id for step in steps] == expected[: len(steps)]


def test_a_file_of_another_name_is_a_gguf_by_what_it_holds(tmp_path: Path) -> None:
    stored = tmp_path / "sha256-0"
    stored.write_bytes((GOLDEN / "gguf/llama3/q8_0.gguf").read_bytes())
    found, expected = Engine.load(stored), Engine.load(GOLDEN / "gguf/llama3/q8_0.gguf")
    assert (found.stop_ids, found.has_chat_template) == (expected.stop_ids, expected.has_chat_template)
    assert found.tokenizer.encode("Hello there") == expected.tokenizer.encode("Hello there")


def test_metadata_comes_out_whole() -> None:
    metadata = gguf_metadata(str(GOLDEN / "gguf/llama3/f16.gguf"))
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.rope.freq_base"] == 500_000.0
    assert metadata["tokenizer.ggml.add_bos_token"] is False
    assert metadata["tokenizer.ggml.eos_token_id"] == 2
    assert len(metadata["tokenizer.ggml.tokens"]) == 288
    assert set(map(type, metadata["tokenizer.ggml.token_type"])) == {int}


def test_a_text_that_is_not_utf8_is_bytes(tmp_path: Path) -> None:
    file = write(tmp_path / "x.gguf", {"a": "xy", "b": ["xy", "z"]}, {})
    file.write_bytes(file.read_bytes().replace(b"xy", b"x\xff"))
    assert gguf_metadata(str(file)) == {"a": b"x\xff", "b": [b"x\xff", "z"]}


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    """Law 6: a key of the architecture that nobody reads is an error that names it, as the file does."""
    converter = Converter(GOLDEN / "qwen3_new")
    file = tmp_path / "model.gguf"
    for key, value, named in (
        ("swing", 1.0, r"qwen3\.swing: 1; this key is not known"),
        ("attention__value_length", 8, r"qwen3\.attention\.value_length: must be 16, the width of keys"),
        ("expert_count", 4, r"qwen3\.expert_count: must be 0, .* \(got 4\)"),
        ("rope__scaling__type", "dynamic", r"qwen3\.rope\.scaling\.type: .* \(got the text \"dynamic\"\)"),
    ):
        with pytest.raises(UnsupportedModelError, match=named):
            check(str(converter.write(file, **{key: value})))
    for key, value, named in (
        (
            "rope__dimension_count",
            8,
            r"qwen3\.rope\.dimension_count: must be the head's width \(16\) \(got 8\)",
        ),
        ("attention__head_count_kv", 3, r"qwen3\.attention\.head_count_kv: must be a divisor .* \(got 3\)"),
        ("block_count", 2, r"qwen3\.block_count: 2, and the file has tensors of 3 layers"),
        ("attention__layer_norm_rms_epsilon", -1.0, r"qwen3\.attention\.layer_norm_rms_epsilon: .* \(got -1"),
    ):
        with pytest.raises(ConfigError, match=named):
            check(str(converter.write(file, **{key: value})))
    with pytest.raises(TensorError, match=r"token_embd\.weight: its shape is \[128, 48\]; \[127, 48\]"):
        check(str(converter.write(file, vocab_size=127)))


def test_what_a_file_leaves_out(tmp_path: Path) -> None:
    """As many key/value heads as queries and the base 10000, where smollm3's class says 4 and 2e6."""
    converter = Converter(GOLDEN / "smollm3_old")
    same = {"rope__freq_base": 1e4, "attention__head_count_kv": 2}
    said = logits(load(converter.write(tmp_path / "a.gguf", **same)), list(range(20)))
    unsaid = logits(load(converter.write(tmp_path / "b.gguf", rope__freq_base=None)), list(range(20)))
    assert (said == unsaid).all()
    with pytest.raises(TensorError, match=r"attn_k\.weight: its shape is \[24, 48\]; \[48, 48\]"):
        check(str(converter.write(tmp_path / "c.gguf", attention__head_count_kv=None)))
    for key in ("context_length", "attention__layer_norm_rms_epsilon"):
        with pytest.raises(ConfigError, match=rf"smollm3\.{key.replace('__', '.')}: it is missing"):
            check(str(converter.write(tmp_path / "d.gguf", **{key: None})))


def test_gemma_scales_scores_by_the_width_of_a_head(tmp_path: Path) -> None:
    """That is what files without `attention.scale` mean; the golden's own scale is another."""
    converter, ids = Converter(GOLDEN / "gemma2_old"), list(range(30))
    unsaid = logits(load(converter.write(tmp_path / "a.gguf", attention__scale=None)), ids)
    said = logits(load(converter.write(tmp_path / "b.gguf", attention__scale=16**-0.5)), ids)
    assert (unsaid == said).all()
    assert np.abs(unsaid - logits(load(GOLDEN / "gemma2_old"), ids)).max() > 0.01


def test_a_window_pattern_is_a_number_or_a_list(tmp_path: Path) -> None:
    """gemma3's windows: the list of the golden file; the same as a number; another is another model."""
    golden, converter = Golden.read(GOLDEN / "gemma3_text_old"), Converter(GOLDEN / "gemma3_text_old")
    ids = golden.ids("long")
    for pattern in ([True, True, False, True], 3):
        file = converter.write(tmp_path / "a.gguf", attention__sliding_window_pattern=pattern)
        golden.check(logits(load(file), ids), "logits.long")
    other = converter.write(tmp_path / "b.gguf", attention__sliding_window_pattern=2)
    assert np.abs(logits(load(other), ids) - golden.tensors["logits.long"]).max() > 0.1


def test_settings_of_the_sampler(tmp_path: Path) -> None:
    """llama.cpp's keys under the names of ropechat's settings."""
    converter = Converter(GOLDEN / "qwen3_new")
    keys = {"temp": 0.5, "top_k": 7, "top_p": 0.75, "min_p": 0.25, "penalty_repeat": 1.25}
    keys |= {"xtc_probability": 0.125, "xtc_threshold": 0.375, "penalty_last_n": 9}
    metadata = converter.metadata() | {f"general.sampling.{key}": value for key, value in keys.items()}
    file = write(tmp_path / "x.gguf", metadata, converter.converted())
    found = {"temperature": 0.5, "top_k": 7, "top_p": 0.75, "min_p": 0.25, "repetition_penalty": 1.25}
    found |= {"xtc_probability": 0.125, "xtc_threshold": 0.375}
    assert check(str(file))["generation"] == load(file).facts["generation"] == found
    assert check(str(converter.write(file)))["generation"] == {}
