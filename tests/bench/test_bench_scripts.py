"""The scripts of tests/bench: that they run and say sane things. No test looks at how fast anything was."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from models import TINY

from ropechat.engine.bench import shapes

pytestmark = pytest.mark.slow

BLOCKS_256 = TINY | {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "head_dim": 32}

SCRIPTS = Path(__file__).parents[1] / "bench"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setitem(shapes.SHAPES, "stories15m", TINY)
    import peers

    # A Python without peers: they are for people to install, and take minutes.
    monkeypatch.setattr(peers, "INSTALL", dict.fromkeys(peers.INSTALL, "pip install it"))
    return peers


def run(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str, python: str
) -> None:
    given = ["--shape", "stories15m", "--quick", "--rounds", "1", "--patience", "0", "--retries", "0"]
    own = ["--folder", str(folder), "--peer-python", python, "--threads", "1", *arguments]
    monkeypatch.setattr(sys, "argv", ["peers.py", *given, *own])
    peers.main()


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """This Python without what is installed beside it."""
    path = tmp_path / "bin" / "python"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_peers_alone(
    peers: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    bare_python: str,
) -> None:
    run(peers, monkeypatch, tmp_path, "--json", "--dtype", "q8_0", python=bare_python)
    out, err = capfd.readouterr()
    report = json.loads(out)
    assert (report["shape"], report["dtype"], report["threads"]) == ("stories15m", "q8_0", 1)
    (ours,) = report["results"]
    assert ours["engine"] == "ropechat"
    for metric in ("prefill", "decode", "depth", "batch8", "start"):
        assert ours[metric]["median"] > 0
    for name in ("llama.cpp", "openvino", "onnxruntime"):
        assert f"{name}: not here; pip install it" in err
    run(peers, monkeypatch, tmp_path, "--metrics", "prefill,decode", python=bare_python)
    out, _ = capfd.readouterr()
    assert out.splitlines()[1].split() == ["engine", "version", "prefill", "decode"]


FAKE_IK = """#!{python}
import json, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert given["-m"].endswith("-q4_k_m.gguf") and given["-t"] == "1", given
if sys.argv[0].endswith("batched-bench"):
    print("| PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | T s | S t/s |", file=sys.stderr)
    print("|----|----|---|------|--------|----------|--------|----------|-----|-------|", file=sys.stderr)
    print("| 8 | 4 | 8 | 96 | 0.5 | 128.00 | 0.25 | 777.00 | 0.75 | 128.00 |", file=sys.stderr)
else:
    prompt, _, tokens = given.get("-gp", given["-p"]).partition(",")
    assert given.get("-rtr") == "01"[bool(tokens)] or prompt == "1", given
    seconds = int(tokens) / 50 if tokens else int(prompt) / 200
    print(json.dumps([{{"build_commit": "abc", "avg_ns": int(seconds * 1e9)}}], indent=1))
