"""What drafts of prompt look-up gain with a published model on real texts: edits of code, summaries, chat.

    python tests/bench/acceptance.py FOLDER MODEL [--dtype auto] [--count 12] [--rounds 3] [--tokens 200]

FOLDER: one with prompts/mt_bench_question.jsonl and text/war-and-peace.txt. Code: functions of Python's
standard library, to be written again with a docstring. Each prompt is answered with drafts and without, in
turns, in one process; the answers are compared. The share of tokens that were accepted drafts does not depend
on the machine; the gain does.
"""

import argparse
import inspect
import json
import shlex
import statistics
import textwrap
import time
from pathlib import Path
from typing import Any, NamedTuple

from ropechat import Engine, Message, Role, Sampling

CODE = (
    *(textwrap.indent, textwrap.shorten, shlex.join, shlex.quote, statistics.fmean, statistics.median_low),
    *(statistics.median_high, json.detect_encoding, inspect.indentsize, inspect.getmodulename),
    *(inspect.cleandoc, statistics.harmonic_mean),
)
TEMPERATURES = (0.0, 0.7)


class Run(NamedTuple):
    """An answer without its first token."""

    ids: list[int]
    wall: float  # seconds
    cpu: float
    drafted: int  # tokens


def questions(folder: Path, count: int) -> dict[str, list[str]]:
    """The questions of each kind."""
    code = [
        "Write this function again, unchanged but for one line of comment above its `return`. "
        f"Answer with the code only.\n\n```python\n{inspect.getsource(function)}```"
        for function in CODE
    ]
    text = (folder / "text" / "war-and-peace.txt").read_text(encoding="utf-8")
    passages = [part.replace("\n", " ") for part in text.split("\n\n") if 900 < len(part) < 1800]
    summaries = [f"Summarize this text. Quote its most important sentence.\n\n{one}" for one in passages]
    lines = (folder / "prompts" / "mt_bench_question.jsonl").read_text(encoding="utf-8").splitlines()
    chat = [json.loads(line)["turns"][0] for line in lines]
    return {
        name: every[:: max(1, len(every) // count)][:count]
        for name, every in (("edits of code", code), ("summaries", summaries), ("chat", chat))
    }


def answer(engine: Engine, ids: list[int], sampling: Sampling) -> Run:
    steps = engine.generate(ids, sampling)
    found = [next(steps)]
    wall, cpu = time.perf_counter(), time.process_time()
    found += steps
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Run([step.id for step in found], wall, cpu, sum(step.drafted for step in found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--count", type=int, default=12, help="prompts of each kind, 12 at most for code")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=200)
    given = parser.parse_args()
    options: dict[str, Any] = {"dtype": given.dtype, "threads": given.threads, "cache": "off"}
    engines = {mode: Engine.load(given.model, **options, speculative=mode) for mode in ("off", "auto")}
    for name, texts in questions(given.folder, given.count).items():
        for temperature in TEMPERATURES:
            runs: dict[str, list[Run]] = {"off": [], "auto": []}
            for number in range(given.rounds):
                sampling = Sampling(temperature=temperature, max_tokens=given.tokens, seed=number)
                for text in texts:
                    ids = engines["off"].prompt_ids([Message(Role.USER, text)])
                    for mode in ("off", "auto") if number % 2 else ("auto", "off"):
                        runs[mode].append(answer(engines[mode], ids, sampling))
            pairs = [pair for pair in zip(runs["off"], runs["auto"], strict=True) if len(pair[0].ids) > 1]
            assert all(a.ids == b.ids for a, b in pairs), f"{name}: an answer differs"
            total = sum(len(drafts.ids) - 1 for _, drafts in pairs)
            share = sum(drafts.drafted for _, drafts in pairs) / total
            wall = sum(a.wall for a, _ in pairs) / sum(b.wall for _, b in pairs)
            cpu = sum(a.cpu for a, _ in pairs) / sum(b.cpu for _, b in pairs)
            each = sorted(a.cpu / b.cpu for a, b in pairs)
            print(
                f"{name:14} temperature {temperature}: {share:.0%} of {total:,} tokens were accepted drafts; "
                f"{wall:.2f} times as fast by the clock, {cpu:.2f} in CPU time "
                f"(each {each[0]:.2f} to {each[-1]:.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
