"""A model of a step with many threads, from what one thread did.

A step is serial work, and jobs that the threads share. A job of `parts` equal parts takes

- `start`: until a thread reads at full speed. The weights of a step displace everything else from a core's
  cache, so each thread waits for the first lines of a job, one after the other: this is not divided;
- reading: its bytes at the bandwidth that so many threads reach together;
- work: what is left of the time of one thread;
- the claims: parts are claimed as the pool does it (`rust/kernels/src/compute/pool/share.rs`), in virtual
  time;
- exchange: the lines of activations that another core has written (`Shape.lines`);
- the barrier: what all threads wait for each other, by number of threads (`Machine.barrier`).

Each constant is measured by itself, with one thread of the model, or without it:

- bandwidths: of one and of two threads, by a model of as many bytes in a few large jobs (`probe_config` in
  `scaling_turns.py`). Two threads may read more than twice as much as one: what a shared third-level cache
  keeps of the weights depends on how soon they are read again;
- `start`: what the smallest product of a token takes with one thread beside its bytes (`start_of`);
- the exchange of a line: `line_times` in `scaling_turns.py`;
- `CLAIM`, `TRANSFER`: see there.

Lines "before" have the costs of the pool before it was changed for many threads: a lock and a shared word
that each worker takes in turn, and every share looked at by every worker; four parts per thread; attention
of a token below 256 positions, and its read-out, on one thread.

Of models that nobody ran (`SHAPES`) jobs come from the shape, each as long as one thread takes to read its
weights; serial work from the measured step: Python's as it is, the rest in proportion to layers and
hidden_size.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

Table = dict[str, Any]
"""What `PhaseTable.record` says, and `rows`, those of a pass."""

CLAIM = 30e-9
"""Seconds of a claim of own parts: a compare-and-swap on a line that this core has, and the call."""
TRANSFER = 150e-9
"""Seconds until a core sees what another one has written: two that answer each other by a word, in C."""


@dataclass(frozen=True)
class Machine:
    """bandwidths: bytes per second by number of threads; of another number as many times that of one.

    most: of all threads together. start: see the top of this file. read, written: seconds per line of another
    core.
    """

    bandwidths: dict[int, float]
    most: float = float("inf")
    start: float = 0.0
    read: float = 0.0
    written: float = 0.0
    transfer: float = TRANSFER

    def bandwidth(self, threads: int) -> float:
        known = self.bandwidths.get(threads)
        return min(threads * self.bandwidths[1] if known is None else known, self.most)

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


LINE = 64
ROUNDED = 1.375
"""Bytes of an activation rounded to a byte, with the numbers of its block."""


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

    def lines(self, phase: str) -> tuple[float, float, float]:
        """Cache lines per row of a job: read by every thread, read by one of them, written by one of them.

        A product's input is read by all, its output shared by columns; norms, rotation and attention are
        shared by rows or heads. A key's dimensions are half a line apart, a value's sixteen share one.
        """
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        both, normed = queries + 2 * keys, (2 * self.hidden + queries + self.intermediate) / 4
        read_all, read, written = {
            "qkv_proj": (ROUNDED * self.hidden, 0, 4 * both),
            "rope_and_cache": (0, 4 * both, keys * (32 + 4)),
            "attention": (0, 4 * queries, 4 * queries),
            "norm": (0, 4 * normed, ROUNDED * normed),
            "o_proj": (ROUNDED * queries, 4 * self.hidden, 0),
            "gate_up_proj": (ROUNDED * self.hidden, 0, 4 * self.intermediate),
            "down_proj": (ROUNDED * self.intermediate, 4 * self.hidden, 0),
        }.get(phase, (0, 0, 0))
        return read_all / LINE, read / LINE, written / LINE

    def exchange(self, phase: str, rows: int, threads: int, machine: Machine) -> float:
        """Seconds of a job in which threads wait for lines of others."""
        read_all, read, written = self.lines(phase)
        each = (read_all + read / threads) * machine.read + written / threads * machine.written
        return rows * each * (threads - 1) / threads

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


def predict(table: Table, shape: Shape, threads: int, machine: Machine, pool: str = "now") -> float:
    """Seconds of a step. table: of one thread on this machine, with the model of this shape."""
    total = float(table["serial_s"])
    for job in table["jobs"]:
        parts, count = job["parts"], job["count"]
        if parts <= 1 or not count:
            continue
        each, size = job["seconds"] / count, job["bytes"] / count
        used = min(threads, parts)
        reading = min(each, size / machine.bandwidth(1))
        start = min(machine.start if size else 0.0, each - reading)
        # In seconds of one thread, of which each reads as fast as so many can.
        shared = each - start - reading + reading * used * machine.bandwidth(1) / machine.bandwidth(used)
        if pool == "before":
            work = before(parts, shared, threads, job["phase"], table["name"].startswith("decode"))
        else:
            work = simulate(parts, shared, threads, machine)
        exchange = shape.exchange(job["phase"], table["rows"], used, machine)
        total += count * (start + work + exchange + machine.barrier(used, pool))
    return total


def bandwidth_of(probe: Table) -> float:
    """Bytes per second of the largest jobs of `probe_config`."""
    jobs = [job for job in probe["jobs"] if job["phase"] == "gate_up_proj"]
    return float(sum(job["bytes"] for job in jobs) / sum(job["seconds"] for job in jobs))


def start_of(decode: Table) -> float:
    """Seconds that the smallest product of a token takes with one thread beside its bytes.

    Bytes are read as fast as by the largest product, which hardly notices its start.
    """
    products = [(job["bytes"] / job["count"], job) for job in decode["jobs"] if job["bytes"]]
    jobs = sorted(products, key=lambda product: product[0])
    (size, smallest), (most, largest) = jobs[0], jobs[-1]
    each, of_largest = (job["seconds"] / job["count"] for job in (smallest, largest))
    return float(max(0.0, each - size * of_largest / most))


def machine_of(tables: dict[str, Table]) -> Machine:
    """This machine in one round of `turns`."""
    one, two = bandwidth_of(tables["decode/probe one"]), bandwidth_of(tables["decode/probe two"])
    start = start_of(tables["decode/one"])
    return Machine({1: one, 2: two}, float("inf"), start, **tables["lines"])
