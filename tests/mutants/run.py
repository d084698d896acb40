"""Checks that the tests notice faults: applies each one-line fault of `mutants.toml` to a copy of the tree, runs the tests
of its room, and reports the faults that no test noticed.

    python tests/mutants/run.py                  # all; `make mutants`
    python tests/mutants/run.py scheduler ropes  # those whose name holds one of these words
    python tests/mutants/run.py --list
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

TOP = Path(__file__).parents[2]
LIMIT_S = 900  # a fault that makes a test wait for ever is noticed too


def copy_tree(to: Path) -> None:
    """The files that git tracks, as they are now, and the compiled engine."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=TOP, check=True, capture_output=True).stdout
    built = [str(path.relative_to(TOP)) for path in (TOP / "ropechat" / "engine").glob("_core*.so")]
    for name in [name.decode() for name in listed.split(b"\0") if name] + built:
        if (TOP / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(TOP / name, to / name)


def command_of(mutant: dict[str, Any], tree: Path) -> tuple[list[str], dict[str, str]]:
    if mutant["file"].endswith(".rs"):
        # Beside the ordinary builds, so that these stay as they are.
        target = {"CARGO_TARGET_DIR": str(TOP / "target" / "mutants")}
        return ["cargo", "test", "--quiet", "--no-fail-fast", *mutant["tests"]], target
    pytest = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider"]
    return [*pytest, *mutant["tests"]], {"PYTHONPATH": str(tree)}


def run_tests(mutant: dict[str, Any], tree: Path) -> tuple[int, str]:
    """The exit code of the tests of the mutant's room, and what they printed."""
    command, variables = command_of(mutant, tree)
    environment = {**os.environ, **variables}
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return 1, f"no end after {LIMIT_S} s"
    return done.returncode, done.stdout + done.stderr


def is_caught(mutant: dict[str, Any], tree: Path) -> bool:
    file = tree / mutant["file"]
    before = file.read_text(encoding="utf-8")
    if before.count(mutant["old"]) != 1:
        sys.exit(f"{mutant['name']}: {mutant['file']} must hold {mutant['old']!r} once")
    file.write_text(before.replace(mutant["old"], mutant["new"]), encoding="utf-8")
    try:
        code, output = run_tests(mutant, tree)
    finally:
        file.write_text(before, encoding="utf-8")
    if code != 0 and "error: could not compile" in output:
        sys.exit(f"{mutant['name']}: does not compile\n{output[-3000:]}")
    if code not in (0, 1, 101):
        sys.exit(f"{mutant['name']}: the tests could not run (exit code {code})\n{output[-3000:]}")
    return code != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only mutants whose name holds one of these")
    parser.add_argument("--list", action="store_true", help="print the names")
    chosen = parser.parse_args()
    every = tomllib.loads((Path(__file__).parent / "mutants.toml").read_text(encoding="utf-8"))["mutant"]
    mutants = [one for one in every if not chosen.words or any(word in one["name"] for word in chosen.words)]
    if chosen.list:
        print(*(one["name"] for one in mutants), sep="\n")
        return
    survivors = []
    with tempfile.TemporaryDirectory(prefix="ropechat-mutants-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        for one in mutants:
            begun = time.monotonic()
            caught = is_caught(one, tree)
            word = "caught" if caught else "SURVIVED"
            print(f"{word:9}{one['name']} ({time.monotonic() - begun:.0f} s)", flush=True)
            survivors += [] if caught else [one["name"]]
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} caught")
    if survivors:
        sys.exit("survived: " + ", ".join(survivors))


if __name__ == "__main__":
    main()
