"""The engine under a sanitizer, built by the stable compiler with RUSTC_BOOTSTRAP=1:

    python tests/trust/sanitize.py thread [--rounds 20]    data races: tests of the kernels, threads.py
    python tests/trust/sanitize.py address                 memory: tests of kernels and engine, and every
                                                           golden case on every instruction set

Rust is instrumented: the crates of this project and those that they use, but not the standard library, which
comes compiled (`tsan.txt` says what that means). Nor are Python, NumPy and the tokenizers, and in the kernels
the tile instructions of AMX. ThreadSanitizer checks no access of more than 16 bytes: its kernels are the
scalar ones. After a fork it watches the parent only.

Outputs and reports are in target/sanitize. Exit code 1 if there was a report, or a test failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILT = ROOT / "target" / "sanitize" / "build"
"""Of both kinds, since what runs while compiling is the same."""
TRIPLE = "x86_64-unknown-linux-gnu"
FLAGS = {
    "thread": "--cfg tsan -Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer",
    "address": "--cfg asan -Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer",
}
RUN_TIME = {
    "thread": f"suppressions={HERE}/tsan.txt:die_after_fork=0:history_size=4",
    "address": "allocator_may_return_null=1",
}
ISAS = "scalar avx2 avx-vnni avx512 avx512-vnni avx512-bf16 amx"
"""Those of x86-64; what the processor lacks is skipped."""
REPORT = re.compile(r"(?:WARNING|ERROR): (?:Thread|Address|Leak)Sanitizer.*")


class Sanitizer:
    """kind: a key of FLAGS. folder: where it builds and writes."""

    def __init__(self, kind: str) -> None:
        self.kind, self.folder = kind, ROOT / "target" / "sanitize" / kind
        self.core = self.folder / "_core.so"
        self.reports = self.folder / "reports"
        self.reports.mkdir(parents=True, exist_ok=True)
        for old in self.reports.iterdir():
            old.unlink()
        self.environment = {
            **os.environ,
            "RUSTC_BOOTSTRAP": "1",
            "RUSTFLAGS": FLAGS[kind],
            "PYO3_PYTHON": sys.executable,
            "PYO3_BUILD_EXTENSION_MODULE": "1",
            "PLAIN_PYTHON": sys.executable,
            "SANITIZED_CORE": str(self.core),
            "ROPECHAT_CACHE": "off",
            "PYTHONPATH": str(HERE),
            "OPENBLAS_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        self.is_sound = True

    def run(self, name: str, command: list[str], options: str = "", **more: str) -> str:
        """Run a command; its output, which is kept under this name."""
        run_time = f"{RUN_TIME[self.kind]}:log_path={self.reports}/{name}"
        run_time = ":".join(filter(None, (run_time, options)))
        environment = {**self.environment, "TSAN_OPTIONS": run_time, "ASAN_OPTIONS": run_time, **more}
        log = self.folder / f"{name}.log"
        with log.open("wb") as file:
            ended = subprocess.run(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)
        text = log.read_text("utf-8", "replace")
        if ended.returncode and name != "fault":
            self.is_sound = False
            print(f"{name}: exit code {ended.returncode}; output in {log.relative_to(ROOT)}", flush=True)
            print("\n".join(text.splitlines()[-15:]), flush=True)
        return text

    def found(self, name: str = "") -> list[str]:
        """The first lines of reports."""
        texts = (path.read_text("utf-8", "replace") for path in sorted(self.reports.glob(f"{name}*")))
        return [line for text in texts for line in REPORT.findall(text)]

    def cargo(self, command: str, *words: str) -> list[str]:
        built = ("--profile", "sanitize", "--target", TRIPLE, "--target-dir", str(BUILT))
        return ["cargo", command, "--quiet", *built, *words]

    def build(self) -> None:
        """The module for Python."""
        self.run("build", self.cargo("build", "-p", "ropechat-python"))
        shutil.copy(BUILT / TRIPLE / "sanitize" / "lib_core.so", self.core)

    def tests(self, package: str, *words: str) -> str:
        """The tests of a crate: how many passed."""
        text = self.run(package, self.cargo("test", "-p", package, "--test", "all", "--", *words))
        passed = sum(map(int, re.findall(r"(\d+) passed", text)))
        return f"{passed} tests of {package}"

    def python(self) -> str:
        """A Python with the sanitizer's runtime, in an environment like this one."""
        folder, program = self.folder / "python", self.folder / "python" / "bin" / "python"
        program.parent.mkdir(parents=True, exist_ok=True)
        (folder / "pyvenv.cfg").write_bytes((Path(sys.prefix) / "pyvenv.cfg").read_bytes())
        if not (folder / "lib").is_symlink():
            (folder / "lib").symlink_to(Path(sys.prefix) / "lib")
        if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
            sys.exit(f"{sys.executable}: must have a shared library (configure --enable-shared)")
        library = sysconfig.get_config_var("LIBDIR")
        linked = f"-Clink-args=-Wl,--export-dynamic -Wl,-rpath,{library}"
        name = f"dylib=python{sysconfig.get_config_var('LDVERSION')}"
        command = ["rustc", "--edition=2024", "-g", f"--target={TRIPLE}", *FLAGS[self.kind].split(), linked]
        self.run(
            "launcher", [*command, "-L", library, "-l", name, "-o", str(program), str(HERE / "launcher.rs")]
        )
        self.run("fault", [str(program), "--fault"])
        if not self.found("fault"):
            sys.exit(f"{self.kind}: the sanitizer does not report a fault; see {self.folder / 'fault.log'}")
        for path in self.reports.glob("fault*"):
            path.unlink()
        return str(program)


