"""BitNet: ternary matrices, packed or rounded at load, whose inputs the model rounds to bytes.

`test_golden.py` holds the three forms against the definition in f32; here is what they are kept as, and what
is refused.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core import load, logits
from golden_cases import GOLDEN, Golden
from quantized import read_stored, write_stored
from reference import read_safetensors

from ropechat import Engine
from ropechat.errors import RopechatError, TensorError, UnsupportedModelError

OFFLINE, ONLINE, BITLINEAR = (GOLDEN / f"q_bitnet_{name}" for name in ("offline", "online", "bitlinear"))
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize("folder", [OFFLINE, ONLINE, BITLINEAR], ids=lambda folder: folder.name)
def test_matrices_stay_ternary_and_compute_what_the_model_says(folder: Path) -> None:
    """Kept in two bits, with f32 keys and values: only the projection to logits, in bf16, rounds more."""
    golden = Golden.read(folder)
    facts = Engine.check(folder)
    assert set(facts["packed_types"]) == {"tq2_0", "bf16"}
    assert facts["warnings"] == []
    engine = load(folder, dtype="auto", kv_dtype="f32")
    expected = golden.tensors["logits.p33"]
    found = logits(engine, golden.ids("p33"))
    assert np.abs(found - expected).max() < 0.02 * expected.std()
    # A row has the same bits, however much is computed with it.
    np.testing.assert_array_equal(logits(engine, golden.ids("p7")), found[:7])


@pytest.mark.parametrize("dtype", ["q8_0", "bf16"])
def test_other_types_round_their_inputs_too(dtype: str) -> None:
    golden = Golden.read(OFFLINE)
    found = logits(load(OFFLINE, dtype=dtype, kv_dtype="f32"), golden.ids("p33"))
    assert np.corrcoef(found.ravel(), golden.tensors["logits.p33"].ravel())[0, 1] > 0.99


def copy(source: Path, folder: Path, **changes: Any) -> Path:
    """The folder of a case with keys of its quantization_config changed, or without one."""
    shutil.copytree(source, folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] |= changes
    path.write_text(json.dumps(config))
    return folder


def test_floats_become_what_a_packed_file_has(tmp_path: Path) -> None:
    """The same model rounded at load and packed before, whose scale has all bits: the same bits."""
    packed = copy(ONLINE, tmp_path / "packed", quantization_mode="offline")
    tensors = read_stored(ONLINE / "model.safetensors")
    for name, values in read_safetensors(ONLINE / "model.safetensors").items():
        if "_proj" not in name:
            continue
        inverse = np.float32(1) / np.float32(np.abs(values.astype("f8")).mean())
        q = (np.clip(np.rint(values * inverse), -1, 1) + 1).astype("u1").reshape(4, -1, values.shape[1])
        bytes_ = q[0] | q[1] << 2 | q[2] << 4 | q[3] << 6
        tensors[name] = "U8", list(bytes_.shape), bytes_.tobytes()
        tensors[f"{name}_scale"] = "F32", [1], (np.float32(1) / inverse).tobytes()
    write_stored(packed / "model.safetensors", tensors)
    ids = Golden.read(ONLINE).ids("p33")
    for dtype in ("f32", "auto"):
        np.testing.assert_array_equal(
            logits(load(packed, dtype=dtype), ids), logits(load(ONLINE, dtype=dtype), ids)
        )


def test_the_keys_of_published_configs(tmp_path: Path) -> None:
    """Of bitnet-b1.58-2B-4T, and of Llamas of the first such models: older names, keys without effect."""
    older = {"rope_parameters": None, "rope_theta": 500000.0, "torch_dtype": "bfloat16", "use_cache": True}
    older |= {"initializer_range": 0.02, "auto_map": {"AutoConfig": "configuration_bitnet.BitNetConfig"}}
    llama = {"is_bitnet_config": True, "pretraining_tp": 1, "rope_interleaved": False, "mlp_bias": False}
    for source, keys in ((OFFLINE, older), (BITLINEAR, older | llama)):
        golden, folder = Golden.read(source), copy(source, tmp_path / source.name)
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | keys))
        golden.check(logits(load(folder), golden.ids("p7")), "logits.p7")


def test_the_scale_divides_or_multiplies(tmp_path: Path) -> None:
    other = copy(BITLINEAR, tmp_path / "other", linear_class="autobitlinear")
    golden = Golden.read(BITLINEAR)
    with pytest.raises(AssertionError, match="outside"):
        golden.check(logits(load(other), golden.ids("p7")), "logits.p7")


def refusal(folder: Path) -> RopechatError:
    """The error of a check, which a load has too."""
    with pytest.raises(RopechatError) as checked:
        Engine.check(folder)
    with pytest.raises(RopechatError) as loaded:
        load(folder)
    assert str(loaded.value) == str(checked.value)
    assert "\n" not in str(checked.value)
    return checked.value


@pytest.mark.parametrize(
    ("source", "changes", "words"),
    [
        (OFFLINE, {"use_rms_norm": True}, "quantization_config.use_rms_norm: must be absent"),
        (OFFLINE, {"linear_class": "x"}, 'linear_class: must be bitlinear or autobitlinear (got "x")'),
        (OFFLINE, {"modules_to_not_convert": []}, "modules_to_not_convert: must be null or name lm_head"),
        (
            OFFLINE,
            {"modules_to_not_convert": ["lm_head", "layers.*.mlp"]},
            'must be names of modules (got the pattern "layers.*.mlp")',
        ),
        (
            ONLINE,
            {"modules_to_not_convert": ["lm_head", "k_proj"]},
            "some of these matrices that read the same rows are ternary and some are not",
        ),
    ],
)
def test_configs_that_are_not_computed(
    source: Path, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    error = refusal(copy(source, tmp_path / "model", **changes))
    assert isinstance(error, UnsupportedModelError)
    assert words in str(error)


def test_modules_that_stay_numbers(tmp_path: Path) -> None:
    """Their inputs are not rounded either: the model is another one, and has plain matrices."""
    kept = copy(ONLINE, tmp_path / "kept", modules_to_not_convert=["lm_head", "mlp.down_proj"])
    ids = Golden.read(ONLINE).ids("p7")
    assert not np.array_equal(logits(load(kept), ids), logits(load(ONLINE), ids))
    types, all_ternary = (Engine.check(folder)["packed_types"] for folder in (kept, ONLINE))
    assert types["tq2_0"] < all_ternary["tq2_0"]
    assert types["bf16"] > all_ternary["bf16"]


def test_parts_that_do_not_belong_together(tmp_path: Path) -> None:
    path = copy(OFFLINE, tmp_path / "model") / "model.safetensors"
    tensors = read_stored(path)
    _, (rows, columns), data = tensors[Q_PROJ]
    for changed, words in (
        ({f"{Q_PROJ}_scale": None}, f"{Q_PROJ}_scale: the tensor is not in the file"),
        (
            {Q_PROJ: ("U8", [rows // 2, columns], data[: len(data) // 2])},
            f"its shape is [{rows // 2}, {columns}]; [{rows}, {columns}] is expected (bitnet, autobitlinear)",
        ),
        (
            {Q_PROJ: ("I8", [rows, columns], data)},
            "it is stored as I8; U8 is expected (bitnet, autobitlinear)",
        ),
        (
            {Q_PROJ: ("BF16", [4 * rows, columns], bytes(8 * len(data)))},
            f"its shape is [{4 * rows}, {columns}]; [{rows}, {columns}] is expected",
        ),
    ):
        write_stored(path, {name: part for name, part in (tensors | changed).items() if part})
        error = refusal(path.parent)
        assert isinstance(error, TensorError)
        assert words in str(error)
