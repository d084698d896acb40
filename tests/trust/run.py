"""Run the checks of `checks.py`, keep their results, and write docs/reliability.md from them.

    make trust                         TRUST=quick: ten minutes on two quiet cores; TRUST=full: hours
    make trust TRUST=full ONLY="chat-screen batch-kill"
    make trust ONLY=chat-screen RUNS=200    so often, in place of what the size says
    make trust TRUST=page              only write the page

Each result is one object in tests/trust/results.json: name, runs, seconds, passed, result, command, date,
machine, commit.
The result of more runs stays until a later one has as many, or fails. Exit code 1 if a check failed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests" / "support")]

from checks import CHECKS, FOUND, Check, Found  # noqa: E402
from pages import table  # noqa: E402

RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs" / "reliability.md"
TAIL = 3000  # characters of the output of a check that failed
HEAD = """# Reliability

What has been done to ropechat to make it fail, and what came of it. `make trust` runs every line:
`TRUST=quick` (without a word) in ten minutes on two quiet cores, `TRUST=full` as often as is promised,
which takes many hours; `ONLY="fork exits"` chooses lines, `RUNS=50` how often. `tests/trust/checks.py` has
the list. The table is written from `tests/trust/results.json`; each line can be repeated with its command.
A commit with + had changed files. The machine is shared, so that a time says little. What follows for you:
[promises](promises.md); against whom: [security](../SECURITY.md).

The first column has the number of the row in the project's list of faults. What these checks found is
[below](#found-and-mended).
"""
FOUND_HEAD = """
## Found and mended

Each fault has a test that would find it again.
"""


def machine() -> str:
    """The processor and its number of cores."""
    name = platform.processor() or platform.machine()
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return name
    found = re.search(r"model name\s*: (.*)", text)
    return f"{found[1].strip() if found else name}, {os.cpu_count()} cores"


def commit() -> str:
    """The short hash of the checkout, with + if files differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    made = (f":!{path.relative_to(ROOT)}" for path in (RESULTS, PAGE))
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *made)
    return git("rev-parse", "--short=8", "HEAD") + ("+" if changed else "")


def shown(check: Check, count: int, python: str = "python") -> str:
    """The command as a person types it."""
    return check.command.replace("{python}", python).replace("{n}", str(count))


def run(check: Check, count: int, log: Path) -> dict[str, Any]:
    """Run a check; what came of it. A command without {n} runs `count` times, to its first failure.

    log: gets the output.
    """
    begun = time.monotonic()
    with log.open("wb") as file:
        for _ in range(1 if "{n}" in check.command else count):
            ended = subprocess.run(
                ["bash", "-c", shown(check, count, shlex.quote(sys.executable))],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            if ended.returncode:
                break
    text = log.read_text("utf-8", "replace")
    found = re.findall(check.result, text)
    return {
        "name": check.name,
        "runs": count,
        "seconds": round(time.monotonic() - begun, 1),
        "passed": ended.returncode == 0,
        "result": found[-1].strip() if found else f"exit code {ended.returncode}",
        "command": shown(check, count),
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "commit": commit(),
    }


def load() -> dict[str, dict[str, Any]]:
    """The results so far, by name."""
    return {one["name"]: one for one in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}


def keep(new: dict[str, Any]) -> None:
    """Keep a result, unless one of more runs is there that passed too."""
    results = load()  # another run may have written since
    old = results.get(new["name"])
    if old is not None and old["passed"] and new["passed"] and old["runs"] > new["runs"]:
        return
    results[new["name"]] = new
    rows = [json.dumps(results[check.name]) for check in CHECKS if check.name in results]
    RESULTS.write_text("[\n" + ",\n".join(rows) + "\n]\n")


def spent(seconds: float) -> str:
    """A time in words."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def page(results: dict[str, dict[str, Any]]) -> str:
    """docs/reliability.md."""

    def row(check: Check) -> tuple[str, ...]:
        one = results.get(check.name)
        if one is None:
            return check.row, check.fault, "", check.target, "not measured yet", "", "", ""
        result = one["result"] if one["passed"] else f"**failed**: {one['result']}"
        command = one["command"].replace("-n 0 -p no:cacheprovider --timeout 0 ", "")
        runs, date = f"{one['runs']:,}", f"{one['date']}, {one['commit']}"
        place = f"{one['machine']}, {spent(one['seconds'])}"
        return check.row, check.fault, runs, check.target, result, f"`{command}`", date, place

    head = ("row", "fault", "runs", "target", "result", "command", "date, commit", "machine, time")
    found = ((one.by, one.fault, f"`{one.test}`") for one in FOUND)
    return HEAD + "\n" + table(head, map(row, CHECKS)) + FOUND_HEAD + "\n" + table(Found._fields, found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("size", choices=("quick", "full", "page"))
    parser.add_argument("only", nargs="*", help="names of checks")
    parser.add_argument("--runs", type=int, help="how often, in place of what the size says")
    args = parser.parse_args()
    known = {check.name for check in CHECKS}
    if unknown := {*args.only} - known:
        parser.error(f"{', '.join(sorted(unknown))}: no such check; there are {', '.join(sorted(known))}")
    counts = {check: args.runs or (check.quick if args.size == "quick" else check.full) for check in CHECKS}
    chosen = [check for check, count in counts.items() if (check.name in args.only if args.only else count)]
    logs = ROOT / "target" / "trust"
    logs.mkdir(parents=True, exist_ok=True)
    failed = list[str]()
    for number, check in enumerate(chosen if args.size != "page" else (), 1):
        count = max(1, counts[check])
        print(f"[{number}/{len(chosen)}] {check.name}, {count:,}: {check.fault} ... ", end="", flush=True)
        one = run(check, count, logs / f"{check.name}.log")
        keep(one)
        print(
            f"{'ok' if one['passed'] else 'FAILED'}, {one['seconds']:.0f} s: {one['result'][:120]}",
            flush=True,
        )
        if not one["passed"]:
            failed.append(check.name)
    PAGE.write_text(page(load()), encoding="utf-8")
    for name in failed:  # at the end, where whoever reads a long log looks first
        log = logs / f"{name}.log"
        print(f"failed: {name}, whose output is in {log.relative_to(ROOT)} and ends with:")
        print(log.read_text("utf-8", "replace")[-TAIL:])
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
