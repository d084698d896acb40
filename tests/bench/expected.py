"""Is the speed that the lists of models expect the speed that models have here?

    python tests/bench/expected.py [--models SHAPE:DTYPE,...] [--rounds 3] [--folder FOLDER] [--json]

Each model is measured (the best of some rounds), then expected twice: from the probe alone, and from the
probe and the other models. The exit code is 1 when one of the second kind is off by more than 30 %.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from subject import add_folder, make_model

from ropechat.engine.bench.measure import Prompts, time_request
from ropechat.engine.bench.probe import probe_machine
from ropechat.engine.engine import Engine
from ropechat.models.speed import Speed, expected_speed

MODELS = "stories15m:q8_0,smollm2-135m:q8_0,qwen2.5-0.5b:q8_0,llama-3.2-1b:q4_k_m"
LIMIT = 0.30
READ, WRITTEN = 256, 32


def measure(path: str, dtype: str, rounds: int) -> Speed:
    """The best of some rounds."""
    engine = Engine.load(path, dtype=dtype, context=1024, speculative="off", cache="off")
    engine.stop_ids = frozenset()
    prompts = Prompts(engine.facts["vocab_size"])
    empty = Speed(weights=engine.speed.weights, products=engine.speed.products, growth=engine.speed.growth)
    best = Speed()
    for _ in range(rounds):
        first, rest = time_request(engine, prompts.draw(READ), WRITTEN)
        one = empty.with_read(0, READ, first).with_written(WRITTEN, rest)
        best = Speed(
            max(best.prefill or 0, one.prefill or 0),
            max(best.decode or 0, one.decode or 0),
            **{name: getattr(one, name) for name in ("weights", "products", "growth")},
            dtype=engine.facts["dtype"],
        )
    engine.close()
    return best


def main() -> int:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--rounds", type=int, default=3)
    add_folder(parser)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    measured: dict[str, Speed] = {}
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= {"XDG_CACHE_HOME": cache, "ROPECHAT_CACHE": "auto"}
        machine = probe_machine()
        if machine is None:
            raise SystemExit("the probe failed: no memory or no disk for it")
        for name in given.models.split(","):
            shape, _, dtype = name.partition(":")
            measured[name] = measure(*make_model(shape, dtype, given.folder), given.rounds)
    failed = False
    for name, speed in measured.items():
        others = [one for other, one in measured.items() if other != name]
        for how, known in (("probe", []), ("corrected", others)):
            expected = expected_speed(speed.weights, speed.products, known, speed.dtype, machine)
            found = {"model": name, "from": how}
            for what in ("prefill", "decode"):
                real, hoped = getattr(speed, what), getattr(expected, what)
                found |= {what: round(real, 1), f"{what}_expected": round(hoped, 1)}
                found[f"{what}_off"] = round(hoped / real - 1, 2)
                failed |= how == "corrected" and abs(hoped / real - 1) > LIMIT
            print(json.dumps(found) if given.json else "  ".join(f"{k} {v}" for k, v in found.items()))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
