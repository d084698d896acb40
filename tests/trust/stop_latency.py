"""From `Engine.cancel` to the end of the iterator, on random weights of SmolLM2-135M's shape, all cores busy.

    python tests/trust/stop_latency.py N [--free]

N cancels at random moments of decode, and N of a prefill of 2,000 tokens. Threads of this program keep all
cores busy with other work, unless --free is given. p99: at most 100 ms in decode, 250 ms in prefill.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2])]

from ropechat import Engine, Sampling  # noqa: E402
from ropechat.engine.bench.shapes import make  # noqa: E402

LIMITS = {"decode": 100.0, "prefill": 250.0}
PROMPT = {"decode": 20, "prefill": 2000}


def keep_busy(end: threading.Event) -> None:
    """Compute without the GIL."""
    data = bytes(1 << 20)
    while not end.is_set():
        hashlib.sha256(data).digest()


def stop(engine: Engine, seconds: float, started: threading.Event, pressed: list[float]) -> None:
    """Cancel some time after the start, and note when."""
    started.wait()
    time.sleep(seconds)
    pressed[0] = time.perf_counter()
    engine.cancel()


def latencies(engine: Engine, what: str, count: int, draw: random.Random) -> list[float]:
    """Milliseconds of each cancel."""
    found = []
    for number in range(count):
        ids = [(number * 31 + i * 7) % 40_000 for i in range(PROMPT[what])]  # never a cached prefix
        pressed, started = [0.0], threading.Event()

        thread = threading.Thread(target=stop, args=(engine, draw.uniform(0.0, 0.15), started, pressed))
        thread.start()
        steps = engine.generate(ids, Sampling(temperature=0, max_tokens=2000))
        if what == "prefill":
            started.set()
        for _ in steps:
            started.set()
        found.append(1000 * (time.perf_counter() - pressed[0]))
        thread.join()
    return found


def main() -> int:
    count, is_free = int(sys.argv[1]), "--free" in sys.argv
    draw, end = random.Random(7), threading.Event()
    others = [
        threading.Thread(target=keep_busy, args=(end,), daemon=True) for _ in range(os.cpu_count() or 1)
    ]
    with tempfile.TemporaryDirectory() as name:
        engine = Engine.load(make("smollm2-135m", Path(name)), context=4096)
        for other in () if is_free else others:
            other.start()
        figures = {}
        for what in LIMITS:
            times = sorted(latencies(engine, what, count, draw))
            figures[what] = (times[len(times) // 2], times[int(len(times) * 0.99)], times[-1])
        end.set()
        engine.close()
    words = [
        f"{what} p50 {p50:.0f} ms, p99 {p99:.0f} ms, most {most:.0f} ms"
        for what, (p50, p99, most) in figures.items()
    ]
    print(f"stops {count}: {'; '.join(words)}; cores {'free' if is_free else 'busy'}")
    return int(any(figures[what][1] > limit for what, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
