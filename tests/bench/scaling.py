"""Predict the time of a step with many threads from what one thread did.

    taskset -c 0 ropechat bench --shape smollm2-135m --dtype q8_0 --threads 64 --phases --json > one.json
    ropechat bench --shape smollm2-135m --dtype q8_0 --threads 2 --phases --json > two.json
    python tests/bench/scaling.py one.json --bandwidth 30,37 --measured two.json
    python tests/bench/scaling.py one.json --bandwidth 30,200 --shapes --markdown

`taskset` leaves one processor, so one thread works, on parts as they are for 64. Everything that this
prints for more threads than were measured is a model's figure, not a measurement.

The model: a step is serial work, and jobs that the threads share. A job of `parts` equal parts takes the
longer of

- the threads' work: its time with one thread, cut into parts that are claimed as the pool does it
  (`rust/kernels/src/compute/pool/share.rs`), in virtual time, with a cost per claim;
- the memory: its bytes at the bandwidth that so many threads reach: that of one thread each, up to the
  machine's.

Then the barrier: what all threads wait for each other, by number of threads (`Machine.barrier`). Lines
"before" have the costs of the pool before it was changed for many threads: a lock and a shared word that
each worker takes in turn, and every share looked at by every worker; four parts per thread; attention of a
token below 256 positions, and its read-out, on one thread.

`--shapes` adds decode steps of models that nobody ran: jobs from the model's shape, each as long as one
thread takes to read its weights; serial work from the measured step, in proportion to layers and
hidden_size.
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
    """bandwidths: bytes per second of one thread, and of all together at most.

    transfer: seconds until a core sees what another one has written.
    """

    bandwidths: tuple[float, float]
    transfer: float = 100e-9

    def bandwidth(self, threads: int) -> float:
        return min(threads * self.bandwidths[0], self.bandwidths[1])

    def barrier(self, threads: int, pool: str) -> float:
        """Seconds that a job costs beside its work.

        Now: the caller takes back a line per thread to write its share, all read the gate, each takes its
        share and reads four others, the caller reads a word per thread. Lines of different threads travel
        at the same time, limited by how many a core asks for at once (about ten). Before: each worker in
        turn takes a lock, enters and leaves by one word (three transfers of a line, one after the other),
        and looks at all shares, which others write to.
        """
        if threads == 1:
            return 0.0
        if pool == "before":
            return self.transfer * (4 * threads)
        return self.transfer * (4 + 3 * threads / 10)


def simulate(parts: int, seconds: float, threads: int, machine: Machine) -> float:
    """Virtual seconds of a job of equal parts: a third of the rest of a share at a time, then others'."""
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


def before(parts: int, seconds: float, threads: int, phase: str, is_decode: bool) -> float:
    """Seconds of a job with the former pool."""
    if phase == "read_out" or (is_decode and phase == "attention"):
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
            work = before(parts, each, threads, job["phase"], table["name"].startswith("decode"))
        else:
            work = simulate(parts, each, threads, machine)
        used = min(threads, parts)
        memory = max(job["bytes"] / count / machine.bandwidth(used), 0.0)
        total += count * (max(work, memory) + machine.barrier(used, pool))
    return total


@dataclass(frozen=True)
class Shape:
    """A model's decode step. experts: all, and those that a token passes."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    bytes_per_weight: float
    experts: tuple[int, int] = (1, 1)

    def jobs(self, bandwidth: float, context: int = 128) -> list[dict[str, Any]]:
        """The jobs of a step. bandwidth: of one thread, in bytes per second."""

        def product(phase: str, rows: int, columns: int, count: float, times: int = 1) -> dict[str, Any]:
            size = rows * columns * self.bytes_per_weight
            parts = times * max(1, min(-(-rows // 32), int(size / (32 << 10))))
            read = count * times * size
            return {
                "phase": phase,
                "parts": parts,
                "count": count,
                "seconds": read / bandwidth,
                "bytes": read,
            }

        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        cached = context * 2 * keys * 2 * self.layers
        _, chosen = self.experts
        return [
            product("qkv_proj", queries + 2 * keys, self.hidden, self.layers),
            product("o_proj", self.hidden, queries, self.layers),
            product("gate_up_proj", 2 * self.intermediate, self.hidden, self.layers, chosen),
            product("down_proj", self.hidden, self.intermediate, self.layers, chosen),
            product("lm_head", self.vocab, self.hidden, 1),
            {
                "phase": "attention",
                "parts": self.heads,
                "count": self.layers,
                "seconds": 2 * cached / bandwidth,
                "bytes": cached,
            },
            {
                "phase": "read_out",
                "parts": -(-self.vocab // 8192),
                "count": 2,
                "seconds": 1.5e-9 * self.vocab,
                "bytes": 0,
            },
        ]


MEASURED = "smollm2-135m"
SHAPES = {
    MEASURED: Shape(576, 1536, 30, 9, 3, 64, 49152, 1.06),
    "llama-3.2-1b q4_k_m": Shape(2048, 8192, 16, 32, 8, 64, 128256, 0.62),
    "llama-3.1-8b q4_k_m": Shape(4096, 14336, 32, 32, 8, 128, 128256, 0.6),
    "qwen3-30b-a3b q4_k_m": Shape(2048, 768, 48, 32, 4, 128, 151936, 0.6, (128, 8)),
}


def shape_tables(decode: dict[str, Any], bandwidth: float) -> list[dict[str, Any]]:
    """Decode steps of the shapes; decode: the measured one, of the first shape."""
    tables = []
    of = SHAPES[MEASURED]
    for name, shape in SHAPES.items():
        serial = decode["serial_s"] * shape.layers * shape.hidden / (of.layers * of.hidden)
        tables.append({"name": f"decode of {name}", "serial_s": serial, "jobs": shape.jobs(bandwidth)})
    return tables


def _rows(args: argparse.Namespace) -> list[list[str]]:
    tables = [table for table in json.loads(args.one.read_text()) if table.get("jobs")]
    measured = {}
    if args.measured:
        measured = {table["name"]: table["step_s"] for table in json.loads(args.measured.read_text())}
    one, most = (float(x) * 1e9 for x in args.bandwidth.split(","))
    machine = Machine((one, most), args.transfer * 1e-9)
    counts = [n for n in (1, 2, 4, 8, 16, 32, 64, 128) if n <= args.cores]
    if args.shapes:
        tables += shape_tables(next(table for table in tables if table["name"] == "decode step"), one)
    rows = [["ms per step, threads:", "pool", *map(str, counts), "measured at 2"]]
    for table in tables:
        for pool in ("before", "now"):
            times = [predict(table, n, machine, pool) for n in counts]
            found = measured.get(table["name"]) if pool == "now" else None
            note = "" if found is None else f"{found * 1e3:.2f} ({times[1] / found - 1:+.1%})"
            rows.append([table["name"], pool, *(f"{time * 1e3:.2f}" for time in times), note])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("one", type=Path, help="bench --phases --json of one thread")
    parser.add_argument("--measured", type=Path, help="the same of two threads, to compare with")
    parser.add_argument("--bandwidth", default="30,37", help="GB/s of one thread, and of all together")
    parser.add_argument("--transfer", type=float, default=100, help="nanoseconds of a line from core to core")
    parser.add_argument("--shapes", action="store_true", help="also models that nobody ran")
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
