"""Files that no writer makes: a named error, in little time and memory, before anything is computed."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import write
from golden_cases import GOLDEN
from models import write_llama

from ropechat.engine._core import check, read_config
from ropechat.errors import ConfigError, ModelFileError, TensorError

SMALLEST = {"hidden_size": 1, "intermediate_size": 1, "num_attention_heads": 1, "num_key_value_heads": 1}


def mixtral(folder: Path, **changes: Any) -> str:
    """A folder whose config.json describes a mixture, with the weights of a little llama."""
    write_llama(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mixtral", "num_experts_per_tok": 2, "num_local_experts": 65_536} | changes
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_more_experts_than_the_files_can_hold(tmp_path: Path) -> None:
    model = mixtral(tmp_path / "bytes", num_hidden_layers=4096)
    for look in (check, read_config):
        with pytest.raises(ConfigError, match=r"4096 layers of 65536 experts have at least .* numbers"):
            look(model)
    text = json.dumps({"hole": {"dtype": "U8", "shape": [1 << 20], "data_offsets": [0, 1 << 20]}}).encode()
    large = len(text).to_bytes(8, "little") + text + bytes(1 << 20)
    for layers, error, named in (
        (17, ConfigError, "17 layers of 65536 experts are more than 1048576 experts"),
        (16, TensorError, "the tensor is not in the file"),
    ):
        model = mixtral(tmp_path / "count", num_hidden_layers=layers, head_dim=2, **SMALLEST)
        (Path(model) / "model.safetensors").write_bytes(large)
        with pytest.raises(error, match=named):
            check(model)


def gguf(path: Path) -> tuple[bytes, Path]:
    """A file whose three tensors follow each other in the data, and another path."""
    tensors = {name: np.arange(64, dtype=np.float32) for name in ("a.weight", "b.weight", "c.weight")}
    return write(
        path / "good.gguf", {"general.architecture": "llama"}, tensors
    ).read_bytes(), path / "bad.gguf"


@pytest.mark.parametrize("name", [b"a.weight", b"b.weight", b"c.weight"])
def test_a_tensor_whose_size_does_not_lead_to_the_next(tmp_path: Path, name: bytes) -> None:
    """One byte makes F32 F16: half the bytes, and other numbers."""
    data, bad = gguf(tmp_path)
    at = data.index(name) + len(name) + 4 + 8
    assert data[at : at + 4] == bytes(4)  # F32
    bad.write_bytes(data[:at] + b"\1" + data[at + 1 :])
    with pytest.raises(ModelFileError, match=r"is expected; a type or a shape|bytes follow c\.weight"):
        check(str(bad))


def gemma4(folder: Path, **changes: Any) -> str:
    shutil.copytree(GOLDEN / "gemma4_text", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return str(folder)


@pytest.mark.parametrize(
    ("layers", "named"),
    [
        ({"1": {"head_dim": 24}, "3": {"head_dim": 16}}, "head_dim: must be the same in all layers of one"),
        ({"0": {"head_dim": 8}, "1": {"head_dim": 24}, "3": {"head_dim": 24}}, "got 16 in layer 2 and 8"),
        (
            {"1": {"head_dim": 24}, "3": {"head_dim": 24, "num_key_value_heads": 2}},
            r"layer 3 reads the keys and values of layer 1, which has other heads \(1 of width 24",
        ),
    ],
    ids=str,
)
def test_layers_that_share_keys_have_the_same_heads(tmp_path: Path, layers: object, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read_config(gemma4(tmp_path / "model", per_layer_config=layers))
