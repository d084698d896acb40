"""What the RoPE view reads from configs: the engine's own frequencies, beside transformers' tables."""

import json
from pathlib import Path

import numpy as np
import pytest
from golden_cases import GOLDEN
from reference import read_safetensors
from rope_configs import spec_of

from ropechat.errors import ConfigError, ModelPathError, UnsupportedModelError
from ropechat.inspector.rope import shapes
from ropechat.inspector.rope.spec import default_inv_freq, rope_spec

TABLES = json.loads((GOLDEN / "rope_units" / "rope.json").read_text())["tables"]


@pytest.mark.parametrize("name", TABLES)
def test_frequencies_of_each_rope_type(name: str, tmp_path: Path) -> None:
    table = TABLES[name]
    expected = read_safetensors(GOLDEN / "rope_units" / "rope.safetensors")[f"inv_freq.{name}.f64"]
    spec = spec_of(
        tmp_path,
        table["seq_len"] or 0,
        hidden_size=table["head_dim"],
        max_position_embeddings=table["max_position_embeddings"],
        rope_theta=None,
        rope_parameters=table["rope_parameters"],
    )
    (group,) = spec.groups
    assert group.inv_freq == pytest.approx(expected, rel=2e-6)
    assert group.attention_factor == pytest.approx(table["attention_factor"], rel=1e-12)
    plain = default_inv_freq(table["rope_parameters"]["rope_theta"], table["head_dim"])
    assert np.array_equal(group.base_inv_freq, plain)
    assert (group.layer_type, group.layers, group.rotary_dim) == ("full", (0, 1), table["head_dim"])
    assert spec.depends_on_length == name.startswith(("dynamic", "longrope"))


def test_kinds_of_layers() -> None:
    def groups(name: str) -> list[tuple[str, int, bool, int | None]]:
        spec = rope_spec(GOLDEN / name)
        return [(one.layer_type, one.rotary_dim, one.interleaved, one.window) for one in spec.groups]

    config = json.loads((GOLDEN / "gemma3_text_old" / "config.json").read_text())
    dim, window = config["head_dim"], config["sliding_window"]
    assert groups("gemma3_text_old") == [("sliding", dim, False, window), ("full", dim, False, None)]
    assert rope_spec(GOLDEN / "gpt2_old").position == "learned"
    assert groups("gpt2_old") == [("nope", 0, False, None)]
    rotated = rope_spec(GOLDEN / "dtransformer_rope")
    assert [group.layer_type for group in rotated.groups] == ["embedding", "nope"]
    assert rotated.groups[0].rotary_dim == rotated.hidden_size
    assert {kind for kind, *_ in groups("smollm3_old")} == {"full", "nope"}
    config = json.loads((GOLDEN / "deepseek_v2_old" / "config.json").read_text())
    assert groups("deepseek_v2_old") == [("full", config["qk_rope_head_dim"], True, None)]
    partial = rope_spec(GOLDEN / "phi_old")
    assert 0 < partial.groups[0].rotary_dim < partial.head_dim


def test_a_layer_finds_its_group() -> None:
    spec = rope_spec(GOLDEN / "smollm3_old")
    for group in spec.groups:
        assert all(spec.of_layer(layer) is group for layer in group.layers)
    with pytest.raises(IndexError):
        spec.of_layer(spec.num_layers)


def test_a_gguf_file_has_the_frequencies_of_its_folder() -> None:
    (gguf,) = rope_spec(GOLDEN / "gguf" / "llama3" / "f32.gguf").groups
    (folder,) = rope_spec(GOLDEN / "llama3_new").groups
    assert (gguf.theta, gguf.rotary_dim, gguf.rope_type) == (folder.theta, folder.rotary_dim, "divided")
    assert gguf.inv_freq == pytest.approx(folder.inv_freq, rel=1e-6)


def test_a_config_alone_and_its_folder_say_the_same() -> None:
    folder = rope_spec(GOLDEN / "llama3_new")
    alone = rope_spec(GOLDEN / "llama3_new" / "config.json")
    assert np.array_equal(folder.groups[0].inv_freq, alone.groups[0].inv_freq)
    assert folder.groups[0].parameters == alone.groups[0].parameters
    assert folder.groups[0].original_length == folder.groups[0].parameters["original_max_position_embeddings"]


def test_every_shape_is_a_config() -> None:
    for name in shapes.names():
        spec = rope_spec(shapes.config_path(name))
        assert sum(len(group.layers) for group in spec.groups) == spec.num_layers
        assert spec.rotating


def test_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(ModelPathError, match=r"nothing\.json"):
        rope_spec(tmp_path / "nothing.json")
    with pytest.raises(UnsupportedModelError, match=r"config\.json.*model_type"):
        spec_of(tmp_path, model_type="unheard")
    with pytest.raises(ConfigError, match=r"config\.json"):
        spec_of(tmp_path, rope_theta="big")
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(ConfigError, match=r"config\.json"):
        rope_spec(tmp_path)
