"""`make bench`: tokens per second of prefill and decode, and the memory bandwidth they compete with.

Subjects take turns: every round runs each of them once and the memory probe beside them, so that a machine
that slows down slows all of them down. Medians of the rounds are printed. Models have random weights and real
shapes; they are made once, in tests/bench/models (git-ignored).
"""

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
from models import write_llama

from ropechat import Engine, Sampling

MODELS = Path(__file__).parent / "models"

SHAPES: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
    },
}


@dataclass(frozen=True)
class Speed:
    """Tokens per second of one run."""

    prefill: float
    decode: float


class Subject(Protocol):
    """An engine with a model in a setting: what takes part in a round."""

    name: str
    threads: int
    weight_bytes: int

    def run(self, prompt: Sequence[int], decode: int) -> Speed:
        """Feed the prompt, then generate `decode` more tokens after the first, greedily, without an EOS."""


class Ropechat:
    def __init__(self, model: Path, threads: int, dtype: str) -> None:
        self.name, self.threads = "ropechat", threads
        self.engine = Engine.load(model, threads=threads, dtype=dtype)
        self.weight_bytes = int(self.engine.facts["weight_bytes"])

    def run(self, prompt: Sequence[int], decode: int) -> Speed:
        clock = [time.perf_counter()]
        for _ in self.engine.generate(prompt, Sampling(temperature=0, max_tokens=decode + 1)):
            clock.append(time.perf_counter())
        assert len(clock) == decode + 2, "the model stopped early"
        return Speed(len(prompt) / (clock[1] - clock[0]), decode / (clock[-1] - clock[1]))


class Memory:
    """Bytes per second that threads read, each its own part of an array far larger than the caches.

    An OR over integers: NumPy does it without the GIL, as fast as memory comes (a sum of floats is slower).
    """

    def __init__(self, megabytes: int = 512) -> None:
        self.array = np.ones(megabytes << 17, np.uint64)

    def read(self, threads: int) -> float:
        parts = np.array_split(self.array, threads)
        workers = [threading.Thread(target=np.bitwise_or.reduce, args=(part,)) for part in parts]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return self.array.nbytes / (time.perf_counter() - start)


def model_of(shape: str, dtype: str) -> Path:
    """Its directory, made under another name first: an interrupted writer leaves nothing usable."""
    directory = MODELS / f"{shape}-{dtype}"
    if not directory.exists():
        print(f"making {directory.name} ...", file=sys.stderr)
        made = write_llama(MODELS / f"{directory.name}.part", dtype=dtype, eos_token_id=None, **SHAPES[shape])
        made.rename(directory)
    return directory


def measure(subjects: Sequence[Subject], prompt: int, decode: int, rounds: int) -> list[dict[str, Any]]:
    """One record per subject: medians over the rounds, and what each round gave."""
    rng, memory = np.random.default_rng(0), Memory()
    speeds: list[list[Speed]] = [[] for _ in subjects]
    reads: list[list[float]] = [[] for _ in subjects]
    for round in range(-1, rounds):  # the first one warms up and does not count
        ids = rng.integers(3, 1000, prompt).tolist()  # fresh, so that no prefix comes from the cache
        for i, subject in enumerate(subjects):
            read, speed = memory.read(subject.threads), subject.run(ids, decode)
            if round >= 0:
                reads[i].append(read)
                speeds[i].append(speed)
    records = []
    for subject, own, read in zip(subjects, speeds, reads, strict=True):
        decoded, bandwidth = median(own, lambda s: s.decode), statistics.median(read)
        records.append(
            {
                "engine": subject.name,
                "threads": subject.threads,
                "prefill_tokens_per_s": median(own, lambda s: s.prefill),
                "decode_tokens_per_s": decoded,
                "weight_bytes": subject.weight_bytes,
                "read_bytes_per_s": bandwidth,
                "decode_share_of_bandwidth": decoded * subject.weight_bytes / bandwidth,
                "rounds": [[s.prefill, s.decode, r] for s, r in zip(own, read, strict=True)],
            }
        )
    return records


def median(speeds: Sequence[Speed], of: Callable[[Speed], float]) -> float:
    return statistics.median(map(of, speeds))


def table(report: dict[str, Any]) -> str:
    prompt, decode = report["prompt"], report["decode"]
    heads = ["engine", "threads", f"prefill {prompt}", f"decode {decode}", "memory read", "decode reads"]
    units = ["", "", "tokens/s", "tokens/s", "GB/s", "of memory read"]
    rows = [
        [
            record["engine"],
            str(record["threads"]),
            f"{record['prefill_tokens_per_s']:.1f}",
            f"{record['decode_tokens_per_s']:.1f}",
            f"{record['read_bytes_per_s'] / 1e9:.1f}",
            f"{record['decode_share_of_bandwidth']:.0%}",
        ]
        for record in report["results"]
    ]
    lines = [heads, units, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    body = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join([f"{report['model']}, {report['dtype']}, {report['isa']}; medians", *body])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    parser.add_argument(
        "--weights", choices=["f32", "f16", "bf16"], default="bf16", help="dtype of the files"
    )
    parser.add_argument("--dtype", default="auto", help="dtype that ropechat computes in")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--decode", type=int, default=128, help="tokens generated after the first")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="everything that was measured, on stdout")
    options = parser.parse_args()
    model = model_of(options.shape, options.weights)
    subjects = [Ropechat(model, threads, options.dtype) for threads in options.threads]
    facts = subjects[0].engine.facts
    report = {
        "model": model.name,
        "dtype": facts["dtype"],
        "isa": facts["isa"],
        "prompt": options.prompt,
        "decode": options.decode,
        "results": measure(subjects, options.prompt, options.decode, options.rounds),
    }
    print(json.dumps(report, indent=2) if options.json else table(report))


if __name__ == "__main__":
    main()
