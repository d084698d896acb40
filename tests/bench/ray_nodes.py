"""Rows per second of `batch --ray` with one node and with two, of one thread each.

    python tests/bench/ray_nodes.py [--rows 480] [--max-tokens 32] [--rounds 3] [-m MODEL]

Needs Linux, root, `pip install 'ropechat[ray]'` and two quiet cores. The nodes are machines of a network of
their own (tests/support/machines.py). Beside it: one process and two processes at the same time, without Ray,
on half of the rows each, which shows how much faster two cores can be. Rows per second are by `elapsed_s` of
OUT.run.json: without the start of Ray and of the model. By default the model has SmolLM2-135M's shape: with a
small one the driver, which uses the same cores, counts. Medians; the exit code is 1 if two nodes are not 1.8
times as fast as one.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from machines import Machine, are_possible, environment, network

from ropechat.engine.bench.shapes import make
from ropechat.util.paths import cache_folder

WANTED = 1.8  # times the rows per second of one node
PORT = 6379
BIN = Path(sys.executable).parent


@contextlib.contextmanager
def cluster(count: int) -> Iterator[list[Machine]]:
    """Machines with Ray, of one CPU each; the first one is the head."""
    with network(count) as machines:
        for number, machine in enumerate(machines):
            words = [BIN / "ray", "start", "--node-ip-address", machine.address, "--num-cpus", 1]
            words += ["--object-store-memory", 80_000_000]
            head = ["--head", "--port", PORT, "--include-dashboard=false"]
            others = ["--address", f"{machines[0].address}:{PORT}"]
            command = machine.inside(*words, *(others if number else head))
            subprocess.run(command, env=environ(), check=True, capture_output=True)
        yield machines


def environ() -> dict[str, str]:
    return environment(PATH=f"{BIN}:{os.environ['PATH']}", ROPECHAT_CACHE="off")


def write_rows(path: Path, numbers: range) -> Path:
    rows = ({"id": f"row {number}", "prompt": f"Tell me a story about {number}."} for number in numbers)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_per_second(out: Path) -> float:
    facts = json.loads(out.with_name(out.name + ".run.json").read_text())
    rate: float = (facts["ok"] + facts["failed"]) / facts["elapsed_s"]
    return rate


def with_ray(nodes: int, options: list[str], folder: Path, rows: int) -> float:
    """Rows per second of so many nodes."""
    out = folder / f"ray{nodes}.jsonl"
    source = write_rows(folder / "all.jsonl", range(rows))
    with cluster(nodes) as machines:
        words = [
            "batch",
            source,
            "-o",
            out,
            *options,
            "--ray",
            f"{machines[0].address}:{PORT}",
            "--overwrite",
        ]
        command = machines[0].inside(BIN / "ropechat", *words)
        subprocess.run(command, env=environ(), check=True, capture_output=True)
    return rows_per_second(out)


def without_ray(processes: int, options: list[str], folder: Path, rows: int) -> float:
    """Rows per second of so many processes together, each with its part of the rows."""
    running, outs, each = [], [], rows // processes
    for number in range(processes):
        source = write_rows(folder / f"part{number}.jsonl", range(number * each, (number + 1) * each))
        outs.append(folder / f"part{number}.out.jsonl")
        words = ["batch", source, "-o", outs[-1], *options, "--overwrite", "--quiet"]
        running.append(subprocess.Popen([BIN / "ropechat", *map(str, words)], env=environ()))
    for child in running:
        if child.wait():
            sys.exit(f"batch ended with {child.returncode}")
    return sum(rows_per_second(out) for out in outs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=480)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-m", "--model")
    given = parser.parse_args()
    if not are_possible():
        sys.exit("network namespaces are not possible here")
    model = given.model or make("smollm2-135m", cache_folder() / "bench", print)
    options = ["-m", str(model), "--threads", "1", "--seed", "7", "--max-tokens", str(given.max_tokens)]
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in range(given.rounds):
            for count in (1, 2):
                for what, measure in (("node", with_ray), ("process", without_ray)):
                    begun, key = time.monotonic(), f"{count} {what}"
                    found.setdefault(key, []).append(measure(count, options, folder, given.rows))
                    took = time.monotonic() - begun
                    print(f"{key}: {found[key][-1]:.1f} rows/s ({took:.0f} s with all starts)", flush=True)
        same = (folder / "ray1.jsonl").read_bytes() == (folder / "ray2.jsonl").read_bytes()
    one, two, single, double = (median(found[key]) for key in ("1 node", "2 node", "1 process", "2 process"))
    print(
        f"2 nodes / 1 node: {two / one:.2f} ({two:.1f} / {one:.1f} rows/s), {two / one / 2:.2f} of linear; "
        f"without Ray 2 processes / 1: {double / single:.2f} ({double:.1f} / {single:.1f}); "
        f"same bytes: {same}; load {os.getloadavg()[0]:.1f}"
    )
    return int(two / one < WANTED or not same)


if __name__ == "__main__":
    sys.exit(main())
