"""Quantized checkpoints: every layout has the bits of its values, integers are kept, faults are one line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core import load, logits
from golden_cases import GOLDEN
from quantized import LAYOUTS, quantize_copy, read_stored, write_quantized, write_stored

from ropechat import Engine
from ropechat.errors import ConfigError, RopechatError, TensorError, UnsupportedModelError

IDS = [1, 5, 9, 60, 33, 2, 17]
GPTQ = GOLDEN / "q_gptq_g32"
Q_PROJ = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_has_the_bits_of_its_values(name: str, tmp_path: Path) -> None:
    """In f32 the logits are those of the dequantized weights, bit for bit; by default integers are kept."""
    layout = LAYOUTS[name]
    quantized, plain = write_quantized(tmp_path, layout)
    expected = logits(load(plain), IDS)
    assert np.isfinite(expected).all()
    assert expected.std() > 0.1
    np.testing.assert_array_equal(logits(load(quantized), IDS), expected)
    facts, of_plain = Engine.check(quantized), Engine.check(plain)
    assert facts["warnings"] == []
    assert facts["num_parameters"] == of_plain["num_parameters"]
    packed = facts["packed_types"]
    assert layout.kept in packed
    assert sum(packed.values()) <= sum(of_plain["packed_types"].values())
    assert sum(packed.values()) == load(quantized, dtype="auto").facts["weight_bytes"]
    near = logits(load(quantized, dtype="auto"), IDS)
    assert np.corrcoef(near.ravel(), expected.ravel())[0, 1] > 0.99


def test_rows_that_fill_no_block_are_floats(tmp_path: Path) -> None:
    """136 inputs in groups of 64: the last block of 32 would be short."""
    shape = {"hidden_size": 136, "intermediate_size": 136}
    quantized, plain = write_quantized(tmp_path, LAYOUTS["gptq_4_group_64_short"], **shape)
    np.testing.assert_array_equal(logits(load(quantized), IDS), logits(load(plain), IDS))
    assert set(Engine.check(quantized)["packed_types"]) == {"f16", "f32", "q4_1"}  # q4_1: o_proj, of 128


def test_mixed_config_groups(tmp_path: Path) -> None:
    """Two schemes in one file: each matrix is read by the one that its parts have the sizes of."""
    quantized, plain = write_quantized(tmp_path, LAYOUTS["ct_4_zero_points"])
    config = json.loads((quantized / "config.json").read_text())
    groups = config["quantization_config"]["config_groups"]
    groups["a_group"] = {"weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}}
    (quantized / "config.json").write_text(json.dumps(config))
    np.testing.assert_array_equal(logits(load(quantized), IDS), logits(load(plain), IDS))


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("ct_4_zero_points", {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": True}),
        ("ct_4_zero_points", {"num_bits": 4, "strategy": "group", "group_size": 64, "symmetric": False}),
        ("ct_4_channel_zero_points", {"num_bits": 4, "strategy": "channel", "symmetric": True}),
        ("ct_8_bytes_group", {"num_bits": 8, "strategy": "channel", "symmetric": False}),
        ("ct_8_bytes_tensor", {"num_bits": 8, "strategy": "tensor", "symmetric": True}),
    ],
)
def test_schemes_of_equal_bits_in_one_file(name: str, other: dict[str, Any], tmp_path: Path) -> None:
    """A matrix has the scheme whose scales and zero points the file has, not the first of its bits."""
    quantized, plain = write_quantized(tmp_path, LAYOUTS[name])
    config = json.loads((quantized / "config.json").read_text())
    groups = config["quantization_config"]["config_groups"]
    groups |= {"a_group": {"weights": {"type": "int", **other}}}
    config["quantization_config"]["config_groups"] = dict(sorted(groups.items()))
    (quantized / "config.json").write_text(json.dumps(config))
    np.testing.assert_array_equal(logits(load(quantized), IDS), logits(load(plain), IDS))


@pytest.mark.parametrize("layout", ["fp8_block", "bnb_fp4"])
@pytest.mark.parametrize(
    "case",
    ["deepseek_v3_old", "falcon7_old", "glm4_old", "gpt_neox_parallel_old", "mixtral_old", "phi3_plain_old"],
)
def test_families_take_quantized_matrices_apart(case: str, layout: str, tmp_path: Path) -> None:
    """Latent attention, experts, q, k and v in one matrix: rows in any order."""
    names = r"proj|query_key_value|dense|w[123]\b"
    quantized, plain = quantize_copy(GOLDEN / case, tmp_path, LAYOUTS[layout], names=names)
    expected = logits(load(plain), IDS)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(logits(load(quantized), IDS), expected)


def test_a_matrix_stored_in_out_is_refused(tmp_path: Path) -> None:
    quantized, _ = quantize_copy(GOLDEN / "gpt2_old", tmp_path, LAYOUTS["fp8_block"], names=r"c_attn\.weight")
    error = refusal(quantized)
    assert isinstance(error, UnsupportedModelError)
    assert "c_attn.weight: a matrix that is stored [in, out] is not read in this scheme (fp8" in str(error)


def copy(folder: Path, source: Path = GPTQ) -> Path:
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((source / name).read_bytes())
    return folder


def refusal(folder: Path) -> RopechatError:
    """The error of a check, in one line; a load has one of the same kind, perhaps of another matrix."""
    with pytest.raises(RopechatError) as checked:
        Engine.check(folder)
    with pytest.raises(RopechatError) as loaded:
        load(folder)
    assert type(loaded.value) is type(checked.value)
    assert "\n" not in str(checked.value) + str(loaded.value)
    return checked.value


@pytest.mark.parametrize("end", ["scales", "qzeros", "qweight"])
def test_a_part_that_is_missing(end: str, tmp_path: Path) -> None:
    path = copy(tmp_path) / "model.safetensors"
    tensors = read_stored(path)
    del tensors[f"{Q_PROJ}.{end}"]
    write_stored(path, tensors)
    error = refusal(tmp_path)
    assert isinstance(error, TensorError)
    assert f"{Q_PROJ}.{end}" in str(error)
    assert "model.safetensors" in str(error)


def test_a_refused_file_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    path = copy(tmp_path) / "model.safetensors"
    tensors = read_stored(path)
    del tensors[f"{Q_PROJ}.scales"]
    write_stored(path, tensors)
    for arguments in (["models", "check", str(tmp_path)], ["run", "-m", str(tmp_path), "a"]):
        command = [
            sys.executable,
            "-c",
            "import sys; from ropechat.cli import main; sys.exit(main())",
            *arguments,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1
        assert f"model.safetensors: {Q_PROJ}.scales: the tensor is not in the file" in done.stderr


@pytest.mark.parametrize("end", ["scales", "qzeros", "qweight", "g_idx"])
def test_a_part_of_another_shape(end: str, tmp_path: Path) -> None:
    path = copy(tmp_path) / "model.safetensors"
    tensors = read_stored(path)
    dtype, shape, data = tensors[f"{Q_PROJ}.{end}"]
    half = [*shape[:-1], shape[-1] // 2]
    tensors[f"{Q_PROJ}.{end}"] = dtype, half, data[: len(data) // 2]
    write_stored(path, tensors)
    error = refusal(tmp_path)
    assert isinstance(error, TensorError)
    assert f"{Q_PROJ}.{end}: its shape is {half}; {shape} is expected (gptq, 4 bits, groups of 32)" in str(
        error
    )


def test_parts_with_impossible_contents(tmp_path: Path) -> None:
    path = copy(tmp_path) / "model.safetensors"
    tensors = read_stored(path)
    dtype, shape, data = tensors[f"{Q_PROJ}.g_idx"]
    for entry in (2, 1 << 30, -5):
        listed = np.frombuffer(data, "<i4").copy()
        listed[7] = entry
        write_stored(path, tensors | {f"{Q_PROJ}.g_idx": (dtype, shape, listed.tobytes())})
        assert f"g_idx: its entries must be groups from 0 to 1 (got {entry})" in str(refusal(tmp_path))
    write_stored(path, tensors | {f"{Q_PROJ}.scales": ("I16", *tensors[f"{Q_PROJ}.scales"][1:])})
    assert "scales: it is stored as I16; F32 or F16" in str(refusal(tmp_path))


def test_states_of_bitsandbytes(tmp_path: Path) -> None:
    path = copy(tmp_path, GOLDEN / "q_bnb_nf4") / "model.safetensors"
    tensors = read_stored(path)
    name = f"{Q_PROJ}.weight.quant_state.bitsandbytes__nf4"
    state = json.loads(tensors[name][2])
    for text, words in (
        ("{", "EOF"),
        ("[]", "shape: must be a list of dimensions"),
        (json.dumps(state | {"blocksize": 0}), "blocksize: must be a positive integer"),
        (json.dumps(state | {"shape": [64, 32]}), "shape: [64, 32]; [64, 64] is expected"),
        (json.dumps(state | {"nested_offset": 0.1}), "nested_blocksize: must be a positive integer"),
        (json.dumps(state | {"blocksize": 32}), "absmax: its shape is [64]; [128] is expected"),
    ):
        data = text.encode()
        write_stored(path, tensors | {name: ("U8", [len(data)], data)})
        error = refusal(tmp_path)
        assert isinstance(error, TensorError)
        assert words in str(error)
    del tensors[name]
    write_stored(path, tensors)
    assert f"{name}: the tensor is not in the file" in str(refusal(tmp_path))


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"quant_method": "foo"}, UnsupportedModelError, 'quant_method "foo" is not read; these are: fp8,'),
        ({"quant_method": None}, ConfigError, "quant_method: it is missing"),
        ({"bits": 5}, UnsupportedModelError, "bits: must be 2, 3, 4 or 8 (got 5)"),
        ({"bits": 8}, TensorError, "qweight: its shape is [12, 64]; [24, 64] is expected"),
        ({"group_size": 0}, ConfigError, "group_size: must be a whole number from 1"),
        ({"group_size": 16}, TensorError, "qzeros: its shape is"),
        ({"checkpoint_format": "marlin"}, UnsupportedModelError, 'must be gptq or gptq_v2 (got "marlin")'),
        ({"rotation": "hadamard"}, UnsupportedModelError, "rotation: must be absent"),
        ({"quant_method": "awq", "version": "gemv"}, UnsupportedModelError, 'must be gemm (got "gemv")'),
    ],
)
def test_a_scheme_that_is_not_read(
    changes: dict[str, object], kind: type[RopechatError], words: str, tmp_path: Path
) -> None:
    path = copy(tmp_path) / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] |= changes
    path.write_text(json.dumps(config))
    error = refusal(tmp_path)
    assert isinstance(error, kind)
    assert words in str(error)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"type": "float", "num_bits": 4}, "type: must be int of 2, 4 or 8 bits, or float of 8"),
        ({"strategy": "attn_head"}, "strategy: must be tensor or channel or group or block"),
        ({"strategy": "block"}, "block_structure: it is missing"),
    ],
)
def test_weights_of_compressed_tensors_that_are_not_read(
    weights: dict[str, object], words: str, tmp_path: Path
) -> None:
    path = copy(tmp_path, GOLDEN / "q_ct_int4_group") / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["config_groups"]["group_0"]["weights"] |= weights
    path.write_text(json.dumps(config))
    error = str(refusal(tmp_path))
    assert "quantization_config.config_groups.group_0.weights." in error
    assert words in error
