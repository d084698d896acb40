"""From esc or ctrl+c to the stopped screen, under a long answer: the real program in a pseudo-terminal.

    python tests/bench/stop.py [-m MODEL] [--stops 20] [--characters 20000] [--threads N] [--json]

A model with random weights (as in echo.py) writes so many tokens, one byte each, and is stopped; /continue
goes on, and so on; the two keys take turns. A stop ends when the footer offers to send again, which is drawn
together with the end of the answer. All in ms; the exit code is 1 when a p99 is over 100.
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

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from echo import STOP, random_model  # noqa: E402
from program import Program  # noqa: E402

KEYS = {"esc": b"\x1b", "ctrl+c": b"\x03"}


def measure(model: str, stops: int, characters: int, threads: int, data: str) -> dict[str, float]:
    """The figures of one run, per key."""
    arguments = ["chat", "-m", model, "--threads", str(threads), "--seed", "1"]
    screen = Program(
        [*arguments, "--max-tokens", "60000", "--context", "65536"], size=(40, 200), ROPECHAT_DATA=data
    )
    draw, taken = random.Random(5), {name: list[float]() for name in KEYS}
    screen.until(b"ready", 120)
    screen.press(b"go\r")
    screen.until(f" {characters // 1000},".encode(), 1800)  # the gauge counts tokens
    for number in range(stops):
        screen.drain(draw.uniform(0.0, 0.3))
        name = list(KEYS)[number % len(KEYS)]
        begun = time.perf_counter()
        screen.press(KEYS[name])
        screen.until(b"send", 10)
        taken[name].append(1000 * (time.perf_counter() - begun))
        screen.drain(0.5)
        screen.press(b"/continue\r")
        screen.until(b"esc", 60)
        screen.drain(1.5)
    screen.quit()
    found = {}
    for name, times in taken.items():
        found[f"{name} median"] = sorted(times)[len(times) // 2]
        found[f"{name} p99"] = sorted(times)[min(len(times) - 1, int(len(times) * 0.99))]
    return {name: round(value, 1) for name, value in found.items()}


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model")
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--characters", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or str(random_model(Path(folder) / "model"))
        found = measure(model, args.stops, args.characters, args.threads, folder)
    print(
        json.dumps(found) if args.json else "  ".join(f"{name} {value} ms" for name, value in found.items())
    )
    return int(max(found[f"{name} p99"] for name in KEYS) > STOP)


if __name__ == "__main__":
    sys.exit(main())
