"""From esc or ctrl+c to the stopped screen, under a long answer: the real program in a pseudo-terminal.

    python tests/bench/stop.py [-m MODEL] [--stops 20] [--tokens 5000] [--threads N] [--json]

The built-in weights (see endless.py), or MODEL, write so many tokens, of about four characters, and are
stopped; /continue goes on, and so on; the two keys take turns. A stop ends when the footer offers to send,
which is drawn together with the end of the answer. All in ms; early, late: medians of the first and the
second half of the stops, for the answer grows meanwhile. The exit code is 1 when a p99 is over 100.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path[:0] = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]

from echo import STOP  # noqa: E402
from endless import BUSY, IDLE, endless  # noqa: E402
from program import Program  # noqa: E402

KEYS = {"esc": b"\x1b", "ctrl+c": b"\x03"}


def measure(model: str, stops: int, tokens: int, threads: int, data: str) -> dict[str, float]:
    """The figures of one run, per key."""
    arguments = ["chat", "-m", model, "--threads", str(threads), "--seed", "1"]
    screen = Program(
        [*arguments, "--max-tokens", "60000", "--context", "65536"], size=(40, 200), ROPECHAT_DATA=data
    )
    draw, taken = random.Random(5), list[float]()
    screen.until(b"ready", 120)
    screen.press(b"go\r")
    screen.until(f" {tokens // 1000},".encode(), 1800)  # the gauge counts
    for number in range(stops):
        screen.drain(draw.uniform(0.0, 0.3))
        begun = time.perf_counter()
        screen.press(list(KEYS.values())[number % len(KEYS)])
        screen.until(IDLE, 10)
        taken.append(1000 * (time.perf_counter() - begun))
        screen.drain(0.5)
        screen.press(b"/continue\r")
        screen.until(BUSY, 60)
        screen.drain(0.5)
    screen.quit()
    found = {}
    for number, name in enumerate(KEYS):
        times = sorted(taken[number :: len(KEYS)])
        found |= {f"{name} median": median(times), f"{name} p99": times[int(len(times) * 0.99)]}
    found |= {"early": median(taken[: stops // 2]), "late": median(taken[stops // 2 :])}
    return {name: round(value, 1) for name, value in found.items()}


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model")
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=5000)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or str(endless(Path(folder) / "model"))
        found = measure(model, args.stops, args.tokens, args.threads, folder)
    print(
        json.dumps(found) if args.json else "  ".join(f"{name} {value} ms" for name, value in found.items())
    )
    return int(max(found[f"{name} p99"] for name in KEYS) > STOP)


if __name__ == "__main__":
    sys.exit(main())
