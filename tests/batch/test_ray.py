"""`batch --ray` on real Ray: nodes on machines of a network of their own, of which one is killed."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from machines import Machine, are_possible, environment, network

BIN = Path(sys.executable).parent
PORT = 6379
pytestmark = [
    pytest.mark.extras,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not (BIN / "ray").exists(), reason="Ray is not installed (make test-all)"),
]
DRAWN = ("--seed", "7", "--temperature", "0.8", "--kv-dtype", "f16")
"""On AMD with AVX-512 BF16 auto is another type of KV cache than on a node with older instructions."""


def settings(**changes: str) -> dict[str, str]:
    return environment(PATH=f"{BIN}:{os.environ['PATH']}", ROPECHAT_CACHE="off", **changes)


def start_ray(machine: Machine, head: Machine, **changes: str) -> None:
    words = [BIN / "ray", "start", "--node-ip-address", machine.address, "--num-cpus", 1]
    words += ["--object-store-memory", 80_000_000]
    if machine is head:
        words += ["--head", "--port", PORT, "--include-dashboard=false"]
    else:
        words += ["--address", f"{head.address}:{PORT}"]
    subprocess.run(machine.inside(*words), env=settings(**changes), check=True, capture_output=True)


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Machine]]:
    """Three machines with Ray."""
    if not are_possible():
        pytest.skip("network namespaces are not possible here")
    with network(3) as machines:
        for machine in machines:
            start_ray(machine, machines[0])
        yield machines


def batch(head: Machine, *words: object) -> list[str]:
    """The command of a run that is driven from the first machine."""
    return head.inside(BIN / "ropechat", "batch", *words, "--ray", f"{head.address}:{PORT}")


def alone(*words: object, **changes: str) -> None:
    """The same run by one process."""
    command = [str(BIN / "ropechat"), "batch", *map(str, words), "--quiet"]
    done = subprocess.run(command, env=settings(**changes), capture_output=True, text=True)
    assert done.returncode in (0, 3), done.stderr


def write_rows(path: Path, count: int, extra: str = "") -> Path:
    rows = [{"id": f"row {n}", "prompt": f"Tell me about {n}."} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + extra)
    return path


def test_three_nodes_write_what_one_process_writes(nodes: list[Machine], tmp_path: Path) -> None:
    odd = '{"id": "row 3", "prompt": "again"}\nnot JSON\n{"id": "turns", "turns": ["Hi.", "And you?"]}\n'
    rows = write_rows(tmp_path / "rows.jsonl", 60, odd)
    options = (*DRAWN, "--max-tokens", 6, "--n", 2, "--logprobs", 1)
    command = batch(nodes[0], rows, "-o", tmp_path / "ray.jsonl", *options)
    done = subprocess.run(command, env=settings(), capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    assert "3 nodes" in done.stderr
    alone(rows, "-o", tmp_path / "one.jsonl", *options)
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    record = json.loads((tmp_path / "ray.jsonl.run.json").read_text())
    assert (record["ok"], record["failed"]) == (122, 2)


def test_scores_of_three_nodes(nodes: list[Machine], tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    lines = [{"id": n, "prompt": f"{n} and", "choices": [" two", " three"], "answer": 0} for n in range(40)]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = batch(nodes[0], rows, "-o", tmp_path / "ray.jsonl", "--score")
    done = subprocess.run(command, env=settings(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "40 rows with an answer" in done.stderr
    alone(rows, "-o", tmp_path / "one.jsonl", "--score")
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()


def test_a_model_that_a_node_lacks_is_named_with_the_node(nodes: list[Machine], tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", 1)
    command = batch(nodes[0], rows, "-o", tmp_path / "ray.jsonl", "-m", "some/model")
    done = subprocess.run(command, env=settings(), capture_output=True, text=True)
    assert done.returncode == 4
    assert done.stderr.startswith("error: node 10.")
    assert "some/model" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_is_lost_in_mid_run_is_computed_elsewhere(nodes: list[Machine], tmp_path: Path) -> None:
    """First a process is killed, whose node goes on with another one; then the whole machine."""
    rows = write_rows(tmp_path / "rows.jsonl", 700)
    options = (*DRAWN, "--max-tokens", 16)
    journal = tmp_path / "ray.jsonl.journal"
    command = batch(nodes[0], rows, "-o", tmp_path / "ray.jsonl", *options, "--resume")
    run = subprocess.Popen(command, env=settings(), stderr=subprocess.PIPE, text=True)
    try:
        wait_for_lines(journal, 60, run)
        found = subprocess.run(nodes[1].inside("pgrep", "-f", "^ray::Node"), capture_output=True, text=True)
        nodes[1].run("kill", "-9", *found.stdout.split())
        wait_for_lines(journal, 200, run)
        nodes[2].kill()
        _, err = run.communicate(timeout=600)
    finally:
        run.kill()
    assert run.returncode == 0, err
    assert f"node {nodes[1].address} is lost" in err
    assert f"node {nodes[2].address} is lost" in err
    alone(rows, "-o", tmp_path / "one.jsonl", *options)
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    ids = [json.loads(line)["id"] for line in journal.read_text().splitlines()[1:]]
    assert len(ids) == len({*ids}) == 700


def test_all_nodes_use_the_least_instruction_set(nodes: list[Machine], tmp_path: Path) -> None:
    start_ray(nodes[1], nodes[0], ROPECHAT_ISA="scalar")  # a second node on that machine
    rows = write_rows(tmp_path / "rows.jsonl", 8)
    options = (*DRAWN, "--max-tokens", 3)
    for more, isa in (((), "scalar"), (("--any-isa",), ", scalar")):
        command = batch(nodes[0], rows, "-o", tmp_path / "ray.jsonl", *options, *more, "--overwrite")
        done = subprocess.run(command, env=settings(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert ("all nodes use scalar" in done.stderr) == (not more)
        assert json.loads((tmp_path / "ray.jsonl.run.json").read_text())["isa"].endswith(isa)
        if not more:
            alone(rows, "-o", tmp_path / "one.jsonl", *options, ROPECHAT_ISA="scalar")
            assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()


def wait_for_lines(journal: Path, count: int, run: subprocess.Popen[str]) -> None:
    while not journal.exists() or journal.read_bytes().count(b"\n") < count:
        assert run.poll() is None, run.communicate()[1]
        time.sleep(0.02)


def test_without_an_address_ray_starts_here(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", 30)
    options = (*DRAWN, "--max-tokens", 4)
    command = [BIN / "ropechat", "batch", rows, "-o", tmp_path / "ray.jsonl", *options, "--ray"]
    short = Path("/tmp/rr")  # Ray's sockets need short paths
    done = subprocess.run(
        [str(word) for word in command],
        env=settings(RAY_TMPDIR=str(short)),
        capture_output=True,
        text=True,
    )
    shutil.rmtree(short, ignore_errors=True)
    assert done.returncode == 0, done.stderr
    alone(rows, "-o", tmp_path / "one.jsonl", *options)
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()


def test_answers_of_a_schema_and_equal_rows(nodes: list[Machine], tmp_path: Path) -> None:
    """A grammar travels to the nodes with the options and on a line; equal rows are computed once."""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"]}
    schema |= {"additionalProperties": False}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    rows = [{"id": f"r{number}", "prompt": f"How many? {number % 20}"} for number in range(60)]
    for row in rows[::7]:
        row["structured_outputs"] = {"choice": ["yes", "no"]}  # type: ignore[assignment]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--json-schema", tmp_path / "schema.json", "--max-tokens", 24, "--dedupe", *DRAWN]
    command = batch(nodes[0], source, "-o", tmp_path / "ray.jsonl", *options, "--quiet")
    subprocess.run(command, env=settings(), check=True, capture_output=True)
    facts = json.loads((tmp_path / "ray.jsonl.run.json").read_text())
    # The numbers of an answer differ between instruction sets; all nodes use the least one.
    alone(source, "-o", tmp_path / "alone.jsonl", *options, ROPECHAT_ISA=facts["isa"])
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "alone.jsonl").read_bytes()
    assert facts["copied"] > 20
    for row, line in zip(rows, (tmp_path / "ray.jsonl").read_text().splitlines(), strict=True):
        record = json.loads(line)
        if "structured_outputs" in row:
            assert record["text"] in ("yes", "no")
        elif record["finish_reason"] == "stop":
            assert record["parsed"]["n"] <= 99
