"""`ropechat models families`, and docs/supported.md; a text part below a path of its own."""

import json
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from core import load, logits
from golden_cases import GOLDEN, Golden

from ropechat.engine.native import gguf_architectures, model_types


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = "import sys; from ropechat.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_command_and_the_page_have_the_same_list() -> None:
    lines = run("models", "families").stdout.splitlines()
    listed = [line.split()[0] for line in lines]
    page = (Path(__file__).parents[2] / "docs" / "supported.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w[\w-]+)` \| (.*) \|$", page.partition("## Model types")[2], re.MULTILINE)
    assert [name for name, _ in rows[1:]] == listed == sorted(model_types())
    entries = json.loads(run("models", "families", "--json").stdout)
    assert [entry["model_type"] for entry in entries] == listed
    for line, entry, (_, shown) in zip(lines, entries, rows[1:], strict=True):
        of_gguf = line.partition("GGUF: ")[2]
        assert of_gguf.split(", ") == (entry["gguf_architectures"] or [""])
        assert shown.replace("`", "") == of_gguf


def test_gguf_architectures_belong_to_model_types() -> None:
    of_types = gguf_architectures()
    assert of_types.keys() <= set(model_types())
    assert of_types["gemma4_text"] == ["gemma4"]


def test_every_model_type_is_served_by_one_family() -> None:
    assert len(set(model_types())) == len(model_types())
    assert {"llama", "gemma4_text", "llama4", "dtransformer_rope"} <= set(model_types())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "case", "path", "head"),
    [
        ("llava", "llama3_new", "language_model.model.", "language_model.lm_head."),
        ("mistral3", "ministral3", "model.language_model.", "lm_head."),
        ("llama4", "llama4_text", "language_model.model.", "language_model.lm_head."),
        ("gemma3n", "gemma3n_text", "model.language_model.", "lm_head."),
    ],
)
def test_the_text_part_of_a_composite(
    tmp_path: Path, model_type: str, case: str, path: str, head: str
) -> None:
    """A golden case's weights below another path, a vision tower beside: the same logits, one warning."""
    golden = Golden.read(GOLDEN / case)
    inner = json.loads((GOLDEN / case / "config.json").read_text())
    outer = {"model_type": model_type, "text_config": inner, "vision_config": {"depth": 3}}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    shutil.copyfile(GOLDEN / case / "generation_config.json", tmp_path / "generation_config.json")
    stored = (GOLDEN / case / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", stored[:8])
    header, data = json.loads(stored[8 : 8 + size]), stored[8 + size :]
    moved = {name.replace("model.", path, 1).replace("lm_head.", head, 1): at for name, at in header.items()}
    tower = {"dtype": "F32", "shape": [2], "data_offsets": [len(data), len(data) + 8]}
    moved["model.vision_tower.patch.weight"] = tower
    text = json.dumps(moved).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data + bytes(8))

    engine = load(tmp_path, context=256)
    golden.check(logits(engine, golden.ids("p33")), "logits.p33")
    said = run("models", "check", str(tmp_path)).stderr
    assert said.count("pictures or sound") == 1, said
    assert "vision_tower" not in said
