"""One and two threads in turns: what `scaling.py` predicts from, and what it is compared with.

Each subject is a process, which loads its model once and is asked for one piece of work at a time, so all
see the same minutes of the machine. Engines of one process share a pool; hence the processes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scaling_model import Table
from subject import Q4_K_M, make_model

from ropechat.engine.bench.measure import Prompts, time_batch, time_request
from ropechat.engine.bench.phases import SEQUENCES, time_phases
from ropechat.engine.bench.shapes import SHAPES
from ropechat.engine.engine import Engine

WORKS = ("decode", "batch", "prefill")
PROMPT = 512
TOKENS = 8
"""Tokens of a sequence at a time: short enough that most are done before another program has its turn."""
PAUSE = 0.06
"""Seconds before each: a process of real-time priority that does not rest is stopped for 50 ms a second."""
LEAST_SECONDS = 0.8
"""For which a subject repeats a work."""
BYTES_PER_WEIGHT = {"q8_0": 1.0625, Q4_K_M: 0.6}
"""Packed, scales included."""


@dataclass(frozen=True)
class Subject:
    """A process. split: the threads that work is split for. alone: of which one is started."""

    model: str
    dtype: str
    split: int
    alone: bool

    def command(self) -> list[str]:
        alone = ["--alone"] if self.alone else []
        return [sys.executable, __file__, self.model, self.dtype, "--split", str(self.split), *alone]


def probe_config(weight_bytes: int, dtype: str) -> dict[str, Any]:
    """A llama's config whose step reads as many bytes as the model's, in few and large jobs."""
    weights = weight_bytes / BYTES_PER_WEIGHT[dtype]
    hidden, heads, kv_heads, dim = 2048, 32, 8, 64
    attention = 2 * hidden * dim * (heads + kv_heads)
    layers = max(1, round(weights / 134e6))
    inner = (weights / layers - attention) / (3 * hidden)
    return {
        "hidden_size": hidden,
        "intermediate_size": max(256, round(inner / 256) * 256),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "vocab_size": 512,
        "max_position_embeddings": 2048,
        "rope_theta": 10000.0,
    }


def make_probe(weight_bytes: int, dtype: str, folder: Path) -> tuple[str, str]:
    """The model of `probe_config`, and the dtype to load it in."""
    name = f"probe-{weight_bytes >> 20}mb"
    SHAPES[name] = probe_config(weight_bytes, dtype)
    return make_model(name, dtype, folder)


def serve(given: argparse.Namespace) -> None:
    """Load the model, and do each work that a line of stdin names; its table is a line of stdout."""
    processors = os.sched_getaffinity(0)
    if given.alone:
        # A pool starts no more threads than there are processors when it is made.
        os.sched_setaffinity(0, {min(processors)})
    engine = Engine.load(Path(given.model), dtype=given.dtype, threads=given.split, speculative="off")
    os.sched_setaffinity(0, processors)
    engine.stop_ids = frozenset()
    prompts = Prompts(engine.facts["vocab_size"])
    prompt = min(PROMPT, engine.context - 1)

    def do(work: str) -> None:
        if work == "decode":
            time_request(engine, [1], TOKENS)
        elif work == "prefill":
            time_request(engine, prompts.draw(prompt), 0)
        else:
            time_batch(engine, [[first] for first in range(SEQUENCES)], TOKENS, TOKENS)

    def measured(work: str) -> Table:
        """The best of several: other programs only make it slower."""
        plain, tables, end = [], [], time.perf_counter() + LEAST_SECONDS
        while len(plain) < 2 or time.perf_counter() < end:
            time.sleep(PAUSE)
            begin = time.perf_counter()
            do(work)
            plain.append(time.perf_counter() - begin)
            time.sleep(PAUSE)
            tables.append(time_phases(engine, work, lambda: do(work)))
        table = min(tables, key=lambda table: table.whole / table.steps)
        rows = {"decode": 1, "batch": SEQUENCES}.get(work, prompt // table.steps)
        if work == "prefill":
            table = replace(table, steps=1)
        size = engine.facts["weight_bytes"]
        return table.record() | {"plain_s": min(plain) / table.steps, "rows": rows, "weight_bytes": size}

    for line in sys.stdin:
        sys.stdout.write(json.dumps(measured(line.strip())) + "\n")
        sys.stdout.flush()


class Process:
    """A subject that runs."""

    def __init__(self, subject: Subject) -> None:
        self._process = subprocess.Popen(
            subject.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, work: str) -> Table:
        """Have it do some work; its table."""
        talk, answers = self._process.stdin, self._process.stdout
        if talk is None or answers is None:
            raise RuntimeError("the process has no pipes")
        talk.write(work + "\n")
        talk.flush()
        line = answers.readline()
        if not line:
            raise SystemExit(
                f"{self._process.args!r}: ended with {self._process.wait()}; its message is above"
            )
        table: Table = json.loads(line)
        return table

    def close(self) -> None:
        """End it."""
        with self._process:  # closes its stdin, at which it ends
            pass


def line_times() -> tuple[float, float]:
    """Seconds per cache line that another core has written: to read it, and to write it.

    In pieces of 1,152 bytes, as half a row of 576 numbers: two threads share the columns of a product, so
    each has half of every row in its cache.
    """
    lines, rows, least = 18, 256, 64
    values = np.zeros((rows, 2 * lines * 8), np.uint64)[:, : lines * 8]
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        raise SystemExit("scaling.py: needs two processors, which this process may not use")
    first, second = processors[:2]
    reads, writes = [], []

    def write(processor: int) -> None:
        os.sched_setaffinity(0, {processor})
        values[:] = 1

    def timed(work: Callable[[], object]) -> float:
        """Seconds of work, less those of the same again, with the lines in the own cache."""
        begin = time.perf_counter()
        work()
        half = time.perf_counter()
        work()
        return 2 * half - begin - time.perf_counter()

    def here() -> None:
        os.sched_setaffinity(0, {first})
        for _ in range(least):
            for found, work in (
                (reads, lambda: np.bitwise_or.reduce(values, axis=None)),
                (writes, lambda: values.fill(2)),
            ):
                other = threading.Thread(target=write, args=(second,))
                other.start()
                other.join()
                found.append(timed(work) / (lines * rows))

    thread = threading.Thread(target=here)
    thread.start()
    thread.join()
    return statistics.median(reads), statistics.median(writes)


def prepare(model: str, dtype: str) -> int:
    """Pack the weights, so that all subjects map the same file; the bytes of the weights."""
    process = Process(Subject(model, dtype, 1, False))
    try:
        return int(process.ask("decode")["weight_bytes"])
    finally:
        process.close()


def turns(
    model: tuple[str, str], probe: tuple[str, str], works: Sequence[str], seconds: float, most: int
) -> Iterator[dict[str, Table]]:
    """Rounds, at least two. Each has tables by "work/subject".

    Subjects: "one", one thread that does the parts of two; "two"; "many" (decode only), one thread that
    does the parts of `most`; "probe one" and "probe two" (decode only). "lines": `line_times`. The first
    round is a warm-up and is left out.
    """
    subjects = {
        "one": Subject(*model, 2, True),
        "probe one": Subject(*probe, 2, True),
        "two": Subject(*model, 2, False),
        "probe two": Subject(*probe, 2, False),
        "many": Subject(*model, most, True),
    }
    with contextlib.ExitStack() as stack:
        processes = {name: Process(subject) for name, subject in subjects.items()}
        for process in processes.values():
            stack.callback(process.close)
        done, end = 0, float("inf")
        while done < 3 or time.monotonic() < end:
            tables = {}
            for work in WORKS:
                if work not in works and work != "decode":
                    continue
                for name, process in processes.items():
                    if work == "decode" or name in ("one", "two"):
                        tables[f"{work}/{name}"] = process.ask(work)
            tables["lines"] = dict(zip(("read", "written"), line_times(), strict=True))
            if done == 0:
                end = time.monotonic() + seconds
            else:
                yield tables
            done += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A subject of scaling.py, which starts it.")
    parser.add_argument("model")
    parser.add_argument("dtype")
    parser.add_argument("--split", type=int, required=True)
    parser.add_argument("--alone", action="store_true")
    serve(parser.parse_args())
