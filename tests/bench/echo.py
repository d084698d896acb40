"""From a key to its echo while the real engine writes on all cores: the real program in a pseudo-terminal.

    python tests/bench/echo.py [-m MODEL] [--keys 300] [--threads N] [--reading N] [--json]

Keys are pressed at random moments, about 12 a second, and timed until their letter is on the terminal; then
ctrl+c is, until the footer offers to send again. --reading: instead of writing, the
model reads ahead a pasted text of N words; it is then sent, and the reading stopped. Without -m: the built-in
weights (see endless.py). All in
ms; the exit code is 1 when p99 is over 60 or the stop over 100.
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

sys.path[:0] = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]

from endless import BUSY, IDLE, endless  # noqa: E402
from program import Program  # noqa: E402

P99, STOP = 60.0, 100.0
AHEAD = b" left"  # of the gauge: 1,200 of 2,069 tokens · 250 tok/s · 3 s left


def echoes(screen: Program, count: int, draw: random.Random, *, clears: bool = True) -> list[float]:
    """Milliseconds from each of some keys to its letter, in order of size. clears: remove them again."""
    found = []
    for number in range(count):
        screen.drain(draw.uniform(0.02, 0.14))
        letter = chr(0x0430 + number % 32).encode()  # Cyrillic: random bytes hardly make them
        screen.press(letter)
        found.append(1000 * screen.until(letter, 10))
        if clears and number % 32 == 31:
            screen.press(b"\x15")  # ctrl+u: the line is short again
    if clears:
        screen.press(b"\x15")
    return sorted(found)


def measure(model: str, keys: int, threads: int, reading: int = 0) -> dict[str, float]:
    """The figures of one run; those of an idle chat tell how busy the machine is with other things."""
    arguments = ["chat", "-m", model, "--threads", str(threads), "--incognito", "--seed", "1"]
    screen = Program([*arguments, "--max-tokens", "30000", "--context", "32768"])
    draw = random.Random(5)
    screen.until(b"ready", 120)
    idle = echoes(screen, keys, draw)
    if reading:
        words = b" ".join(str(draw.randrange(1000)).encode() for _ in range(reading))
        screen.press(b"\x1b[200~" + words + b"\n\x1b[201~")
        screen.until(AHEAD, 60)
    else:
        screen.press(b"go\r")
        screen.until(b"tok/s", 60)
    busy = echoes(screen, keys, draw, clears=not reading)
    if reading:
        if AHEAD not in screen.drain(3.0):
            raise SystemExit("all was read before the last key; give more --reading")
        screen.press(b"\r")
        screen.until(BUSY, 60)
        screen.drain(1.0)
    begun = time.perf_counter()
    screen.press(b"\x03")
    screen.until(IDLE, 10)
    stop = 1000 * (time.perf_counter() - begun)
    screen.quit()
    last = min(keys - 1, int(keys * 0.99))
    figures = {"idle_p50": idle[keys // 2], "idle_p99": idle[last], "p50": busy[keys // 2], "p99": busy[last]}
    return {name: round(value, 1) for name, value in (figures | {"max": busy[-1], "stop": stop}).items()}


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model")
    parser.add_argument("--keys", type=int, default=300)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--reading", type=int, default=0, metavar="N")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or str(endless(Path(folder) / "model"))
        found = measure(model, args.keys, args.threads, args.reading)
    print(
        json.dumps(found) if args.json else "  ".join(f"{name} {value} ms" for name, value in found.items())
    )
    return int(found["p99"] > P99 or found["stop"] > STOP)


if __name__ == "__main__":
    sys.exit(main())
