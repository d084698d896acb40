"""Coverage-guided fuzzing of what strangers write:

    python tests/trust/fuzz.py TARGET|all|files [--seconds 60] [--merge]

Targets in Rust (rust/fuzz: libFuzzer with AddressSanitizer, built by the stable compiler with
RUSTC_BOOTSTRAP=1; INSTRUMENTED below) and in Python (targets.py: atheris); `files` are those that read the
files of a model. Seeds are made from the golden cases, and from tests/trust/corpus.zip if it has some for the
target; what is found grows in target/fuzz/corpus/TARGET. A finding is kept in target/fuzz/findings/TARGET;
run it again by naming the file after the target. Each run adds a line to target/fuzz/runs/TARGET.jsonl; the
sums at the end are of all runs since the last finding. --merge replaces the corpus by a smallest one that
reaches as much, and writes it into tests/trust/corpus.zip.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

GOLDEN = ROOT / "tests" / "golden"
WORK = ROOT / "target" / "fuzz"
STORED = Path(__file__).with_name("corpus.zip")
TRIPLE = "x86_64-unknown-linux-gnu"
RUST = ("safetensors", "index", "config", "gguf", "gguf_split", "blocks", "matmul", "model")
PYTHON = (
    *("tokenizer", "gguf_vocabulary", "template", "batch", "openai_body", "grammar", "journal"),
    *("settings", "chat_import", "markdown", "terminal_text", "keys", "records"),
)
FILES = ("safetensors", "index", "config", "gguf", "gguf_split", "tokenizer", "gguf_vocabulary", "template")
"""Those that read the files of a model."""
GROUPS = {"all": (*RUST, *PYTHON), "files": FILES}
TIMEOUT_S = 20
LARGEST = {"gguf": 70_000, "gguf_split": 70_000, "tokenizer": 8000}
"""Bytes of an input; 4,000 for the others."""
COVERAGE = (
    *("-Zsanitizer=address", "-Cpasses=sancov-module", "-Cllvm-args=-sanitizer-coverage-level=4"),
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    *("-Cllvm-args=-sanitizer-coverage-pc-table", "-Cllvm-args=-sanitizer-coverage-trace-compares"),
)
INSTRUMENTED = ("ropechat-fuzz", "ropechat-core", "ropechat-platform", "serde_json")
"""What reads files: the crates with counters of branches and AddressSanitizer. The kernels, whose branches do
not follow a file, take four of six minutes of processor time to compile even without."""
STORED_BYTES = 32_000
"""What corpus.zip keeps of a target's inputs, before it is packed."""


def build() -> Path:
    """The fuzzer of all Rust targets."""
    environment = {**os.environ, "RUSTC_BOOTSTRAP": "1"}
    command = ["cargo", "build", "--release", "--quiet", "--target", TRIPLE, "--target-dir", str(WORK)]
    command.append("-Zprofile-rustflags")
    for package in INSTRUMENTED:
        command += ["--config", f"profile.release.package.{package}.rustflags={[*COVERAGE]}"]
    subprocess.run(command, cwd=ROOT / "rust" / "fuzz", env=environment, check=True)
    return WORK / TRIPLE / "release" / "ropechat-fuzz"


def rust_seeds(target: str) -> list[bytes]:
    """Small valid inputs of a Rust target."""
    configs = [path.read_bytes() for path in sorted(GOLDEN.glob("*/config.json"))]
    match target:
        case "config" | "model":
            return configs
        case "safetensors":
            files = [path.read_bytes() for path in sorted(GOLDEN.glob("*_old/model.safetensors"))[:12]]
            headers = [file[8 : 8 + int.from_bytes(file[:8], "little")] for file in files]
            return [header for header in headers if len(header) < 4000]
        case "index":
            return [b'{"metadata":{"total_size":8},"weight_map":{"a":"a.safetensors","b":"b.safetensors"}}']
        case "gguf":
            return [(GOLDEN / "gguf" / name / "q4_0.gguf").read_bytes() for name in ("llama3", "qwen2")]
        case "gguf_split":
            whole = (GOLDEN / "gguf" / "types" / "blocks.gguf").read_bytes()
            return [len(whole).to_bytes(2, "little") + whole + whole]
    return [bytes([kind]) + bytes(range(256)) * 2 for kind in range(16)]


def stored() -> dict[str, list[bytes]]:
    """The inputs of each target in corpus.zip: a JSON list each, of a character per byte."""
    if not STORED.exists():
        return {}
    with zipfile.ZipFile(STORED) as archive:
        names = archive.namelist()
        return {name: [text.encode("latin-1") for text in json.loads(archive.read(name))] for name in names}


def corpus(target: str) -> Path:
    """The folder of a target's inputs, with its seeds."""
    folder = WORK / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    if target in RUST:
        found = rust_seeds(target)
    else:
        import targets

        found = targets.seeds(target)
    found += stored().get(target, [])
    for number, data in enumerate(found):
        (folder / f"seed{number:03}").write_bytes(data)
    return folder


def command(target: str) -> list[str]:
    """The fuzzer of a target, without options."""
    if target in RUST:
        return [str(build())]
    return [sys.executable, str(Path(__file__).with_name("fuzz_python.py")), target]


