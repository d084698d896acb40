"""What quantization costs: trained models in each dtype beside f32, as a Markdown table.

`python tests/bench/quality.py [--real DIR] [--windows 40]`; DIR (beside the checkout: ../shared/real) holds
`stories260K/hf` and `tinystories-656k/hf` with their `reference.json`, and `text/`.

Per text: perplexity and its change from f32, the mean KL divergence from f32's distribution to the dtype's
(in nats per token), and how often the likeliest token is the same. `stories` are prompts with the model's own
likeliest continuations (what it is good at); `shakespeare` is a text unlike its training.
Exit code 1 if q8_0 changes a perplexity by more than 1 %.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ropechat import Engine

MODELS = ("stories260K", "tinystories-656k")
DTYPES = ("bf16", "q8_0", "q6_k", "q5_1", "q5_k", "q4_1", "q4_k", "q4_0", "q3_k", "q2_k")
WINDOW = 256
ALLOWED = 0.01

Texts = list[list[int]]


@dataclass(frozen=True)
class Quality:
    """Means over all rows that have a next token."""

    perplexity: float
    divergence: float
    same_best: float


def log_probabilities(engine: Engine, ids: Sequence[int]) -> np.ndarray:
    """Every row's distribution, in f64.  # [len(ids), vocab_size]"""
    logits = engine.logits(ids).astype(np.float64)
    shifted = logits - logits.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def compare(exact: Engine, engine: Engine, texts: Texts) -> Quality:
    losses, divergences, same = [], [], []
    for ids in texts:
        P, Q = log_probabilities(exact, ids)[:-1], log_probabilities(engine, ids)[:-1]
        losses.append(-Q[np.arange(len(Q)), ids[1:]])
        divergences.append((np.exp(P) * (P - Q)).sum(1))
        same.append(P.argmax(1) == Q.argmax(1))
    loss, divergence, agree = (np.concatenate(rows).mean() for rows in (losses, divergences, same))
    return Quality(float(np.exp(loss)), float(divergence), float(agree))


def windows(engine: Engine, text: str, count: int) -> Texts:
    """Consecutive pieces of a text, each begun as the tokenizer begins a text."""
    ids = engine.tokenizer.encode(text)
    begin = ids[:1] if engine.tokenizer.adds_bos else []
    starts = range(len(begin), len(ids) - WINDOW, WINDOW)[:count]
    return [begin + ids[start : start + WINDOW - len(begin)] for start in starts]


def texts_of(real: Path, name: str, engine: Engine, count: int) -> dict[str, Texts]:
    cases = json.loads((real / name / "reference.json").read_text("utf-8"))["cases"]
    found = {"stories": [case["prompt_ids"] + case["greedy_new_ids"] for case in cases]}
    play = real / "text" / "tinyshakespeare.txt"
    if play.exists():
        found["shakespeare"] = windows(engine, play.read_text("utf-8")[: count * WINDOW * 8], count)
    return found


def rows_of(real: Path, name: str, count: int) -> tuple[list[str], bool]:
    """A model's lines of the table, and whether q8_0 kept its promise."""
    folder, lines, kept = real / name / "hf", [], True
    exact = Engine.load(folder, dtype="f32")
    engines = {dtype: Engine.load(folder, dtype=dtype, kv_dtype="f16") for dtype in DTYPES}
    for title, texts in texts_of(real, name, exact, count).items():
        tokens = sum(len(ids) - 1 for ids in texts)
        base = compare(exact, exact, texts).perplexity
        lines.append(f"| {name} | {title}, {tokens} tokens | f32 | {base:.4f} | | | |")
        for dtype, engine in engines.items():
            found = compare(exact, engine, texts)
            change = found.perplexity / base - 1
            kept = kept and (not dtype.startswith("q8_0") or abs(change) <= ALLOWED)
            lines.append(
                f"| | | {dtype} | {found.perplexity:.4f} | {change:+.3%} | {found.divergence:.2e} "
                f"| {found.same_best:.2%} |"
            )
    return lines, kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--real", type=Path, default=Path(__file__).parents[2].parent / "shared" / "real")
    parser.add_argument("--windows", type=int, default=40, help=f"pieces of {WINDOW} tokens of a long text")
    given = parser.parse_args()
    there = [name for name in MODELS if (given.real / name / "hf").is_dir()]
    if not there:
        print(f"{given.real}: none of {', '.join(MODELS)} is there; nothing to do", file=sys.stderr)
        return 0
    print("| model | text | dtype | perplexity | change | KL from f32 | same best token |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    promises = []
    for name in there:
        lines, kept = rows_of(given.real, name, given.windows)
        print("\n".join(lines))
        promises.append(kept)
    return 0 if all(promises) else 1


if __name__ == "__main__":
    sys.exit(main())
