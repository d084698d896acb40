"""Eight threads use engines at the same time, as a program may: python tests/trust/threads.py N

Each thread does N things by chance: it generates, scores, computes logits, looks into layers, follows a
grammar, reads a prefix ahead and keeps it in a file, cancels what others generate, closes the engine that
others use, loads one of its own (with packs that the others read and write), or forks. What it gets must be
what one thread gets alone; a beginning of it where it was cancelled.

`sanitize.py` runs it under ThreadSanitizer, with the compiled engine that SANITIZED_CORE names.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]
if "SANITIZED_CORE" in os.environ:
    import sanitized_core  # noqa: F401

from figures import figures  # noqa: E402

from ropechat import Engine, Sampling  # noqa: E402
from ropechat.errors import RequestError  # noqa: E402
from ropechat.sampling.grammar import Grammar  # noqa: E402

THREADS = 8
GOLDEN = ROOT / "tests" / "golden"
FAMILIES = (
    *("llama3_new", "mixtral_old", "qwen3_next", "minimax", "gemma3_text_new", "deepseek_v32"),
    *("jamba", "gpt_oss_old", "minicpm3", "q_gptq_g32"),
)
"""Experts, linear attention, states, windows, latents, an indexer, sinks, 4 bits."""
PROMPTS = tuple([(7 * i + 3 * length) % 60 + 3 for i in range(length)] for length in (5, 40, 70))
"""Shorter and longer than a block of the KV cache, by ids that every model has."""
SAMPLING = Sampling(temperature=0.9, top_p=0.95, seed=5, max_tokens=10)
SPELLED = Sampling(temperature=0.9, seed=5, max_tokens=10, grammar=Grammar.regex("[a-d]{3,6}"))
BAD = ("wrong results", "errors", "hangs")
DEADLINE = 3000.0
"""Seconds after which it hangs."""


def generated(engine: Engine, prompt: int, sampling: Sampling = SAMPLING) -> list[tuple[int, float]]:
    return [(step.id, step.logprob) for step in engine.generate(PROMPTS[prompt], sampling)]


def many(engine: Engine) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    found = engine.generate_many([*PROMPTS, *PROMPTS], SAMPLING)
    return [(one.ids, one.logprobs) for _, one in found]


def scored(engine: Engine, prompt: int) -> list[tuple[float | None, int | None]]:
    return [(token.logprob, token.rank) for token in engine.score(PROMPTS[prompt], top_k=3)]


def inside(engine: Engine, prompt: int) -> bytes:
    seen = engine.capture(PROMPTS[0], [0])
    arrays = b"".join(seen[name].tobytes() for name in ("q_pre", "k_pre", "attn_row"))
    return repr(list(engine.lens(PROMPTS[prompt], top_k=2))).encode() + arrays


def family(name: str, threads: int, cache: str) -> Engine:
    return Engine.load(GOLDEN / name, dtype="f32", context=256, threads=threads, cache=cache)


class Program:
    """What threads share: an engine that stays, and a small one that is cancelled, closed and replaced."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine = Engine.load("builtin", threads=2, context=512, cache="all")
        self.small = family(FAMILIES[0], 2, "off")
        self.lock = threading.Lock()
        self.alone: dict[object, Any] = {}
        """What each thing gives when no other thread runs."""
        for prompt in range(len(PROMPTS)):
            for name, thing in self.things(self.engine, prompt).items():
                self.alone[name, prompt] = thing()
        for name in FAMILIES:
            with family(name, 1, "off") as engine:
                self.alone[name] = generated(engine, 1)

    def things(self, engine: Engine, prompt: int) -> dict[str, Callable[[], Any]]:
        """What any number of threads may ask of the same engine."""
        return {
            "generations": lambda: generated(engine, prompt),
            "generations by a grammar": lambda: generated(engine, prompt, SPELLED),
            "generations of six": lambda: many(engine),
            "scores": lambda: scored(engine, prompt),
            "logits": lambda: engine.logits(PROMPTS[prompt]).tobytes(),
            "looks inside": lambda: inside(engine, prompt),
        }


