"""A model is held against the memory there is before it is loaded: errors that help, never an abort."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from models import llama_tensors, write_llama, write_safetensors

from ropechat import Engine
from ropechat.errors import MemoryLimitError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits are told by /proc")

CHILD = """
import resource, sys
from ropechat import Engine, Sampling
from ropechat.errors import MemoryLimitError
model, context, dtype, room = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
import tokenizers, numpy, ropechat.engine._core
def kib(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))
if room:
    used = kib("VmSize") << 10
    resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))
try:
    draft = sys.argv[5] or None
    engine = Engine.load(model, dtype=dtype, context=context, threads=2, speculative="always", draft=draft)
    steps = list(engine.generate([1, 2, 3], Sampling(temperature=0, max_tokens=3)))
    print("ok", engine.facts["dtype"], *engine.facts["warnings"])
except MemoryLimitError as error:
    print("refused", error)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """41 MB of weights."""
    return write_llama(
        tmp_path_factory.mktemp("memory"),
        hidden_size=256,
        head_dim=64,
        num_attention_heads=4,
        vocab_size=40_000,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
    )


def outcome(model: Path, room: int, dtype: str = "f32", context: int = 512, draft: Path | str = "") -> str:
    """What a process says that may have so many bytes of addresses more than it begins with."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(model), str(context), dtype, str(room), str(draft)],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},  # no heap per thread
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{room}: {done.returncode} {done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_too_little_room_is_an_error_at_every_size(model: Path) -> None:
    """Weights of 41 MB beside a mapped file of the same size, threads (their heaps too), buffers."""
    said = [outcome(model, room << 20) for room in (1, 30, 60, 100, 130, 400)]
    kinds = [line.split()[0] for line in said]
    assert (kinds[0], kinds[-1]) == ("refused", "ok")
    for line in (line for line in said if not line.startswith("ok")):
        assert line.startswith("refused"), line
        assert " MB" in line, line
        assert "ulimit -v" in line or "--" in line, line


@pytest.mark.slow
def test_auto_takes_a_smaller_type_where_the_stored_one_does_not_fit(model: Path) -> None:
    rooms = (room << 20 for room in range(70, 190, 20))
    smaller = [said for said in (outcome(model, room, "auto") for room in rooms) if "as stored" in said]
    assert smaller
    types = ("bf16", "q8_0", "q6_k", "q5_k", "q4_k", "q4_0")
    assert all(said.startswith(tuple(f"ok {name} dtype: {name}" for name in types)) for said in smaller)


@pytest.mark.slow
def test_a_draft_model_takes_its_part_of_the_memory(model: Path) -> None:
    """41 MB of weights each, mapped files of the same size, buffers and threads."""
    said = [outcome(model, room << 20, draft=model) for room in (130, 150, 170)]
    assert any("left after the draft model" in line for line in said), said
    assert outcome(model, 600 << 20, draft=model).startswith("ok")


def test_a_context_beyond_all_memory_is_refused(model: Path) -> None:
    for context in (1 << 40, 1 << 62):
        with pytest.raises(MemoryLimitError, match=rf"KV cache for {context} tokens.*--context \d+ fits"):
            Engine.load(model, context=context)


def test_a_context_above_the_trained_length_is_noted(tmp_path: Path) -> None:
    folder = write_llama(tmp_path, max_position_embeddings=64)
    note = "context: 65 tokens, but the model was trained for 64; beyond them answers are unreliable"
    assert note in Engine.load(folder, context=65).facts["notes"]
    for fits in (64, None):
        assert not any("trained" in one for one in Engine.load(folder, context=fits).facts["notes"])


def test_numbers_beyond_all_integers_are_a_usage_error(model: Path) -> None:
    from ropechat.cli import main

    for option in ("--context", "--threads"):
        assert main(["run", "-m", str(model), option, str(10**30), "x"]) == 2


def test_a_trained_length_beyond_all_memory_is_not_allocated(tmp_path: Path) -> None:
    engine = Engine.load(write_llama(tmp_path, max_position_embeddings=1 << 40))
    assert engine.context == 8192
    assert len(engine.logits([1, 2, 3])) == 3


def test_the_dtype_is_that_of_most_weights(tmp_path: Path) -> None:
    """Files with a few finer matrices (Q4_K_M of GGUF) have the name of the rest; the note names all."""
    folder = write_llama(tmp_path, dtype="bf16")
    config = json.loads((folder / "config.json").read_text())
    finer = "model.layers.0.self_attn.q_proj.weight"
    (folder / "model.safetensors").unlink()
    index = {}
    for kind in ("f32", "bf16"):
        tensors = [one for one in llama_tensors(config, kind, 0) if (one[0] == finer) == (kind == "f32")]
        write_safetensors(folder / f"{kind}.safetensors", tensors, kind)
        index |= {name: f"{kind}.safetensors" for name, _, _ in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    facts = Engine.load(folder).facts
    assert facts["dtype"] == "bf16"
    assert facts["notes"][0].startswith("dtype: mixed, as stored (f32, bf16) (")
