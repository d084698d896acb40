"""`ropechat bench`: that it runs and says sane things. No test looks at how fast anything was."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from model_folders import byte_tokenizer
from models import TINY, write_llama

from ropechat import Engine, Sampling
from ropechat.cli import main
from ropechat.engine.bench import gguf, shapes
from ropechat.engine.bench.measure import Prompts, Workload, time_batch
from ropechat.engine.bench.phases import engine_phases, start_phases
from ropechat.engine.bench.result import Report, Rounds, Spread, find_quiet_rounds

PHASES_OF_LLAMA = {
    *("schedule", "embed", "norm", "qkv_proj", "rope_and_cache", "attention", "o_proj", "gate_up_proj"),
    *("down_proj", "lm_head", "epilogue", "read_out", "sample", "events", "python"),
}
LAUNCH = [sys.executable, "-c", "import sys; from ropechat.cli import main; sys.exit(main())"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = write_llama(tmp_path / "odd", vocab_size=260)
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    return folder


@pytest.fixture
def tiny_shape(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(shapes.SHAPES, "tiny", TINY)
    return "tiny"


def bench(capfd: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main(["bench", *map(str, arguments)])
    return code, *capfd.readouterr()


@pytest.mark.slow
def test_json(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = bench(capfd, "-m", model, "--quick", "--json", "--threads", "1,2", "--dtype", "q8_0")
    assert code == 0, err
    record = json.loads(out)
    assert out.count("\n") == 1
    assert record["schema"] == "ropechat.bench/1"
    assert (record["model"], record["dtype"]) == ("odd", "q8_0")
    assert record["weight_bytes"] > 0
    assert [result["threads"] for result in record["results"]] == [1, 2]
    for result in record["results"]:
        names = {name for name, value in result.items() if isinstance(value, dict)}
        assert names == {
            *("prefill", "decode", "decode_at_depth", "batch_2", "ttft_s", "load_s", "peak_bytes"),
            *("memory_read", "memory_read_1", "decode_share"),
        }
        for name in names:
            spread = result[name]
            assert 0 < spread["min"] <= spread["median"] <= spread["max"] < math.inf, name
    assert err == ""  # a pipe


def test_table(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = bench(capfd, "-m", model, "--quick", "--threads", "1")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("odd, f32, ")
    assert lines[1].split() == ["1", "thread"]
    titles = [line.split("  ")[0] for line in lines[2:]]
    assert titles[:4] == ["prefill 32", "decode 8", "decode 4 at 64", "decode of 2 sequences"]


def test_phases(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = bench(capfd, "-m", model, "--quick", "--phases", "--threads", "1")
    assert code == 0, err
    titles = [line.split(":")[0] for line in out.splitlines() if line and not line.startswith(" ")]
    assert titles == ["prefill of 511 tokens", "decode step", "step of 32 sequences", "start to first token"]
    assert "  attention " in out


def test_without_a_tokenizer_the_start_is_left_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = bench(capfd, "-m", write_llama(tmp_path / "m"), "--quick", "--json", "--threads", "1")
    assert code == 0, err
    assert "ttft_s" not in json.loads(out)["results"][0]
    assert "start to first token: not measured (error: " in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threads", "0"], "must be a number of at least 1, or several as in 1,2 (got '0')"),
        (["--threads", "1,x", "-m", "."], "must be a number of at least 1, or several as in 1,2 (got '1,x')"),
        (["-m", ".", "--shape", "stories15m"], "give one of them"),
        (["-m", ".", "--dtype", "q4_k_m"], "--dtype q4_k_m requires --shape"),
        (["--shape", "stories15m", "--dtype", "q4_k_m"], "not multiples of 256; take a larger shape"),
        (["-m", "nowhere"], "nowhere: model not found"),
    ],
)
def test_refused(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("ROPECHAT_MODEL", raising=False)
    code, out, err = bench(capfd, *arguments)
    assert (code, out) == (2, "")
    assert message in err.splitlines()[-1]


@pytest.mark.slow
def test_ctrl_c_leaves_cleanly(model: Path) -> None:
    process = subprocess.Popen(
        [*LAUNCH, "bench", "-m", model, "--rounds", "1000", "--progress", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith('{"stage": "starting"')
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err


# ---- What is measured


def test_a_batch_counts_the_passes_of_all(model: Path) -> None:
    engine = Engine.load(model, threads=1, speculative="off")
    engine.stop_ids = frozenset()
    prompts, plan = Prompts(260), Workload(batch_decode=4)
    many = [prompts.draw(150) for _ in range(3)]  # more than a forward takes: they begin one after another
    assert time_batch(engine, many, plan.batch_tokens(3), plan.batch_decode) > 0


def test_phases_add_up(model: Path) -> None:
    engine = Engine.load(model, threads=2, speculative="off")
    tables = [*engine_phases(engine), start_phases(str(model), {"threads": 1})]
    assert len(tables) == 4
    for table in tables:
        assert sum(table.seconds.values()) == pytest.approx(table.whole, rel=1e-9)
        assert all(seconds >= 0 for seconds in table.seconds.values()), table.seconds
        assert table.steps > 0
    for table in tables[:3]:
        assert {name for name, seconds in table.seconds.items() if seconds} >= PHASES_OF_LLAMA
    assert tables[0].seconds["attention"] > 0
    assert list(tables[3].seconds) == ["interpreter", "imports", "load", "first token"]
    record = json.loads(json.dumps(tables[1].record()))
    assert sum(record["phases_s"].values()) == pytest.approx(record["step_s"])
    assert 0 < record["serial_s"] <= record["step_s"]
    # A token waits for all threads after each of a layer's four products and its attention, for the logits,
    # and three times in their read-out.
    jobs = record["jobs"]
    assert sum(job["count"] for job in jobs if job["parts"] > 1) <= 5 * engine.facts["num_hidden_layers"] + 4
    assert sum(job["count"] for job in jobs if job["phase"] == "qkv_proj") == pytest.approx(
        engine.facts["num_hidden_layers"], rel=0.2
    )
    assert all(job["bytes"] > 0 for job in jobs if job["phase"] in ("qkv_proj", "down_proj", "lm_head"))
    # Off again: nothing is counted.
    list(engine.generate([1, 2], Sampling(max_tokens=2)))
    assert not any(seconds for _, seconds in engine._core.phase_times())


def test_prompts_never_begin_alike() -> None:
    prompts = Prompts(50)
    drawn = [prompts.draw(4) for _ in range(50)]
    assert len({prompt[0] for prompt in drawn}) == 50
    assert all(0 <= id < 50 for prompt in drawn for id in prompt)
    assert drawn == [again.draw(4) for again in [Prompts(50)] for _ in range(50)]


def test_a_plan_fits_its_context() -> None:
    plan = Workload().fitted(256)
    assert (plan.prefill, plan.depth, plan.batches) == (255, 0, (8, 16))
    assert Workload().fitted(8192) == Workload()


def test_slow_rounds_are_left_out() -> None:
    assert find_quiet_rounds([10.0, 6.9, 7.0]) == [True, False, True]
    rounds = Rounds()
    for read, decode in ((10.0, 5.0), (1.0, 0.5), (9.0, 4.0)):
        rounds.add({"memory_read": read, "decode": decode}, 0.5)
    assert rounds.spreads()["decode"] == Spread(4.5, 4.0, 5.0, (5.0, 4.0))
    plan = Workload().__dict__ | {"batches": []}
    report = Report("m", {"dtype": "f32", "isa": "scalar", "weight_bytes": 1}, plan, {1: rounds})
    assert report.record()["results"][0]["discarded_rounds"] == 1
    assert report.table().splitlines()[-1].split()[-1] == "1"


# ---- Shapes


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_shapes_are_consistent(name: str) -> None:
    config = shapes.config_of(name)
    if config["model_type"] == "llama":
        assert config["hidden_size"] == config["num_attention_heads"] * config["head_dim"]
    assert len(config.get("layer_types", [])) in (0, config["num_hidden_layers"])
    assert config["num_attention_heads"] % config["num_key_value_heads"] == 0


def test_a_shape_becomes_a_model(tiny_shape: str, tmp_path: Path) -> None:
    said: list[str] = []
    folder = shapes.make(tiny_shape, tmp_path, said.append)
    facts = Engine.check(folder)
    assert facts["tokenizer"] == 300
    assert {name: facts[name] for name in TINY if name in facts} == {
        name: value for name, value in TINY.items() if name in facts
    }
    engine = Engine.load(folder)
    row = engine.logits([1, 2, 3])[-1]
    assert 0.5 < row.std() < 20
    assert engine.tokenizer.decode(engine.tokenizer.encode("Once upon a time")) == "Once upon a time"
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert shapes.make(tiny_shape, tmp_path, said.append) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert len(said) == 1


def test_an_interrupted_writer_leaves_nothing(
    tiny_shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shapes, "write_weights", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shapes.make(tiny_shape, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_shape_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ropechat.util.paths.cache_folder", lambda: tmp_path)
    monkeypatch.setitem(shapes.SHAPES, "stories15m", TINY)
    code, out, err = bench(capfd, "--shape", "stories15m", "--quick", "--threads", "1")
    assert code == 0, err
    assert out.startswith("stories15m, bf16, ")
    assert (tmp_path / "bench" / "stories15m" / "config.json").exists()


# ---- GGUF files


BLOCKS_256 = TINY | {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "head_dim": 32}


@pytest.mark.slow
def test_a_shape_becomes_a_q4_k_m_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ropechat.util.paths.cache_folder", lambda: tmp_path)
    monkeypatch.setitem(shapes.SHAPES, "stories15m", BLOCKS_256 | {"num_hidden_layers": 8})
    code, out, err = bench(
        capfd, "--shape", "stories15m", "--dtype", "q4_k_m", "--quick", "--json", "--threads", "1"
    )
    assert code == 0, err
    assert json.loads(out)["model"] == "stories15m-q4_k_m"
    (path,) = (tmp_path / "bench").iterdir()
    facts = Engine.check(path)
    assert {"q4_k", "q6_k"} <= set(facts["packed_types"])
    assert (facts["num_hidden_layers"], facts["tokenizer"]) == (8, 300)
    row = Engine.load(path).logits([1, 2, 3])[-1]
    assert 0.5 < row.std() < 20


@pytest.mark.parametrize(
    ("shape", "kinds"),
    [
        ("qwen3.5-0.8b", ["linear_attention", "linear_attention", "full_attention", "linear_attention"]),
        ("lfm2-1.2b", ["conv", "full_attention", "conv", "conv"]),
    ],
)
def test_a_shape_with_recurrent_layers(
    shape: str, kinds: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a folder and as a file, which have the same sizes."""
    small: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
    small |= {"head_dim": 64}
    small |= {"num_key_value_heads": 2, "num_hidden_layers": 4, "layer_types": kinds, "vocab_size": 300}
    monkeypatch.setitem(shapes.SHAPES, shape, shapes.SHAPES[shape] | small)
    folder, file = shapes.make(shape, tmp_path), gguf.make_gguf(shape, tmp_path)
    assert Engine.check(folder)["num_parameters"] == Engine.check(file)["num_parameters"]
    assert {"q4_k", "q6_k"} <= set(Engine.check(file)["packed_types"])
    for model in (folder, file):
        assert 0.5 < Engine.load(model).logits([1, 2, 3])[-1].std() < 20


