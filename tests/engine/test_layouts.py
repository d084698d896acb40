"""The same weights in another layout or under other keys: the same logits."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core import load, logits
from golden_cases import GOLDEN, Golden
from quantized import Stored, read_stored, write_stored

from ropechat.errors import TensorError

EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


def write(folder: Path, case: str, tensors: dict[str, Stored], **changes: Any) -> Path:
    """A golden case with other tensors and keys."""
    config = json.loads((GOLDEN / case / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    shutil.copyfile(GOLDEN / case / "generation_config.json", folder / "generation_config.json")
    write_stored(folder / "model.safetensors", tensors)
    return folder


@pytest.mark.parametrize("case", ["qwen3_5_moe_text", "glm4_moe", "deepseek_v32"])
def test_experts_in_one_tensor(case: str, tmp_path: Path) -> None:
    """experts.gate_up_proj [experts, gate and up, in] and experts.down_proj, as transformers 5 holds them."""
    parts: dict[str, dict[str, list[Stored]]] = {}
    rest = {}
    for name, tensor in read_stored(GOLDEN / case / "model.safetensors").items():
        found = EXPERT.fullmatch(name)
        if found is None:
            rest[name] = tensor
            continue
        lists = parts.setdefault(found[1], {"gate": [], "up": [], "down": []})
        assert len(lists[found[3]]) == int(found[2]), "experts are stored in the order of their numbers"
        lists[found[3]].append(tensor)
    assert parts
    for path, lists in parts.items():
        (dtype, (width, hidden), _), count = lists["gate"][0], len(lists["gate"])
        both = b"".join(gate[2] + up[2] for gate, up in zip(lists["gate"], lists["up"], strict=True))
        rest[f"{path}.gate_up_proj"] = (dtype, [count, 2 * width, hidden], both)
        down = b"".join(part[2] for part in lists["down"])
        rest[f"{path}.down_proj"] = (dtype, [count, hidden, width], down)
    ids = Golden.read(GOLDEN / case).ids("long")
    found_logits = logits(load(write(tmp_path, case, rest)), ids)
    np.testing.assert_array_equal(found_logits, logits(load(GOLDEN / case), ids))


def bf16(tensor: Stored) -> np.ndarray:
    dtype, shape, data = tensor
    assert dtype == "BF16"
    return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)


def f32(values: np.ndarray) -> Stored:
    return "F32", list(values.shape), values.astype(np.float32).tobytes()


def test_the_names_of_deepseek_v4_as_published(tmp_path: Path) -> None:
    """No base, and other names of the embedding and of the last hyper-connection."""
    published = {}
    for name, tensor in read_stored(GOLDEN / "deepseek_v4" / "model.safetensors").items():
        name = name.removeprefix("model.").replace("hc_head.hc_", "hc_head_")
        published[name.replace("embed_tokens.", "embed.")] = tensor
    assert {"embed.weight", "norm.weight", "hc_head_fn", "layers.0.attn.wq_a.weight"} <= set(published)
    ids = Golden.read(GOLDEN / "deepseek_v4").ids("long")
    found = logits(load(write(tmp_path, "deepseek_v4", published)), ids)
    np.testing.assert_array_equal(found, logits(load(GOLDEN / "deepseek_v4"), ids))


@pytest.mark.parametrize(("dtype", "last"), [("I64", 4), ("I64", -1), ("F32", 0)])
def test_a_table_of_experts_that_is_wrong_is_refused(dtype: str, last: int, tmp_path: Path) -> None:
    stored = read_stored(GOLDEN / "deepseek_v4" / "model.safetensors")
    name = "model.layers.0.ffn.gate.tid2eid"
    _, shape, data = stored[name]
    table = np.frombuffer(data, "<i8").copy()
    table[-1] = last
    stored[name] = (dtype, shape, (table if dtype == "I64" else table.astype("<f4")).tobytes())
    expected = f"from 0 to 3 .got {last}" if dtype == "I64" else "I32 or I64 is expected"
    with pytest.raises(TensorError, match=rf"tid2eid: .*{expected}"):
        load(write(tmp_path, "deepseek_v4", stored))


def test_experts_in_a_latent(tmp_path: Path) -> None:
    """A latent that holds the row in another order changes no expert; two orders that differ do."""
    golden = Golden.read(GOLDEN / "nemotron_h")
    stored = read_stored(GOLDEN / "nemotron_h" / "model.safetensors")
    router = next(name for name in stored if name.endswith("mixer.gate.weight"))
    hidden = stored[router][1][1]
    order = np.random.default_rng(5).permutation(hidden + 3)[:hidden]
    into = np.zeros((hidden + 3, hidden), np.float32)
    into[order, np.arange(hidden)] = 1
    tensors: dict[str, Stored] = {}
    for name, tensor in stored.items():
        if ".experts." in name:
            down = name.endswith("down_proj.weight")
            tensors[name] = f32(into @ bf16(tensor) if down else bf16(tensor) @ into.T)
        else:
            tensors[name] = tensor
        if name.endswith("mixer.gate.weight"):
            path = name.removesuffix("gate.weight")
            tensors[f"{path}fc1_latent_proj.weight"] = f32(into)
            tensors[f"{path}fc2_latent_proj.weight"] = f32(into.T)
    model = write(tmp_path, "nemotron_h", tensors, moe_latent_size=hidden + 3)
    golden.check(logits(load(model), golden.ids("long")), "logits.long")
    path = router.removesuffix("gate.weight")
    tensors[f"{path}fc2_latent_proj.weight"] = f32(np.roll(into.T, 1, axis=0))
    write_stored(model / "model.safetensors", tensors)
    with pytest.raises(AssertionError, match="outside"):
        golden.check(logits(load(model), golden.ids("long")), "logits.long")


def test_quantization_config_beside_the_text_part_s_keys(tmp_path: Path) -> None:
    case = "q_gptq_g32"
    inner = json.loads((GOLDEN / case / "config.json").read_text())
    outer = {"model_type": "mistral3", "text_config": inner, "vision_config": {"depth": 3}}
    shutil.copytree(GOLDEN / case, tmp_path / case)
    (tmp_path / case / "config.json").write_text(json.dumps(outer))
    ids = Golden.read(GOLDEN / case).ids("p33")
    np.testing.assert_array_equal(logits(load(tmp_path / case), ids), logits(load(GOLDEN / case), ids))
