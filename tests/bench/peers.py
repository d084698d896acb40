"""ropechat beside the engines that people could pick instead, in one run, on the same random-weight models.

`python tests/bench/peers.py --shape smollm2-135m --dtype q8_0 --peer-python PYTHON ...`

Every engine has a process of its own and only one works at a time; they take turns, measurement by
measurement. A measurement during which another program used the processors is repeated, and at last left out;
so are rounds in which memory gave less than 0.7 of its best. Ratios are of medians: ropechat / peer.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from machine import DISTURBED, TICKS, busy_seconds, processor_name, wait_for_quiet

from ropechat.engine.bench.gguf import has_whole_blocks, make_gguf
from ropechat.engine.bench.measure import Prompts, Workload, load_average
from ropechat.engine.bench.memory import Memory
from ropechat.engine.bench.result import Spread, find_quiet_rounds
from ropechat.engine.bench.shapes import SHAPES, config_of, make
from ropechat.engine.bench.start import Start, start_process
from ropechat.util.paths import cache_folder
from ropechat.util.records import aligned

HERE = Path(__file__).parent
WORKER = str(HERE / "peer_worker.py")
INSTALL = {
    "llama.cpp": "pip install llama-cpp-python gguf",
    "openvino": "pip install openvino-genai",
    "onnxruntime": "pip install onnxruntime-genai onnx",
}
IK_BUILD = """To build ik_llama.cpp for this machine, for --ik ik_llama.cpp/build/bin:
  git clone https://github.com/ikawrakow/ik_llama.cpp
  cmake -S ik_llama.cpp -B ik_llama.cpp/build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF
  cmake --build ik_llama.cpp/build --target llama-bench llama-batched-bench -j