def thread(rounds: int) -> Sanitizer:
    """Data races."""
    sanitizer = Sanitizer("thread")
    # A message that panics print is written by the standard library, in turns that are not seen.
    parts = [sanitizer.tests("ropechat-kernels", "--skip", "a_job_inside_a_job")]
    sanitizer.build()
    python = sanitizer.python()
    for name, options in (("threads", ""), ("ordered", "force_seq_cst_atomics=1:suppressions=")):
        text = sanitizer.run(name, [python, str(HERE / "threads.py"), str(rounds)], options)
        parts += re.findall(r"^threads \d+: (.*)", text, re.MULTILINE)[-1:] or [f"{name}: no result"]
    return report(sanitizer, parts)


def address(_rounds: int) -> Sanitizer:
    """Wrong accesses of memory."""
    sanitizer = Sanitizer("address")
    parts = [sanitizer.tests("ropechat-kernels"), sanitizer.tests("ropechat-core")]
    sanitizer.build()
    pytest = [sanitizer.python(), *("-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "--timeout", "0")]
    # Python does not free what it has at its end.
    golden = [*pytest, "-p", "sanitized_core", "tests/engine/test_golden.py", "-k", "greedy"]
    text = sanitizer.run("golden", golden, "detect_leaks=0", ROPECHAT_TEST_ISAS=ISAS)
    found = re.findall(r"(\d+) passed", text)
    parts.append(f"{found[-1] if found else 'no'} generations of golden cases, by case and instruction set")
    return report(sanitizer, parts)


def report(sanitizer: Sanitizer, parts: list[str]) -> Sanitizer:
    """Print what ran, and what was reported."""
    found = sanitizer.found()
    for line in found[:20]:
        print(line)
    sanitizer.is_sound &= not found
    print(f"sanitize {sanitizer.kind}: {'; '.join(parts)}; {len(found)} reports", flush=True)
    return sanitizer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=(*FLAGS,))
    parser.add_argument("--rounds", type=int, default=20, help="things that each of the eight threads does")
    args = parser.parse_args()
    sanitizer = {"thread": thread, "address": address}[args.kind](args.rounds)
    return int(not sanitizer.is_sound)


if __name__ == "__main__":
    sys.exit(main())