@dataclass(frozen=True)
class Run:
    """What a target did, in seconds of processor time."""

    executions: int = 0
    seconds: float = 0
    findings: int = 0


def fuzz(target: str, seconds: int, more: list[str]) -> Run:
    """Run a target for so many seconds, or with libFuzzer's words for something else."""
    findings = WORK / "findings" / target
    findings.mkdir(parents=True, exist_ok=True)
    options = [
        *(
            "-print_final_stats=1",
            f"-timeout={TIMEOUT_S}",
            "-rss_limit_mb=4000",
            "-malloc_limit_mb=512",
            "-use_value_profile=1",
        ),
        *(
            f"-max_len={LARGEST.get(target, 4000)}",
            f"-artifact_prefix={findings}/",
            f"-max_total_time={seconds}",
        ),
    ]
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as scratch:
        environment = {**os.environ, "TARGET": target, "FUZZ_FOLDER": scratch, "ROPECHAT_CACHE": "off"}
        environment["ASAN_OPTIONS"] = "detect_leaks=0:allocator_may_return_null=1"
        given = more or [str(corpus(target))]
        ended, used = _timed([*command(target), *options, *given], environment)
        is_found = ended.returncode != 0 and not _was_starved(target, ended.stderr, environment)
    log = WORK / "findings" / f"{target}.log"
    log.write_text(ended.stdout + ended.stderr)
    count = re.findall(r"number_of_executed_units: (\d+)", ended.stderr)
    if is_found or not count:
        print("\n".join(ended.stderr.splitlines()[-40:]))
    found = Run(int(count[-1]) if count else 0, used, int(is_found))
    if not more:
        (WORK / "runs").mkdir(exist_ok=True)
        keep(target, found)
    return found


def _timed(words: list[str], environment: dict[str, str]) -> tuple[subprocess.CompletedProcess[str], float]:
    """A command that has ended, and its seconds of processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, errors="replace")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _was_starved(target: str, said: str, environment: dict[str, str]) -> bool:
    """Whether a target only ran out of time because the machine was busy: libFuzzer's clock is the wall's."""
    late = re.findall(r"Test unit written to (\S*/timeout-\w+)", said)
    if not late:
        return False
    alone, used = _timed([*command(target), f"-timeout={100 * TIMEOUT_S}", late[-1]], environment)
    return alone.returncode == 0 and used < TIMEOUT_S


def keep(target: str, run: Run) -> None:
    """Add a run to those of a target."""
    with (WORK / "runs" / f"{target}.jsonl").open("a") as file:
        file.write(json.dumps(asdict(run)) + "\n")


def runs_of(target: str) -> Run:
    """The sum of a target's runs since the last that found something."""
    path, total = WORK / "runs" / f"{target}.jsonl", Run()
    for line in path.read_text().splitlines() if path.exists() else ():
        run = Run(**json.loads(line))
        if run.findings or total.findings:
            total = Run()
        total = Run(total.executions + run.executions, total.seconds + run.seconds, run.findings)
    return total


def merge(target: str) -> None:
    """Keep a smallest corpus that reaches as much, and the smallest files of it in corpus.zip."""
    folder = corpus(target)
    with tempfile.TemporaryDirectory() as name:
        smallest = Path(name)
        fuzz(target, 0, ["-merge=1", str(smallest), str(folder)])
        if not any(smallest.iterdir()):
            return
        for path in folder.iterdir():
            path.unlink()
        kept, size = list[bytes](), 0
        for path in sorted(smallest.iterdir(), key=lambda path: path.stat().st_size):
            data = path.read_bytes()
            (folder / path.name).write_bytes(data)
            size += len(data)
            if size < STORED_BYTES:
                kept.append(data)
    whole = stored() | {target: kept}
    with zipfile.ZipFile(STORED, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, inputs in sorted(whole.items()):
            texts = json.dumps([data.decode("latin-1") for data in inputs])
            archive.writestr(zipfile.ZipInfo(name), texts, zipfile.ZIP_DEFLATED, 9)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("target", choices=(*GROUPS, *RUST, *PYTHON))
    parser.add_argument("more", nargs="*", help="files to run once, or libFuzzer's options")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--merge", action="store_true")
    args = parser.parse_args()
    chosen, failed = GROUPS.get(args.target, (args.target,)), 0
    if {*chosen} & {*PYTHON} and importlib.util.find_spec("atheris") is None:
        sys.exit("atheris is not installed; `make fuzz` installs it")
    for target in chosen:
        if args.merge:
            merge(target)
            continue
        run = fuzz(target, args.seconds, args.more)
        failed |= run.findings
        found = "a finding" if run.findings else "none found"
        print(f"{target}: {run.executions:,} executions, {found}", flush=True)
    if args.merge or args.more:
        return failed
    runs = [runs_of(target) for target in chosen]
    executions, findings = sum(run.executions for run in runs), sum(run.findings for run in runs)
    said = f"fuzz: {len(chosen)} targets, {executions:,} executions, {findings} findings"
    if of_files := [run.seconds for target, run in zip(chosen, runs, strict=True) if target in FILES]:
        said += f"; at least {min(of_files) // 60:.0f} minutes of CPU time of each reader of a model's files"
    print(said)
    return failed


if __name__ == "__main__":
    sys.exit(main())
