"""What a tree of continuations costs, against as many decoded tokens in one batch.

`python tests/bench/tree.py MODEL --context 200 --nodes 100 --rounds 7`. The batch decodes NODES tokens in
sequences of `tree.ROWS` at a time, after the same context; each way takes turns in one process, after the
context is cached. CPU time is the figure for a machine that others use.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from ropechat import Engine, Sampling
from ropechat.inspector.tree import ROWS, Limits, Tree, grow

TEXT = "The history of the city is long. It was founded by settlers who came down the river. "


def measured(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """(seconds, CPU seconds, result)."""
    begun, cpu = time.perf_counter(), time.process_time()
    result = work()
    return time.perf_counter() - begun, time.process_time() - cpu, result


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure, print a line of JSON, and return it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--top-k", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args(arguments)
    engine = Engine.load(given.model)
    ids = engine.tokenizer.encode(TEXT * (given.context // 8))[: given.context]
    each = -(-given.nodes // ROWS)

    def decode() -> int:
        sampling = Sampling(temperature=1.0, max_tokens=each, seed=1)
        found = engine.generate_many([ids] * ROWS, sampling, window=ROWS)
        return sum(completion.completion_tokens for _, completion in found)

    def search() -> Tree:
        return grow(engine, ids, Limits(given.nodes, given.depth, given.top_k))

    search()
    ways = {"decode": decode, "tree": search}
    found: dict[str, list[tuple[float, float, Any]]] = {name: [] for name in ways}
    for _ in range(given.rounds):
        for name, way in ways.items():
            found[name].append(measured(way))
    tokens = found["decode"][-1][2]
    report: dict[str, Any] = {"nodes": given.nodes, "context": len(ids), "tokens": tokens}
    report["rows"] = found["tree"][-1][2].computed
    for place, unit in ((0, "seconds"), (1, "cpu")):
        for name in ways:
            report[f"{name}_{unit}"] = round(statistics.median(one[place] for one in found[name]), 4)
        per_token = report[f"decode_{unit}"] / tokens
        report[f"ratio_{unit}"] = round(report[f"tree_{unit}"] / (per_token * given.nodes), 2)
    print(json.dumps(report))
    return report


if __name__ == "__main__":
    main()
