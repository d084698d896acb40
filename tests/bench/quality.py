"""What quantization costs: trained models in each dtype beside f32, as a Markdown table.

`python tests/bench/quality.py [--real DIR] [--windows 40]`; DIR (beside the checkout: ../shared/real) holds
`stories260K/hf` and `tinystories-656k/hf` with their `reference.json`, and `text/`.
`python tests/bench/quality.py --model MODEL --text FILE` compares for another model, on a text.

Per text: perplexity and its change from f32, the mean KL divergence from f32's distribution to the dtype's
(in nats per token), and how often the likeliest token is the same. `stories` are prompts with the model's own
likeliest continuations (what it is good at); `tinyshakespeare` is a text unlike its training.
Exit code 1 if q8_0 changes a perplexity by more than 1 %.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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
    found: np.ndarray = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return found


def compare(exact: Engine, engines: Sequence[Engine], texts: Texts) -> tuple[float, list[Quality]]:
    """f32's perplexity, and each engine's quality."""
    base: list[np.ndarray] = []
    rows: list[list[tuple[np.ndarray, ...]]] = [[] for _ in engines]
    for ids in texts:
        P, at = log_probabilities(exact, ids)[:-1], np.arange(len(ids) - 1)
        base.append(-P[at, ids[1:]])
        for engine, found in zip(engines, rows, strict=True):
            Q = log_probabilities(engine, ids)[:-1]
            divergence = (np.exp(P) * (P - Q)).sum(1)
            found.append((-Q[at, ids[1:]], divergence, P.argmax(1) == Q.argmax(1)))
    means = [[float(np.concatenate(kind).mean()) for kind in zip(*found, strict=True)] for found in rows]
    qualities = [Quality(float(np.exp(loss)), divergence, same) for loss, divergence, same in means]
    return float(np.exp(np.concatenate(base).mean())), qualities


def windows(engine: Engine, text: str, count: int) -> Texts:
    """Consecutive pieces of a text, each begun as the tokenizer begins a text."""
    ids = engine.tokenizer.encode(text)
    begin = ids[:1] if engine.tokenizer.adds_bos else []
    starts = range(len(begin), len(ids) - WINDOW, WINDOW)[:count]
    return [begin + ids[start : start + WINDOW - len(begin)] for start in starts]


def texts_of(real: Path, name: str, count: int, engine: Engine) -> dict[str, Texts]:
    cases = json.loads((real / name / "reference.json").read_text("utf-8"))["cases"]
    found = {"stories": [case["prompt_ids"] + case["greedy_new_ids"] for case in cases]}
    play = real / "text" / "tinyshakespeare.txt"
    return found | (text_of(play, count, engine) if play.exists() else {})


def text_of(path: Path, count: int, engine: Engine) -> dict[str, Texts]:
    return {path.stem: windows(engine, path.read_text("utf-8")[: count * WINDOW * 8], count)}


def rows_of(path: Path, name: str, texts_for: Callable[[Engine], dict[str, Texts]]) -> tuple[list[str], bool]:
    """A model's lines of the table, and whether q8_0 kept its promise."""
    lines, kept = [], True
    exact = Engine.load(path, dtype="f32")
    engines = {dtype: Engine.load(path, dtype=dtype, kv_dtype="f16") for dtype in DTYPES}
    for title, texts in texts_for(exact).items():
        tokens = sum(len(ids) - 1 for ids in texts)
        base, qualities = compare(exact, list(engines.values()), texts)
        lines.append(f"| {name} | {title}, {tokens} tokens | f32 | {base:.4f} | | | |")
        for dtype, found in zip(engines, qualities, strict=True):
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
    parser.add_argument("--model", type=Path, help="compare for this model only, on --text")
    parser.add_argument("--text", type=Path, help="a file for --model")
    parser.add_argument("--windows", type=int, default=40, help=f"pieces of {WINDOW} tokens of a long text")
    given = parser.parse_args()
    if (given.model is None) != (given.text is None):
        parser.error("--model and --text must be given together")
    there = [name for name in MODELS if (given.real / name / "hf").is_dir()] if given.model is None else []
    if given.model is None and not there:
        print(f"{given.real}: none of {', '.join(MODELS)} is there; nothing to do", file=sys.stderr)
        return 0
    print("| model | text | dtype | perplexity | change | KL from f32 | same best token |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    found = [
        rows_of(given.real / name / "hf", name, partial(texts_of, given.real, name, given.windows))
        for name in there
    ]
    if given.model is not None:
        found.append(rows_of(given.model, given.model.stem, partial(text_of, given.text, given.windows)))
    for lines, _ in found:
        print("\n".join(lines))
    return 0 if all(kept for _, kept in found) else 1


if __name__ == "__main__":
    sys.exit(main())
