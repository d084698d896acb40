"""Does the chat keep up? The app in a pseudo-terminal of 120x40 and a scripted answer: what the screen costs.

    python tests/bench/screen.py [--kinds prose,list,table,fence] [--rates 200,1000] [--earlier 0,1000]
                                 [--views tokens,prose] [--characters 20000] [--json]

block: CPU time of the main thread between two beats of a 10 ms heartbeat on the event loop, which is how long
the app could not react on a free core (p50, p99, max: ms). lag: seconds from the last token to its place on
the terminal. late: ticks of timers from 2 s after the end on. kib: KiB/s to the terminal; writes: per second.
The exit code is 1 when a gate is missed.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Any

SIZE = (40, 120)
GATES = {"p99": 35.0, "max": 100.0, "lag": 0.3, "late": 0.0, "kib": 300.0}
COLUMNS = ("kind", "view", "rate", "earlier", "tokens", "p50", "p99", "max", "lag", "late", "kib", "writes")
MARK = "FINISH-OF-ANSWER"
CHILD = Path(__file__).with_name("screen_app.py")


def run(case: dict[str, Any]) -> dict[str, Any]:
    """One case in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
        env = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        for name in ("NO_COLOR", "SSH_CONNECTION"):
            env.pop(name, None)
        arguments = [sys.executable, str(CHILD), json.dumps(case | {"mark": MARK}), str(report)]
        child = subprocess.Popen(
            arguments, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True
        )
        os.close(slave)
        seen = _watch(master, child)
        os.close(master)
        if child.wait(30) or not report.exists():
            raise SystemExit(f"{case}: the app ended with {child.returncode}")
        found: dict[str, Any] = json.loads(report.read_text())
    return case | found | _of_terminal(seen, found)


def _watch(master: int, child: subprocess.Popen[bytes]) -> list[tuple[float, bytes]]:
    """(when, bytes) of everything that was written."""
    seen: list[tuple[float, bytes]] = []
    while True:
        if not select.select([master], [], [], 0.2)[0]:
            if child.poll() is not None:
                return seen
            continue
        try:
            data = os.read(master, 1 << 20)
        except OSError:
            return seen
        if not data:
            return seen
        seen.append((time.monotonic(), data))


def _of_terminal(seen: list[tuple[float, bytes]], found: dict[str, Any]) -> dict[str, Any]:
    begun, ended = found["begun"], found["ended"]
    during = [data for at, data in seen if begun <= at <= ended]
    tail, shown = b"", float("inf")
    for at, data in seen:
        tail = tail[-200:] + data
        if at >= begun and MARK.encode() in tail:
            shown = at
            break
    return {
        "lag": round(max(0.0, shown - ended), 3),
        "kib": round(sum(map(len, during)) / 1024 / (ended - begun), 1),
        "writes": round(len(during) / (ended - begun), 1),
    }


def missed(row: dict[str, Any]) -> list[str]:
    """The gates that a case misses."""
    return [name for name, limit in GATES.items() if row[name] > limit]


def main() -> int:
    """Parse, run, print a table or JSON lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", default="prose,list,table,fence")
    parser.add_argument("--rates", default="200,1000")
    parser.add_argument("--earlier", default="0,1000")
    parser.add_argument("--views", default="tokens,prose")
    parser.add_argument("--characters", type=int, default=20_000)
    parser.add_argument("--json", action="store_true", help="one object for each case")
    args = parser.parse_args()
    if not args.json:
        print("  ".join(f"{name:>7}" for name in COLUMNS), flush=True)
    failed = False
    for kind in args.kinds.split(","):
        for rate in map(int, args.rates.split(",")):
            for earlier in map(int, args.earlier.split(",")):
                for view in args.views.split(","):
                    case = {"kind": kind, "rate": rate, "earlier": earlier, "view": view}
                    row = run(case | {"characters": args.characters})
                    short = missed(row)
                    failed = failed or bool(short)
                    line = "  ".join(f"{row[name]:>7}" for name in COLUMNS)
                    print(json.dumps(row) if args.json else f"{line}  {' '.join(short)}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
