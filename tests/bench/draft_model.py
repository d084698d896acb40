"""What a draft model gains where it is right, and costs where it is wrong.

`python tests/bench/draft_model.py --rounds 5`: the built-in model with further layers that add nothing, at
the full cost of every product, answers stories and questions; its draft models are the built-in model
itself, a copy whose weights are rounded to 4 bits, its first half, and random weights.
`python tests/bench/draft_model.py --shape qwen2.5-0.5b --draft smollm2-135m`: models of these shapes that
count up (see `drafts.py`); the draft model is right for all tokens, for all but one in some, or for none.

All ways take turns in one process; the answers are compared. CPU time is the figure for a machine that others
use. The first answer of an engine is shown apart: there the draft model is not measured yet.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from drafts import counting_model, measure, new

from ropechat import Engine, Message, Role, Sampling
from ropechat.builtin import FOLDER
from ropechat.engine.bench.shapes import SHAPES, config_of

WRONG = {"right": 0, "1 token in 8 wrong": 8, "1 token in 3 wrong": 3, "wrong": 1}
PROMPTS = (
    "Tell a story about a fox and a crow.",
    "Tell me a story about the old mill.",
    "Write a story about two children and a boat.",
    "Tell a story about a lost key.",
    "Write a story about a cold winter in the village.",
)
Tensors = dict[str, tuple[list[int], np.ndarray]]


def read_builtin() -> Tensors:
    """The bf16 weights of the built-in model, as u16, by name with their shapes."""
    data = (FOLDER / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    return {
        name: (entry["shape"], np.frombuffer(data[begin:][slice(*entry["data_offsets"])], "<u2"))
        for name, entry in header.items()
    }


def write_model(folder: Path, tensors: Tensors, layers: int) -> Path:
    """The built-in model with other weights."""
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, (shape, values) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + values.nbytes]}
        end += values.nbytes
    text = json.dumps(header).encode()
    body = b"".join(values.tobytes() for _, values in tensors.values())
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + body)
    return folder


def own_layers(tensors: Tensors) -> int:
    return 1 + max(int(name.split(".")[2]) for name in tensors if name.startswith("model.layers."))


def with_more_layers(tensors: Tensors, more: int) -> Tensors:
    """Layers behind the last one whose attention and MLP add nothing."""
    own, found = own_layers(tensors), dict(tensors)
    for layer in range(more):
        start = f"model.layers.{layer % own}."
        for name, (shape, values) in tensors.items():
            if name.startswith(start):
                adds_nothing = "o_proj" in name or "down_proj" in name
                copy = np.zeros_like(values) if adds_nothing else values
                found[f"model.layers.{own + layer}.{name.removeprefix(start)}"] = (shape, copy)
    return found


def rounded(tensors: Tensors) -> Tensors:
    """Each 32 weights of a matrix rounded to 16 values, as q4_0 does."""
    found = {}
    for name, (shape, values) in tensors.items():
        if len(shape) == 2:
            groups = (values.astype("<u4") << 16).view("<f4").reshape(-1, 32)
            largest = np.take_along_axis(groups, np.abs(groups).argmax(1)[:, None], 1)
            scale = np.where(largest == 0, 1, largest / -8)
            values = (
                (np.clip(np.rint(groups / scale), -8, 7) * scale).astype("<f4").view("<u4") >> 16
            ).astype("<u2")
        found[name] = (shape, values.reshape(-1))
    return found


def random_weights(tensors: Tensors) -> Tensors:
    """The same weights in another order: always wrong, at the same cost."""
    order = np.random.default_rng(0)
    return {
        name: (shape, order.permutation(values) if len(shape) == 2 else values)
        for name, (shape, values) in tensors.items()
    }


def trained_pairs(folder: Path, more_layers: int) -> tuple[Path, dict[str, Path]]:
    """The target, and its draft models."""
    tensors = read_builtin()
    own = own_layers(tensors)
    target = write_model(folder / "target", with_more_layers(tensors, more_layers), own + more_layers)
    drafts = {
        "the built-in model": FOLDER,
        "rounded to 4 bits": write_model(folder / "rounded", rounded(tensors), own),
        "the first half of it": write_model(folder / "half", tensors, own // 2),
        "random weights": write_model(folder / "random", random_weights(tensors), own),
    }
    return target, drafts


def counting_pairs(folder: Path, shape: str, draft: str) -> tuple[Path, dict[str, Path]]:
    """The target, and draft models that are wrong for some tokens."""
    drafts = {}
    for name, wrong_every in WRONG.items():
        (folder / name).mkdir()
        drafts[name] = counting_model(draft, folder / name, wrong_every)
    (folder / "target").mkdir()
    return counting_model(shape, folder / "target"), drafts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--draft", choices=SHAPES, default="smollm2-135m")
    parser.add_argument("--more-layers", type=int, default=60)
    parser.add_argument("--dtype", default="q8_0")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.shape is None:
            target, drafts = trained_pairs(folder, given.more_layers)
        else:
            target, drafts = counting_pairs(folder, given.shape, given.draft)
        options: dict[str, Any] = {"dtype": given.dtype, "threads": given.threads, "cache": "off"}
        print(
            f"{given.shape or f'built-in + {given.more_layers} layers'}, {given.dtype}, {given.tokens} tokens"
        )
        for draft_name, draft in drafts.items():
            engines = {
                "off": Engine.load(target, **options, speculative="off"),
                "look-up": Engine.load(target, **options),
                "draft": Engine.load(target, **options, draft=draft),
            }
            compare(engines, draft_name, given)


def compare(engines: dict[str, Engine], draft_name: str, given: argparse.Namespace) -> None:
    """Measure answers with and without a draft model, and print the ratios."""
    found: dict[tuple[float, str], list[tuple[float, float, int]]] = {}
    first: dict[str, float] = {}
    tokens = 0
    for number in range(given.rounds + 1):
        for temperature in (0.0, 0.8):
            if given.shape is None:
                asked = [Message(Role.USER, PROMPTS[number % len(PROMPTS)])]
                prompt = engines["off"].prompt_ids(asked)
            else:
                ids = min(config_of(shape)["vocab_size"] for shape in (given.shape, given.draft))
                prompt = new(Random(f"{number} {temperature}"), ids)
            sampling = Sampling(temperature=temperature, max_tokens=given.tokens, seed=number)
            answers = []
            order = list(engines)
            for mode in order[number % 3 :] + order[: number % 3]:
                answer, *figures = measure(engines[mode], prompt, sampling)
                answers.append(answer)
                if number == 0:
                    first.setdefault(mode, figures[1])
                else:
                    found.setdefault((temperature, mode), []).append(tuple(figures))
            assert answers[0] == answers[1] == answers[2], f"{draft_name}: the answers differ"
            tokens += len(answers[0]) if number and temperature == 0.8 else 0
    for temperature in (0.0, 0.8):
        # Sums, because answers differ in length.
        wall, cpu, count = (
            {mode: sum(run[i] for run in found[temperature, mode]) for mode in engines} for i in range(3)
        )
        total = f", {count['draft']} drafted"
        total += (
            f" of {tokens}"
            if temperature == 0.8
            else f", the first answer {first['off'] / first['draft']:.2f}"
        )
        print(
            f"{draft_name:24}temperature {temperature}: {wall['off'] / wall['draft']:.2f} by the clock, "
            f"{cpu['off'] / cpu['draft']:.2f} in CPU time ({cpu['off'] / cpu['look-up']:.2f} with prompt "
            f"look-up alone){total}",
            flush=True,
        )


if __name__ == "__main__":
    main()