"""


def test_ik_llama_cpp_by_its_programs(
    peers: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    bare_python: str,
) -> None:
    monkeypatch.setitem(shapes.SHAPES, "stories15m", BLOCKS_256)
    for name in ("llama-bench", "llama-batched-bench"):
        (tmp_path / name).write_text(FAKE_IK.format(python=sys.executable))
        (tmp_path / name).chmod(0o755)
    options = ["--json", "--dtype", "q4_k_m", "--ik", str(tmp_path)]
    run(peers, monkeypatch, tmp_path / "models", *options, python=bare_python)
    ours, ik = json.loads(capfd.readouterr().out)["results"]
    assert (ours["engine"], ik["engine"], ik["about"]) == ("ropechat", "ik_llama.cpp", "abc")
    assert [round(ik[name]["median"]) for name in ("prefill", "decode", "depth", "batch8")] == [
        200,
        50,
        50,
        777,
    ]
    assert "start" not in ik
    assert ik["decode"]["ratio"] == pytest.approx(ours["decode"]["median"] / ik["decode"]["median"])
    (tmp_path / "llama-bench").unlink()
    with pytest.raises(SystemExit, match=r"must have llama-bench; --help says how to build it"):
        run(peers, monkeypatch, tmp_path / "models", *options, python=bare_python)


def test_a_peer_that_dies_is_left_out(peers: ModuleType, tmp_path: Path) -> None:
    peer = peers.Peer("ropechat", "", sys.executable, tmp_path / "nowhere", "q8_0", 1)
    with pytest.raises(peers.PeerError, match="it ended with 1"):
        peer.begin()
    peer.end()


def test_ratios_say_how_many_times_as_fast_ours_is(peers: ModuleType, tmp_path: Path) -> None:
    def peer(name: str, prefill: float, start: float) -> object:
        made = peers.Peer(name, "1", "python", tmp_path, "q8_0", 1)
        made.values, made.peaks = {"prefill": [(prefill, 0.0)] * 3, "start": [(start, 0.0)] * 3}, [20.0]
        return made

    rounds = [{"memory_read": read, "load_average": 0.1} for read in (2e9, 3e9, 1e9)]
    both = [peer("ropechat", 300, 50), peer("other", 100, 200)]
    report = peers.report_of(both, rounds, {"shape": "s", "dtype": "q8_0", "threads": 1})
    assert report["left_out"] == 2
    assert report["results"][1]["prefill"]["ratio"] == 3
    assert report["results"][1]["start"]["ratio"] == 4
    assert "[3.00x]" in peers.table(report, ["prefill", "start"])
    report["results"][0]["about"], report["time"] = "avx2", 0
    head, _, titles, _, *lines = peers.markdown([report]).splitlines()
    assert re.search(
        r", avx2, 1 thread, 19.*: medians of 1 alternating rounds .*, load average 0.1 to 0.1\.", head
    )
    assert titles == "|  | tokens/s | other 1 |"
    assert lines == [
        "| s q8_0: prefill of 512 tokens | 300 (300 to 300) | 3.00 |",
        "| s q8_0: start to first token, ms | 50 (50 to 50) | 4.00 |",
    ]


def test_all_are_shapes_that_have_the_type_and_exclude_a_shape(
    peers: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    with pytest.raises(SystemExit):
        run(peers, monkeypatch, tmp_path, "--all", python=sys.executable)
    assert "--all excludes --shape and --dtype" in capsys.readouterr().err
    for shape, dtypes in peers.ALL.items():
        assert "q4_k_m" not in dtypes or peers.has_whole_blocks(peers.config_of(shape)), shape


def test_disturbed_values_are_left_out(peers: ModuleType) -> None:
    values = [(1.0, 0.0), (2.0, 0.9), (3.0, 0.1), (4.0, 0.0)]
    assert peers.kept_of(values, [True, True, True, False]).values == (1.0, 3.0)
    assert peers.kept_of(values[1:2], [True]).values == (2.0,)


def test_quality_of_quantization(real: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "quality.py"), "--real", str(real), "--windows", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split("|")[1:-1] for line in done.stdout.splitlines()]
    assert all(len(line) == 7 for line in lines)
    dtypes = ["f32", "bf16", "q8_0", "q6_k", "q5_1", "q5_k", "q4_1", "q4_k", "q4_0", "q3_k", "q2_k"]
    assert [line[2].strip() for line in lines[2 : 2 + len(dtypes)]] == dtypes


def test_screen_measures_a_short_answer() -> None:
    options = [
        "--kinds",
        "list",
        "--rates",
        "200",
        "--earlier",
        "4",
        "--views",
        "prose",
        "--characters",
        "400",
    ]
    command = [sys.executable, str(SCRIPTS / "screen.py"), *options, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    row = json.loads(done.stdout)
    assert (row["kind"], row["view"], row["rate"], row["earlier"]) == ("list", "prose", 200, 4)
    assert row["tokens"] > 80
    assert row["kib"] > 0
    assert row["lag"] < 60  # the mark of the end was seen on the terminal
    assert row["late"] == 0  # no timer ticks while nothing happens


def test_drafts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setitem(shapes.SHAPES, "tiny", TINY | {"vocab_size": 2000, "max_position_embeddings": 1024})
    import drafts

    monkeypatch.setattr(sys, "argv", ["drafts.py", "--shape", "tiny", "--rounds", "1", "--tokens", "24"])
    drafts.main()  # compares the answers, too
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 2 * len(drafts.PROMPTS)
    assert all("by the clock" in line for line in lines[1:])


def test_acceptance(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import acceptance

    for name, text in (
        ("prompts/mt_bench_question.jsonl", '{"turns": ["What is a token?"]}'),
        ("text/war-and-peace.txt", "word and " * 120),
    ):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    given = [str(tmp_path), "builtin", "--count", "1", "--rounds", "1", "--tokens", "8", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["acceptance.py", *given])
    acceptance.main()  # compares the answers, too
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 * len(acceptance.TEMPERATURES)
    assert all("accepted drafts" in line for line in lines)


def test_draft_model(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    tiny = TINY | {"vocab_size": 2000, "max_position_embeddings": 1024}
    monkeypatch.setitem(shapes.SHAPES, "tiny", tiny)
    import draft_model

    shape = ["--shape", "tiny", "--draft", "tiny"]
    for options, count in ((["--more-layers", "2"], 4), (shape, len(draft_model.WRONG))):
        given = ["draft_model.py", *options, "--rounds", "1", "--tokens", "16", "--threads", "1"]
        monkeypatch.setattr(sys, "argv", given)
        draft_model.main()  # compares the answers, too
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 1 + 2 * count
        assert all("by the clock" in line for line in lines[1:])


def test_captures_judge_what_moves_and_what_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import captures

    def shown(at: float, done: int, left: str) -> list[object]:
        text = f"\rreading ━━╸── {done} of 1,000 tokens · 100 tok/s · {left} left"
        return list(captures.parse(at, text))

    good = [one for at in range(1, 41) for one in shown(at / 4, 25 * at, f"{10 - at // 4} s")]
    (wait,) = captures.waits_of(good, 0.0)
    assert (wait.stage, wait.seconds, wait.missed) == ("reading", 10.0, [])
    stuck = [one for at in range(1, 41) for one in shown(at / 4, 25, "1 min 30 s")]
    (wait,) = captures.waits_of(stuck, 0.0)
    assert wait.missed == ["moves", "error"]
    assert wait.pause > 9
    assert captures.seconds_left("1 h 2 min left") == 3720.0
    assert captures.seconds_left("nothing left") is None


FAKE_LLAMA = """#!{python}
import http.server, json, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{{}}")
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()
    def log_message(self, *words):
        pass
