"""What `ropechat why` costs in a long context, and whether it finds a planted sentence.

`python tests/bench/why.py MODEL --tokens 3900 --depths 0.05 0.5`. A fact is planted into the text of the
project's documentation, at several depths, and a question asked whose answer is the fact. A line of JSON for
each depth: seconds of one reading of the context with the answer (nothing is cached), seconds and CPU seconds
of the examination over those of the reading, scorings, tokens that were computed, what was skipped, and
whether the strongest part is in the planted sentence. --naive N compares the bits of N parts with those of
scoring the changed text in an engine that has nothing cached.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ropechat

FACT = "The key of the lighthouse is with Martha Quill, the baker."
QUESTION = "Who has the key of the lighthouse?"
ANSWER = "Martha Quill"
ROOT = Path(__file__).parents[2]


def haystack(engine: ropechat.Engine, tokens: int, depth: float) -> str:
    """Paragraphs of the documentation with so many tokens, and the fact after a share of them."""
    text = "\n\n".join(path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    paragraphs = engine.tokenizer.decode(engine.tokenizer.encode(text)[:tokens]).split("\n\n")
    at = int(depth * len(paragraphs))
    return "\n\n".join([*paragraphs[:at], FACT, *paragraphs[at:]])


def surprisal(spec: ropechat.ModelSpec, context: str) -> float:
    """Bits of the answer, with nothing cached."""
    messages = [{"role": "user", "content": f"{context}\n\n{QUESTION}"}]
    ((_, score),) = spec.load().score_many([(messages, ANSWER)])  # type: ignore[list-item]
    assert score.error is None
    return -score.logprob / math.log(2)


def measured(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """(seconds, CPU seconds, result)."""
    begun, cpu = time.perf_counter(), time.process_time()
    result = work()
    return time.perf_counter() - begun, time.process_time() - cpu, result


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Measure, print a line of JSON for each depth, and return them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=3900)
    parser.add_argument("--depths", type=float, nargs="+", default=[0.05, 0.5, 0.95])
    parser.add_argument("--budget", type=float, default=30.0)
    parser.add_argument("--naive", type=int, default=0)
    given = parser.parse_args(arguments)
    spec, reports = ropechat.ModelSpec(given.model, cache="off"), list[dict[str, Any]]()
    for depth in given.depths:
        engine = spec.load()
        context = haystack(engine, given.tokens, depth)
        asked = ropechat.WhySpec(context, ANSWER, question=QUESTION, chat=True, budget=given.budget)
        only_read = ropechat.WhySpec(context, ANSWER, question=QUESTION, chat=True, by="text", every=True)
        reading, reading_cpu, _ = measured(lambda: only_read.run(engine))  # noqa: B023
        engine = spec.load()
        took, cpu, why = measured(lambda: asked.run(engine))  # noqa: B023
        begin, (first, last) = context.index(FACT), why.strongest[0].span
        scored = [one for one in why.walk() if one.bits is not None]
        chosen = random.Random(1).sample(scored, min(given.naive, len(scored)))
        naive = [surprisal(spec, context[: one.part.cut[0]] + context[one.part.cut[1] :]) for one in chosen]
        off = [abs(bits - why.bits - one.bits) for bits, one in zip(naive, chosen, strict=True)]
        report = {
            "depth": depth,
            "tokens": why.total,
            "reading_s": round(reading, 2),
            "ratio": round(took / reading, 2),
            "ratio_cpu": round(cpu / reading_cpu, 2),
            "scorings": why.scorings,
            "computed": why.computed,
            "skipped_parts": len(why.skipped),
            "skipped_tokens": sum(one.tokens for one in why.skipped),
            "found": begin <= first and last <= begin + len(FACT),
            "naive": len(off),
            "largest_difference_bits": max(off, default=0.0),
        }
        print(json.dumps(report), flush=True)
        reports.append(report)
    return reports


if __name__ == "__main__":
    main()
