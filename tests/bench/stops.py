"""How long a command takes to end after SIGINT, SIGTERM or SIGHUP at a random moment of its life.

    python tests/bench/stops.py [N] [--model MODEL] [--only batch]     N stops per signal and command

Each command runs with the built-in model or another one, is stopped at a moment between its start and its
usual end, and is awaited. A line per command and signal: milliseconds to the end of the process (p50, p90,
p99, p100), processor time since then (with that of children it awaits), exit codes (negative: killed before
Python could handle the signal),
and tracebacks (Python's own, when ctrl+c comes before the program does). The exit code is 1 if one took more
than 300 ms, or had another exit code than its signal's. Run it on a quiet machine.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

LIMIT_MS = 300
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WORDS = ("What is RoPE?", "What is a token?", "Tell me a story.", "Hello", "How warm is the sun?")
STORY = "Once upon a time there was a small token that wanted to know its own probability. "


def commands(folder: Path, model: list[str]) -> dict[str, list[str]]:
    """Name -> the arguments of a run of about a second or more."""
    rows = [{"id": number, "prompt": f"{WORDS[number % 5]} {number}"} for number in range(2000)]
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = [{"id": row["id"], "prompt": row["prompt"], "completion": STORY * 4} for row in rows]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    (folder / "long.txt").write_text(STORY * 2000)
    source, out = str(folder / "in.jsonl"), str(folder / "out")
    return {
        "run": ["run", *model, "--raw", "--max-tokens", "100000", STORY],
        "run --store": ["run", *model, "--store", "--max-tokens", "100000", "Tell me a story."],
        "batch": ["batch", *model, source, "-o", f"{out}.jsonl", "--max-tokens", "48"],
        "batch to stdout": ["batch", *model, source, "--max-tokens", "48"],
        "batch --score": ["batch", *model, str(folder / "pairs.jsonl"), "-o", f"{out}.jsonl", "--score"],
        "inspect": ["inspect", *model, "-f", str(folder / "long.txt"), "-o", f"{out}.csv"],
    }


def start(arguments: list[str], folder: Path) -> "subprocess.Popen[bytes]":
    for path in folder.glob("out*"):
        path.unlink()
    launch = "from ropechat.cli import entry; entry()"
    environ = {**os.environ, "ROPECHAT_DATA": str(folder / "data")}
    with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
        return subprocess.Popen(
            [sys.executable, "-c", launch, *arguments], stdout=stdout, stderr=stderr, env=environ, cwd=folder
        )


@dataclass
class Stop:
    """A stop: milliseconds to the end, those of processor time among them, exit code, stderr."""

    took: float
    cpu: float
    code: int
    err: str


def cpu_ms(pid: int) -> float:
    """The processor time that a process has used, in milliseconds."""
    found = 0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            found += int(task.read_text().split()[0])
    return found / 1e6


def stop(arguments: list[str], folder: Path, number: int, after: float) -> Stop:
    """Start, signal after some seconds, await."""
    child = start(arguments, folder)
    time.sleep(after)
    used = cpu_ms(child.pid)
    begun = time.perf_counter()
    os.kill(child.pid, number)
    _, status, usage = os.wait4(child.pid, 0)
    took = 1000 * (time.perf_counter() - begun)
    child.returncode = os.waitstatus_to_exitcode(status)
    cpu = 1000 * (usage.ru_utime + usage.ru_stime) - used
    return Stop(took, cpu, child.returncode, (folder / "stderr").read_text(errors="replace"))


def usual_seconds(arguments: list[str], folder: Path) -> float:
    """How long the command takes, at most 4 s."""
    begun = time.perf_counter()
    child = start(arguments, folder)
    try:
        child.wait(4)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    return time.perf_counter() - begun


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def report(what: str, name: str, stops: list[Stop]) -> None:
    """Print the distribution."""
    if not stops:
        print(f"{what:16} {name:8} ended before each signal", flush=True)
        return
    shares = [
        " ".join(f"{percentile(values, share):4.0f}" for share in (0.5, 0.9, 0.99, 1.0))
        for values in ([one.took for one in stops], [one.cpu for one in stops])
    ]
    codes = dict(Counter(one.code for one in stops))
    told = sum("Traceback" in one.err for one in stops)
    text = f"{what:16} {name:8} {shares[0]} ms, processor {shares[1]}  exits {codes}  tracebacks {told}"
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int, nargs="?", default=20)
    parser.add_argument("--model")
    parser.add_argument("--only", help="a command by name")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # of a shell's background job it is ignored
    draw, every, wrong = random.Random(given.seed), list[Stop](), 0
    print(f"{given.count} stops per line, seed {given.seed}, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = ["-m", given.model] if given.model else []
        for what, arguments in commands(folder, model).items():
            if given.only not in (None, what):
                continue
            seconds = usual_seconds(arguments, folder)
            for number in SIGNALS:
                stops = []
                for _ in range(given.count):
                    moment = draw.uniform(0, seconds)
                    one = stop(arguments, folder, number, moment)
                    stops += [one] if one.code else []
                    if one.took > LIMIT_MS or "Traceback" in one.err:
                        last = one.err.strip().splitlines()[-1:]
                        print(f"  {one.took:.0f} ms after {moment:.3f} s, exit {one.code}: {last}")
                report(what, number.name, stops)
                every += stops
                for one in stops:
                    is_early = one.err.endswith("KeyboardInterrupt\n")  # told by Python, before the program
                    wrong += one.code not in (128 + number, -number) and not is_early
    slow = sum(one.took > LIMIT_MS for one in every)
    cpu = max((one.cpu for one in every), default=0.0)
    print(
        f"{len(every)} stops: {slow} above {LIMIT_MS} ms, processor time {cpu:.0f} ms at most, "
        f"{wrong} wrong exit codes; load {os.getloadavg()[0]:.0f}"
    )
    return int(slow > 0 or wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