http.server.HTTPServer(("127.0.0.1", int(given["--port"])), Handler).serve_forever()
"""


def test_every_wait_is_measured(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for folder in (SCRIPTS, SCRIPTS.parent / "support"):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setitem(shapes.SHAPES, "stories15m", TINY)
    import waits

    (tmp_path / "llama-server").write_text(FAKE_LLAMA.format(python=sys.executable))
    (tmp_path / "llama-server").chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", "")  # it sets another one
    sizes = ["--tokens", "50,100", "--file", "1500", "--typed", "0.2", "--threads", "1"]
    own = ["--shape", "stories15m", "--folder", str(tmp_path), "--llama", str(tmp_path), "--json", *sizes]
    monkeypatch.setattr(sys, "argv", ["waits.py", *own])
    waits.main()
    found = json.loads(capfd.readouterr().out.splitlines()[-1])
    for name in ("second start", "prompt of 100", "regenerate", "opened, at once", "switched back, at once"):
        assert found["ropechat"][name] > 0
        assert found["llama.cpp"].get(name, 0) >= 0
    assert found["ropechat"]["file, typed for 0.2 s"] > 0
    assert found["llama.cpp"]["slot saved"] > 0


def test_a_tree_is_measured(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import tree

    report = tree.main(["builtin", "--context", "40", "--nodes", "32", "--rounds", "1"])
    assert json.loads(capfd.readouterr().out) == report
    assert (report["nodes"], report["tokens"], report["context"]) == (32, 32, 40)
    assert report["rows"] >= 1
    assert report["ratio_cpu"] > 0


def test_an_examination_of_a_context_is_measured(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import why

    (report,) = why.main(["builtin", "--tokens", "200", "--depths", "0.5", "--naive", "3"])
    assert json.loads(capfd.readouterr().out) == report
    assert report["naive"] == 3
    assert report["largest_difference_bits"] < 1e-6
    assert 1 < report["ratio_cpu"] < 100
