"""Predict the time of a step with many threads from what one thread did.

    ropechat bench --shape llama-1b --dtype q8_0 --threads 1 --phases --json > one.json
    python tests/bench/scaling.py one.json --bandwidth 30,37 --measured two.json
    python tests/bench/scaling.py one.json --bandwidth 30,200 --cores 64 --markdown

Everything that this prints for more threads than were measured is a model's figure, not a measurement.

The model: a step is serial work, and jobs that the threads share. A job of `parts` equal parts takes the longer of

- the threads' work: its time with one thread, cut into parts that are claimed as the pool does it
  (`rust/kernels/src/compute/pool/share.rs`), in virtual time, with a cost per claim;
- the memory: its bytes at the bandwidth that so many threads reach: that of one thread each, up to the machine's.

Then the barrier: what all threads wait for each other, from a table by number of threads. `--pool before` gives the pool's
former costs: a lock and a shared word that each worker takes in turn, and every share looked at by every worker; four parts
per thread.
"""

import argparse
import heapq
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLAIM = 30e-9
"""Seconds of a claim of own parts: a compare-and-swap on a line that this core has, and the call."""


@dataclass(frozen=True)
class Machine:
    """transfer: seconds until a core sees what another one has written. bandwidths: bytes per second of one thread, and of

    all together at most.
    """

    bandwidths: tuple[float, float]
    transfer: float = 100e-9

    def bandwidth(self, threads: int) -> float:
        return min(threads * self.bandwidths[0], self.bandwidths[1])

    def barrier(self, threads: int, pool: str) -> float:
        """Seconds that a job costs beside its work.

        Now: the caller takes back a line per thread to write its share, all read the gate, each takes its share and reads four
        others, the caller reads a word per thread. Lines of different threads travel at the same time, limited by how many
        a core asks for at once (about ten). Before: each worker in turn takes a lock, enters and leaves by one word (three
        transfers of a line, one after the other), and looks at all shares, which others write to.
        """
        if threads == 1:
            return 0.0
        if pool == "before":
            return self.transfer * (4 * threads)
        return self.transfer * (4 + 3 * threads / 10)


def simulate(parts: int, seconds: float, threads: int, machine: Machine) -> float:
    """Virtual seconds of a job of equal parts with the pool's claims: shares, a third of the rest each time, then others'."""
    active = min(threads, parts)
    part = seconds / parts
    shares = [[parts * i // active, parts * (i + 1) // active] for i in range(active)]

    def others(own: int) -> list[int]:
        if own == 0:
            return list(range(1, active))
        distances = [1, 2, 3, 4] if active <= 5 else [1, active // 8 + 1, active // 4 + 1, active // 2]
        return [(own + d) % active for d in distances if d < active]

    # (time, thread, where it looks next: -1 its own share, else an index of its list of others)
    queue = [(0.0, own, -1) for own in range(active)]
    heapq.heapify(queue)
    end = 0.0
    while queue:
        now, own, at = heapq.heappop(queue)
        end = max(end, now)
        if at >= 0 and at >= len(others(own)):
            continue
        victim = own if at < 0 else others(own)[at]
        share = shares[victim]
        left = share[1] - share[0]
        if left <= 0:
            cost = 0.0 if at < 0 else machine.transfer
            heapq.heappush(queue, (now + cost if at < 0 else now, own, at + 1))
            continue
        count = -(-left // 3)
        if at < 0:
            share[0] += count
        else:
            share[1] -= count
        cost = CLAIM if at < 0 else CLAIM + 2 * machine.transfer
        heapq.heappush(queue, (now + cost + count * part, own, at))
    return end


def before(parts: int, seconds: float, threads: int, phase: str) -> float:
    """Seconds of a job with the former pool: equal parts, four per thread at most, products; the read-out by one thread."""
    if phase in ("read_out", "sample"):
        return seconds
    parts = min(parts, 4 * threads)
    return seconds / parts * -(-parts // threads)


def predict(table: dict[str, Any], threads: int, machine: Machine, pool: str = "now") -> float:
    """Seconds of a step."""
    total = float(table["serial_s"])
    for job in table["jobs"]:
        parts, count = job["parts"], job["count"]
        if parts <= 1 or not count:
            continue
        each = job["seconds"] / count
        if pool == "before":
            work = before(parts, each, threads, job["phase"])
        else:
            work = simulate(parts, each, threads, machine)
        used = min(threads, parts)
        memory = max(job["bytes"] / count / machine.bandwidth(used), 0.0)
        total += count * (max(work, memory) + machine.barrier(used, pool))
    return total


def _rows(args: argparse.Namespace) -> list[list[str]]:
    tables = [table for table in json.loads(args.one.read_text()) if table.get("jobs")]
    measured = {}
    if args.measured:
        measured = {t["name"]: t["step_s"] for t in json.loads(args.measured.read_text())}
    one, most = (float(x) * 1e9 for x in args.bandwidth.split(","))
    machine = Machine((one, most), args.transfer * 1e-9)
    counts = [n for n in (1, 2, 4, 8, 16, 32, 64, 128) if n <= args.cores]
    rows = [["step", "pool", *(f"{n}" for n in counts), "measured at 2"]]
    for table in tables:
        for pool in ("before", "now"):
            times = [predict(table, n, machine, pool) for n in counts]
            found = measured.get(table["name"])
            note = "" if found is None or pool == "before" else f"{found * 1e3:.3f} ms ({times[1] / found - 1:+.1%})"
            rows.append([table["name"], pool, *(f"{time * 1e3:.3f} ms" for time in times), note])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("one", type=Path, help="bench --phases --json of one thread")
    parser.add_argument("--measured", type=Path, help="the same of two threads, to compare with")
    parser.add_argument("--bandwidth", default="30,37", help="GB/s of one thread, and of all together")
    parser.add_argument("--transfer", type=float, default=100, help="nanoseconds of a line from core to core")
    parser.add_argument("--cores", type=int, default=64)
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    rows = _rows(args)
    if args.markdown:
        rows.insert(1, ["---"] * len(rows[0]))
        text = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    else:
        text = "\n".join("  ".join(f"{cell:>14}" for cell in row) for row in rows)
    sys.stdout.write("Times from a model, not measured, but for the last column.\n\n" + text + "\n")


if __name__ == "__main__":
    main()