"""
FORMATS = {  # what each engine calls the type; none: it does not have the type
    "llama.cpp": {"q8_0": "q8_0", "q4_0": "q4_0", "bf16": "bf16", "q4_k_m": "q4_k_m"},
    "openvino": {"q8_0": "int8", "q4_0": "int4", "bf16": "bf16"},
    "openvino-f32": {"q8_0": "int8", "q4_0": "int4"},
    "onnxruntime": {"q8_0": "int8", "q4_0": "int4"},
}
MAKERS = {"llama.cpp": "gguf_twin.py", "openvino": "openvino_twin.py", "onnxruntime": "onnx_twin.py"}
METRICS = {
    "prefill": "prefill of 512 tokens",
    "decode": "decode of 128 tokens",
    "depth": "decode at position 2,048",
    "batch8": "8 sequences together",
    "batch16": "16 sequences together",
    "batch32": "32 sequences together",
    "start": "start to first token, ms",
}
"""How a table of BENCHMARKS.md names the measurements."""
ALL = {
    "smollm2-135m": ("q8_0", "q4_0", "bf16"),
    "qwen2.5-0.5b": ("q8_0", "q4_0", "bf16"),
    "llama-3.2-1b": ("q8_0", "bf16", "q4_k_m"),
    "llama-3.2-3b": ("q4_k_m",),
    "stories15m": ("q8_0",),
}
"""The usual shapes and types."""


class PeerError(Exception):
    """A peer does not run here."""


@dataclass
class Peer:
    """An engine in its process."""

    name: str
    version: str
    python: str
    model: Path
    dtype: str
    threads: int
    folder: Path | None = None
    """Where its programs are, for an engine that is no Python package."""
    about: str = ""
    process: subprocess.Popen[str] | None = None
    values: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """By metric and round: the value, and how many processors others used meanwhile."""
    peaks: list[float] = field(default_factory=list)

    def command(self) -> list[str]:
        engine = self.name.partition(" ")[0]
        folder = [str(self.folder)] if self.folder else []
        return [self.python, WORKER, engine, str(self.model), str(self.threads), self.dtype, *folder]

    def has(self, metric: str) -> bool:
        """ik_llama.cpp's programs tell speeds, not when a first token is there."""
        return metric != "start" or self.folder is None

    def begin(self) -> None:
        self.process = subprocess.Popen(
            self.command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.about = self.read()["about"]

    def read(self) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise PeerError(f"it ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, task: dict[str, Any]) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(task) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise PeerError(f"it ended with {self.process.wait()}") from None
        return self.read()

    def end(self) -> None:
        if self.process is not None:
            with contextlib.suppress(BrokenPipeError), self.process:  # closes its pipes
                self.process.kill()

    def start(self) -> Start | str:
        if self.name == "ropechat":
            from ropechat.engine.bench.start import run_command

            options = ["-m", str(self.model), "--dtype", self.dtype, "--threads", str(self.threads)]
            return start_process(run_command(options))
        return start_process([*self.command(), "--start"])


# ---- Which peers there are


def find_peers(pythons: Sequence[str], ik: Path | None, model: Path, dtype: str, threads: int) -> list[Peer]:
    """ropechat first. What is missing is named on stderr."""
    own = "auto" if model.suffix == ".gguf" else dtype
    found = [Peer("ropechat", "", sys.executable, model, own, threads)]
    for python in pythons:
        listed = subprocess.run([python, WORKER, "--list"], capture_output=True, text=True, check=True)
        for name, version in json.loads(listed.stdout).items():
            if name == "ropechat":
                continue
            kind = FORMATS[name].get(dtype)
            if kind is None:
                say(f"{name}: has no {dtype}; left out")
                continue
            twin = twin_of(name.removesuffix("-f32"), python, model, kind)
            if twin is not None:
                others = [peer for peer in found if peer.name.startswith(name)]
                label = f"{name} ({Path(python).parent.parent.name})" if others else name
                found.append(Peer(label, version, python, twin, dtype, threads))
    if ik is not None and (peer := ik_peer(ik, pythons[0], model, dtype, threads)):
        found.append(peer)
    for name, how in INSTALL.items():
        if not any(peer.name.startswith(name) for peer in found):
            say(f"{name}: not here; {how}, and name that Python with --peer-python")
    return found


def ik_peer(folder: Path, python: str, model: Path, dtype: str, threads: int) -> Peer | None:
    """ik_llama.cpp, which the user built."""
    programs = [folder / name for name in ("llama-bench", "llama-batched-bench")]
    if missing := [program for program in programs if not program.is_file()]:
        raise SystemExit(f"--ik {folder}: must have {missing[0].name}; --help says how to build it")
    twin = twin_of("llama.cpp", python, model, dtype)
    if twin is None:
        return None
    return Peer("ik_llama.cpp", "", python, twin, dtype, threads, folder.absolute())


def twin_of(name: str, python: str, model: Path, kind: str) -> Path | None:
    """The same weights in a peer's own format, made once."""
    if model.suffix == ".gguf":
        return model
    path = model.parent / f"{model.name}-{kind}.{ {'llama.cpp': 'gguf'}.get(name, name) }"
    if path.exists():
        return path
    say(f"making {path.name}")
    command = [python, str(HERE / MAKERS[name]), str(model), str(path), kind]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        words = done.stderr.strip().rpartition("\n")[2]
        say(f"{name}: no model: {words or f'it ended with {done.returncode}'}; {INSTALL[name]}")
        return None
    return path


# ---- Measuring


@dataclass(frozen=True)
class Options:
    metrics: tuple[str, ...]
    rounds: int
    patience: float
    retries: int


def measured(peer: Peer, metric: str, prompts: Prompts, plan: Workload) -> tuple[float, float, float]:
    """The value, and seconds of wall and of processor that it took."""
    if metric == "prefill":
        answer = peer.ask({"task": "run", "ids": prompts.draw(plan.prefill), "decode": 0})
        value = plan.prefill / answer["values"][0]
    elif metric in ("decode", "depth"):
        length, count = (
            (plan.decode_prompt, plan.decode) if metric == "decode" else (plan.depth, plan.depth_decode)
        )
        answer = peer.ask({"task": "run", "ids": prompts.draw(length), "decode": count})
        value = count / answer["values"][1]
    else:
        many = [prompts.draw(plan.batch_prompt) for _ in range(int(metric.removeprefix("batch")))]
        answer = peer.ask({"task": "batch", "prompts": many, "decode": plan.batch_decode})
        value = answer["values"]
    return value, answer["wall_s"], answer["cpu_s"]


def undisturbed(
    peer: Peer, metric: str, prompts: Prompts, plan: Workload, options: Options
) -> tuple[float, float]:
    """Repeated while others work: the least disturbed value, and how many processors others used."""
    tries = []
    for _ in range(options.retries + 1):
        wait_for_quiet(options.patience)
        before = busy_seconds()
        if metric == "start":
            start = peer.start()
            if isinstance(start, str):
                raise PeerError(start)
            peer.peaks.append((start.peak_bytes or 0) / 1e6)
            return start.seconds * 1e3, 0.0
        value, wall, cpu = measured(peer, metric, prompts, plan)
        others = max(0.0, busy_seconds() - before - cpu - TICKS) / wall
        tries.append((others, value))
        if others <= DISTURBED:
            break
    others, value = min(tries)
    if others > DISTURBED:
        say(f"{peer.name}: {metric}: others used {others:.1f} processors meanwhile: left out")
    return value, others


def run_rounds(peers: list[Peer], plan: Workload, options: Options, vocab_size: int) -> list[dict[str, Any]]:
    """Fills each peer's values; returns what the machine was like in each round."""
    prompts, memory, rounds = Prompts(vocab_size), Memory(plan.probe_megabytes), []
    for index in range(-1, options.rounds):  # the first one warms up
        about = {"memory_read": memory.read(peers[0].threads), "load_average": load_average()}
        say(f"round {index + 1}/{options.rounds}, load average {about['load_average']}")
        if index >= 0:
            rounds.append(about)
        for metric in options.metrics:
            for peer in list(peers):
                if not peer.has(metric) or (index < 0 and metric not in ("prefill", "start")):
                    continue
                try:
                    value = undisturbed(peer, metric, prompts, plan, options)
                except PeerError as error:
                    say(f"{peer.name}: {metric}: {error}; left out from here on")
                    peer.end()
                    peers.remove(peer)
                    continue
                if index >= 0:
                    peer.values.setdefault(metric, []).append(value)
    return rounds


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---- Telling


def kept_of(values: Sequence[tuple[float, float]], keep: Sequence[bool]) -> Spread:
    """Of the rounds that count, what nobody disturbed; everything where that is nothing."""
    calm = [value for (value, others), kept in zip(values, keep, strict=True) if kept and others <= DISTURBED]
    return Spread.of(calm or [value for value, _ in values])


def report_of(
    peers: Sequence[Peer], rounds: Sequence[dict[str, Any]], about: dict[str, Any]
) -> dict[str, Any]:
    keep = find_quiet_rounds([one["memory_read"] for one in rounds])
    results: list[dict[str, Any]] = []
    for peer in peers:
        spreads = {metric: kept_of(values, keep).record() for metric, values in peer.values.items()}
        names = {"engine": peer.name, "version": peer.version, "about": peer.about, "file": peer.model.name}
        results.append(names | spreads | ({"peak_mb": max(peer.peaks)} if peer.peaks else {}))
    for result in results[1:]:
        for metric in peers[0].values.keys() & result.keys():
            ours, theirs = results[0][metric]["median"], result[metric]["median"]
            result[metric]["ratio"] = theirs / ours if metric == "start" else ours / theirs
    return about | {"rounds": list(rounds), "left_out": keep.count(False), "results": results}


def table(report: dict[str, Any], metrics: Sequence[str]) -> str:
    """A column for each measurement; in brackets how many times as fast as the peer ropechat is."""
    rows = [["engine", "version", *metrics, *(["peak MB"] if "start" in metrics else [])]]
    for result in report["results"]:
        cells = [result["engine"], result["version"]]
        for metric in metrics:
            spread = result.get(metric)
            if spread is None:
                cells.append("–")
                continue
            ratio = f" [{spread['ratio']:.2f}x]" if "ratio" in spread else ""
            cells.append(f"{spread['median']:.1f} ({spread['min']:.1f}-{spread['max']:.1f}){ratio}")
        rows.append(cells + ([f"{result.get('peak_mb', 0):.0f}"] if "start" in metrics else []))
    loads = [one["load_average"] for one in report["rounds"]]
    reads = [one["memory_read"] / 1e9 for one in report["rounds"]]
    head = (
        f"{report['shape']}, {report['dtype']}, {report['threads']} threads; tokens/s (start: ms), "
        f"median (min-max) of {len(loads) - report['left_out']} rounds; "
        f"load average {min(loads)}-{max(loads)}, memory read {min(reads):.1f}-{max(reads):.1f} GB/s"
    )
    abouts = [f"{one['engine']}: {one['file']}, {one['about']}" for one in report["results"]]
    return "\n".join([head, *aligned(rows, 2), *abouts])


def markdown(reports: Sequence[dict[str, Any]]) -> str:
    """A table for BENCHMARKS.md: tokens per second, and how many times as fast as each peer ropechat is."""
    first = reports[0]
    names = {one["engine"]: one["version"] for report in reports for one in report["results"][1:]}
    loads = [one["load_average"] for report in reports for one in report["rounds"]]
    dates = sorted({date.fromtimestamp(report["time"]).isoformat() for report in reports})
    days = sorted({dates[0], dates[-1]})
    rounds = sorted({len(report["rounds"]) - report["left_out"] for report in reports})
    threads = f"{first['threads']} thread{'s' * (first['threads'] > 1)}"
    count = " to ".join(map(str, sorted({rounds[0], rounds[-1]})))
    head = (
        f"{processor_name()}, {first['results'][0]['about']}, {threads}, {' to '.join(days)}: medians of"
        f" {count} alternating rounds (smallest to largest), load average {min(loads)} to {max(loads)}."
        " The other columns: how many times as fast as that engine."
    )
    lines = [["", "tokens/s", *(f"{name} {version}".strip() for name, version in names.items())]]
    lines.append(["---"] * len(lines[0]))
    for report in reports:
        ours, *others = report["results"]
        ratios = {one["engine"]: one for one in others}
        for metric in METRICS:
            if spread := ours.get(metric):
                cells = [f"{spread['median']:,.4g} ({spread['min']:,.4g} to {spread['max']:,.4g})"]
                for name in names:
                    ratio = ratios.get(name, {}).get(metric, {}).get("ratio")
                    cells.append(f"{ratio:.2f}" if ratio else "")
                lines.append([f"{report['shape']} {report['dtype']}: {METRICS[metric]}", *cells])
    return "\n".join([head, "", *(f"| {' | '.join(cells)} |" for cells in lines)])


def compare(shape: str, dtype: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    if dtype == "q4_k_m" and not has_whole_blocks(config_of(shape)):
        raise SystemExit(f"{dtype}: rows of {shape} are not multiples of 256; take a larger --shape")
    if dtype != "q4_k_m" and config_of(shape)["model_type"] != "llama":
        raise SystemExit(f"{shape}: peers have it as --dtype q4_k_m only")
    model = make_gguf(shape, folder, say) if dtype == "q4_k_m" else make(shape, folder, say)
    plan = Workload().fitted(config_of(shape)["max_position_embeddings"])
    if given.quick:
        from ropechat.engine.bench.measure import QUICK as plan
    metrics = tuple(given.metrics.split(","))
    options = Options(metrics, given.rounds, given.patience, given.retries)
    peers = find_peers(given.peer_python or [sys.executable], given.ik, model, dtype, given.threads)
    try:
        for peer in list(peers):
            say(f"loading {peer.name}")
            try:
                peer.begin()
            except PeerError as error:
                say(f"{peer.name}: {error}; left out")
                peer.end()
                peers.remove(peer)
        rounds = run_rounds(peers, plan, options, config_of(shape)["vocab_size"])
    finally:
        for peer in peers:
            peer.end()
    about = {"shape": shape, "dtype": dtype, "threads": given.threads, "time": int(time.time())}
    return report_of(peers, rounds, about)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], epilog=IK_BUILD, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shape", action="append", choices=SHAPES, help="may be repeated")
    parser.add_argument(
        "--dtype", action="append", choices=["q8_0", "q4_0", "bf16", "q4_k_m"], help="may be repeated"
    )
    parser.add_argument("--all", action="store_true", help="the usual shapes and types, 15M to 3B")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--metrics", default=",".join(METRICS), help=",".join(METRICS))
    parser.add_argument("--peer-python", action="append", help="a Python that has peers; may be repeated")
    parser.add_argument("--ik", type=Path, metavar="FOLDER", help="programs of ik_llama.cpp, built as below")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for an idle machine")
    parser.add_argument("--retries", type=int, default=3, help="of a measurement that others disturbed")
    parser.add_argument("--folder", type=Path, default=cache_folder() / "bench", help="where models lie")
    parser.add_argument("--quick", action="store_true", help="shows that it works, measures little")
    parser.add_argument("--json", action="store_true", help="one object for each shape and dtype")
    parser.add_argument("--markdown", action="store_true", help="at the end one table, for BENCHMARKS.md")
    given = parser.parse_args()
    if given.all and (given.shape or given.dtype):
        parser.error("--all excludes --shape and --dtype")
    wanted = ALL if given.all else dict.fromkeys(given.shape or ["smollm2-135m"], given.dtype or ["q8_0"])
    reports = []
    for shape, dtypes in wanted.items():
        for dtype in dtypes:
            report = compare(shape, dtype, given, given.folder)
            metrics = [name for name in given.metrics.split(",") if name in report["results"][0]]
            print(json.dumps(report) if given.json else table(report, metrics) + "\n", flush=True)
            reports.append(report)
    if given.markdown:
        print(markdown(reports))


if __name__ == "__main__":
    main()