class Worker(threading.Thread):
    """One thread. found: what it did, and what was wrong."""

    def __init__(self, program: Program, number: int, count: int) -> None:
        super().__init__(daemon=True)
        self.program, self.number, self.count = program, number, count
        self.draw, self.found = random.Random(number), Counter[str]()

    def run(self) -> None:
        others = (self.be_cancelled, self.cancel, self.close, self.own, self.own, self.prefix, self.watch)
        for _ in range(self.count):
            try:
                if self.draw.random() < 0.5:
                    self.same()
                elif self.draw.random() < 0.1:
                    self.fork()
                else:
                    self.draw.choice(others)()
            except Exception:
                self.found["errors"] += 1
                traceback.print_exc()

    def check(self, name: str, right: bool) -> None:
        self.found[name] += 1
        if not right:
            self.found["wrong results"] += 1
            print(f"{name}: not what one thread gets alone")

    def same(self) -> None:
        prompt = self.draw.randrange(len(PROMPTS))
        things = self.program.things(self.program.engine, prompt)
        name = self.draw.choice(sorted(things))
        self.check(name, things[name]() == self.program.alone[name, prompt])

    def be_cancelled(self) -> None:
        try:
            found = generated(self.program.small, 1)
        except RequestError as error:  # another thread closed it
            if "closed" not in str(error):
                raise
            self.found["refusals"] += 1
            return
        self.check(
            "generations that may be cancelled", found == self.program.alone[FAMILIES[0]][: len(found)]
        )

    def cancel(self) -> None:
        for _ in range(5):
            time.sleep(self.draw.uniform(0, 0.01))
            self.program.small.cancel()
        self.found["cancels"] += 5

    def close(self) -> None:
        new = family(FAMILIES[0], self.draw.randint(1, 3), "all")
        with self.program.lock:
            old, self.program.small = self.program.small, new
        old.close()
        self.found["closes"] += 1

    def own(self) -> None:
        name = self.draw.choice(FAMILIES)
        with family(name, self.draw.randint(1, 4), "all") as engine:
            self.check("engines of their own", generated(engine, 1) == self.program.alone[name])
            if self.draw.random() < 0.5:
                engine.finish_pack(self.draw.choice((0.0, 1.0)))

    def prefix(self) -> None:
        ids = [self.number + 3, *(i % 60 + 3 for i in range(300))]
        path = self.program.folder / f"{self.number}.kv"
        ahead = self.program.engine.begin_prefill(ids)
        while ahead.step():
            pass
        ahead.write(path, 1 << 30)
        ahead.close()
        with Engine.load("builtin", threads=2, context=512, cache="all") as engine:
            taken = engine.begin_prefill(ids)
            taken.take(path)
            self.check("prefixes from files", taken.done > 0)

    def watch(self) -> None:
        for _ in range(20):
            self.program.engine.progress.read()
            time.sleep(0.001)
        self.found["views of progress"] += 1
        assert self.program.engine.kv_bytes >= 0

    def fork(self) -> None:
        # No thread can be made in such a child under ThreadSanitizer, so the engine has only this one there.
        name, threads = self.draw.choice(FAMILIES), 1 if "SANITIZED_CORE" in os.environ else 2
        with family(name, threads, "off") as engine:
            child = os.fork()
            if child == 0:
                signal.alarm(300)
                try:
                    os._exit(0 if generated(engine, 1) == self.program.alone[name] else 1)
                finally:
                    os._exit(2)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            self.check("forks", status == 0)


def main() -> int:
    count = int(sys.argv[1])
    faulthandler.enable()
    found = Counter[str]()
    # The pack of an engine that was closed may still be written while the folder is removed.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        os.environ["XDG_CACHE_HOME"] = name
        program = Program(Path(name))
        workers = [Worker(program, number, count) for number in range(THREADS)]
        begun = time.monotonic()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(max(0.0, begun + DEADLINE - time.monotonic()))
            found += worker.found
        found["hangs"] = sum(worker.is_alive() for worker in workers)
        if found["hangs"]:
            faulthandler.dump_traceback(all_threads=True)
        program.small.close()
        program.engine.close()
    print(f"threads {count}: {figures(found, BAD)}", flush=True)
    return int(any(found[name] for name in BAD))


if __name__ == "__main__":
    sys.exit(main())
