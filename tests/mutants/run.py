"""Checks that the tests notice faults: applies each one-line fault of `mutants.toml` to a copy of the tree,
runs the tests of its room, and reports the faults that no test noticed.

    python tests/mutants/run.py                  # all; `make mutants`
    python tests/mutants/run.py scheduler ropes  # those whose name holds one of these words
    python tests/mutants/run.py --list

The copy and what is compiled of it lie in `target/mutants`, beside the ordinary builds, and are used again.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).parents[2]
TREE = TOP / "target" / "mutants" / "tree"
CARGO = TREE.with_name("cargo")
LIMIT_S = 900  # a fault that makes a test wait for ever is noticed too
PASSED, FAILED, PANICKED = 0, 1, 101
_NOTICED_BY = re.compile(r"^(?:FAILED (\S+)|test (\S+) \.\.\. FAILED$)", re.MULTILINE)


class Mutant(NamedTuple):
    """A fault: `old`, which occurs once in `file`, becomes `new`.

    tests: the arguments of pytest, or of cargo test.
    """

    name: str
    file: str
    old: str
    new: str
    tests: list[str]

    @property
    def needs_build(self) -> bool:
        """Whether tests in Python notice a fault in Rust."""
        return self.file.endswith(".rs") and is_pytest(self.tests)


class Outcome(NamedTuple):
    """What tests said. test: the first one that failed, where the output names it."""

    passed: bool
    test: str
    output: str


def copy_tree() -> None:
    """Copy the files that git knows, as they are now, and the compiled engine; equal ones keep their time."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=TOP, check=True, capture_output=True).stdout
    names = {name.decode() for name in listed.split(b"\0") if name}
    names |= {str(path.relative_to(TOP)) for path in (TOP / "ropechat" / "engine").glob("_core*.so")}
    wanted = {TREE / name for name in names if (TOP / name).is_file()}
    for file in [file for file in TREE.rglob("*") if file.is_file() and file not in wanted]:
        file.unlink()
    for file in wanted:
        source = TOP / file.relative_to(TREE)
        if not file.exists() or file.read_bytes() != source.read_bytes():
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, file)


def is_pytest(tests: list[str]) -> bool:
    return tests[0].startswith("tests/")


def run_tests(tests: list[str]) -> Outcome:
    """Run tests in the copy."""
    if is_pytest(tests):
        return run([sys.executable, "-m", "pytest", "-x", "-rf", "-p", "no:cacheprovider", *tests])
    return run(["cargo", "test", *tests])


def build() -> None:
    """Compile the engine of the copy, as for tests: slower than the release, and compiled much sooner."""
    run(["cargo", "build", "--profile", "test", "-p", "ropechat-python"], limit=None)
    [made] = [path for path in (CARGO / "debug").glob("lib_core.*") if path.suffix in (".so", ".dylib")]
    [engine] = (TREE / "ropechat" / "engine").glob("_core*.so")
    engine.unlink()
    shutil.copy(made, engine)


def run(command: list[str], limit: float | None = LIMIT_S) -> Outcome:
    """Run a command in the copy, for `limit` seconds at most; end with an error if it cannot do its work."""
    variables = {
        "CARGO_TARGET_DIR": str(CARGO),
        "PYO3_BUILD_EXTENSION_MODULE": "1",
        "PYO3_PYTHON": sys.executable,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(TREE),
    }
    with subprocess.Popen(
        command,
        cwd=TREE,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output = process.communicate(timeout=limit)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the programs that tests have started
            return Outcome(False, f"no end after {limit} s", "")
    if process.returncode not in (PASSED, FAILED, PANICKED) or "error: could not compile" in output:
        sys.exit(f"{' '.join(command)}: could not run (exit code {process.returncode})\n{output[-3000:]}")
    found = _NOTICED_BY.search(output)
    test = (found[1] or found[2]) if found else ""
    return Outcome(process.returncode == PASSED, test.rpartition("/")[2], output)


def check_sound(mutants: list[Mutant]) -> None:
    """End with an error unless the tests pass without a fault; else each fault would seem to be noticed."""
    runs = [list(tests) for tests in {tuple(one.tests) for one in mutants if not is_pytest(one.tests)}]
    python = {test for one in mutants if is_pytest(one.tests) for test in one.tests}
    for tests in runs + ([sorted(python)] if python else []):
        outcome = run_tests(tests)
        if not outcome.passed:
            sys.exit(f"fails without a fault: {' '.join(tests)}\n{outcome.output[-3000:]}")


def try_mutant(mutant: Mutant) -> Outcome:
    """Run the tests of a fault's room with the fault, in Rust or in Python."""
    file = TREE / mutant.file
    before = file.read_text(encoding="utf-8")
    if (count := before.count(mutant.old)) != 1:
        sys.exit(f"{mutant.name}: {mutant.file}: must hold {mutant.old!r} once (got {count})")
    file.write_text(before.replace(mutant.old, mutant.new), encoding="utf-8")
    engine = {path: path.read_bytes() for path in (TREE / "ropechat" / "engine").glob("_core*.so")}
    try:
        if mutant.needs_build:
            build()
        return run_tests(mutant.tests)
    finally:
        file.write_text(before, encoding="utf-8")
        for path, data in engine.items():
            path.unlink(missing_ok=True)
            path.write_bytes(data)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="only mutants whose name holds one of these")
    parser.add_argument("--list", action="store_true", help="print the names")
    chosen = parser.parse_args()
    listed = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text(encoding="utf-8"))["mutant"]
    every = [Mutant(**one) for one in listed]
    mutants = [one for one in every if not chosen.words or any(word in one.name for word in chosen.words)]
    if chosen.list:
        print(*(one.name for one in mutants), sep="\n")
        return
    copy_tree()
    check_sound(mutants)
    survivors = []
    for one in mutants:
        begun = time.monotonic()
        outcome = try_mutant(one)
        seconds = f"{time.monotonic() - begun:.0f} s"
        if outcome.passed:
            survivors.append(one.name)
            print(f"SURVIVED {one.name} ({seconds})", flush=True)
        else:
            print(f"caught   {one.name} ({seconds}: {outcome.test})", flush=True)
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} caught")
    if survivors:
        sys.exit("survived: " + "; ".join(survivors))


if __name__ == "__main__":
    main()