def test_plain_steps_leave_the_rest_of_their_projection_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of some makers have ssm_alpha and ssm_beta in F32."""
    shape, kind_of = "qwen3.5-0.8b", gguf._kind_of

    def plain_steps(name: str, finer: bool, tied: bool) -> gguf.BlockType | None:
        return None if "alpha" in name or "beta" in name else kind_of(name, finer, tied)

    monkeypatch.setattr(gguf, "_kind_of", plain_steps)
    small = {"num_hidden_layers": 1, "layer_types": ["linear_attention"], "vocab_size": 300}
    monkeypatch.setitem(shapes.SHAPES, shape, shapes.SHAPES[shape] | small)
    file = gguf.make_gguf(shape, tmp_path)
    assert Engine.check(file)["packed_types"].keys() == {"q4_k", "q5_k", "q6_k", "q8_0"}
    assert math.isfinite(Engine.load(file).logits([1, 2, 3]).std())


def test_random_blocks_have_the_wanted_spread() -> None:
    import numpy as np

    rng = np.random.Generator(np.random.SFC64(1))
    q4 = gguf.random_blocks(gguf.Q4_K, 400, 0.5, rng)
    d, dmin = (q4[:, at : at + 2].copy().view("<f2").astype(float) for at in (0, 2))
    low = (q4[:, 16:] & 15).astype(float)
    # The first blocks' scales and minima are 6 bits of one byte each.
    scale, least = (q4[:, at : at + 1] & 63 for at in (4, 8))
    values = d * scale * low[:, :32] - dmin * least
    assert abs(values.std() / 0.5 - 1) < 0.1
    assert abs(values.mean()) < 0.1
    q6 = gguf.random_blocks(gguf.Q6_K, 400, 0.5, rng)
    scales = q6[:, 192:208].copy().view(np.int8).astype(float)
    assert abs(scales.std() * math.sqrt(341.5) * q6[:, 208:].copy().view("<f2")[0, 0] / 0.5 - 1) < 0.1


def test_more_bits_are_where_llama_cpp_has_them() -> None:
    finer = [layer for layer in range(32) if gguf.has_more_bits(layer, 32)]
    assert finer == [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]


def test_an_interrupted_gguf_writer_leaves_nothing(
    tiny_shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf, "random_blocks", interrupted)
    monkeypatch.setitem(shapes.SHAPES, tiny_shape, BLOCKS_256)
    with pytest.raises(KeyboardInterrupt):
        gguf.make_gguf(tiny_shape, tmp_path)
    assert list(tmp_path.iterdir()) == []
