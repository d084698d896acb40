"""What drafts of prompt look-up gain where an answer repeats its prompt, and cost where it does not.

`python tests/bench/drafts.py --shape smollm2-135m --rounds 5`. The model has the shape's sizes, but attention
and MLPs add nothing, and the unembedding makes of each token the one with the next id, nearly always. So an
answer counts up from its prompt's last token, at the full cost of every product, and the prompt decides how
much of it is a repeat. Both ways take turns in one process; the answers are compared. CPU time is the figure
for a machine that others use.

`--mtp right` and `--mtp wrong` give the model (of Qwen 3.5's shape) a layer for multi-token prediction whose
drafts are always, or never, right: the most that it can gain, and what it costs where it gains nothing.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from ropechat import Engine, Sampling
from ropechat.engine.bench.shapes import SHAPES, config_of, write_weights

LENGTH = 400
Prompt = Callable[[Random, int], list[int]]


def edit(every: int) -> Prompt:
    """A text of which one token in `every` is changed, and the beginning of the answer."""

    def prompt(source: Random, vocab_size: int) -> list[int]:
        first = source.randrange(vocab_size - 2 * LENGTH)
        text = list(range(first, first + LENGTH))
        for place in range(every, LENGTH, every):
            text[place] = source.randrange(vocab_size)
        return [*source.choices(range(vocab_size), k=30), *text, first, first + 1]

    return prompt


def new(source: Random, vocab_size: int) -> list[int]:
    """A text that the answer has nothing of."""
    first = source.randrange(vocab_size - 2 * LENGTH)
    return [*source.choices(range(vocab_size), k=LENGTH), first, first + 1]


def misleading(source: Random, vocab_size: int) -> list[int]:
    """A text with each second pair of the answer, behind which it goes on in another way."""
    first = source.randrange(vocab_size - 2 * LENGTH)
    pairs = [
        id for at in range(first, first + LENGTH // 2, 2) for id in (at, at + 1, source.randrange(vocab_size))
    ]
    return [*source.choices(range(vocab_size), k=20), *pairs, first, first + 1]


PROMPTS: dict[str, Prompt] = {
    "a copy": edit(LENGTH),
    "an edit, 1 token in 30": edit(30),
    "an edit, 1 token in 12": edit(12),
    "new text": new,
    "misleading": misleading,
}


def counting_model(shape: str, folder: Path, wrong_every: int = 0, mtp: str = "") -> Path:
    """Write the model: the random one, with two kinds of matrices at zero and an unembedding of its own.

    wrong_every: of so many ids in a row, one is followed by another than the next; 0: none. mtp: "right" or
    "wrong", which the drafts of a layer for multi-token prediction are; "": there is none.
    """
    config = config_of(shape)
    write_weights(folder / "layers.safetensors", config)
    data = np.memmap(folder / "layers.safetensors", np.uint8, "r+")
    begin = 8 + int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8:begin].tobytes())
    embedding = header["model.embed_tokens.weight"]["data_offsets"]
    for name, tensor in header.items():
        if name.removesuffix(".weight").endswith(("o_proj", "out_proj", "down_proj", "w2")):
            start, end = tensor["data_offsets"]
            data[begin + start : begin + end] = 0
    data.flush()
    size = max(tensor["data_offsets"][1] for tensor in header.values() if "data_offsets" in tensor)
    rows = data[begin + embedding[0] : begin + embedding[1]].reshape(config["vocab_size"], -1)
    second = np.roll(rows, 1, axis=0)
    if wrong_every:
        second[::wrong_every] = np.roll(rows, 2, axis=0)[::wrong_every]
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    width = config["hidden_size"]
    parts: dict[str, tuple[list[int], bytes]] = {
        "lm_head.weight": ([config["vocab_size"], width], second.tobytes())
    }
    if mtp:
        part = {
            name: (tensor["shape"], data[begin + (at := tensor["data_offsets"])[0] : begin + at[1]].tobytes())
            for name, tensor in header.items()
            if name != "__metadata__"
        }
        attention = [name.split("self_attn")[0] for name in part if "self_attn" in name][-1]
        parts |= {
            name.replace(attention, "mtp.layers.0."): value
            for name, value in part.items()
            if attention in name
        }
        fc = np.concatenate([np.eye(width), np.zeros((width, width))], axis=1) * (mtp == "right")
        parts["mtp.fc.weight"] = (
            list(fc.shape),
            (fc.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes(),
        )
        parts |= {
            f"mtp.{name}.weight": part["model.norm.weight"] if name == "norm" else ([width], bytes(2 * width))
            for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
        }
    own, end = {}, 0
    for name, (shape_of, bytes_of) in parts.items():
        offsets = [end, end := end + len(bytes_of)]
        own[name] = {"dtype": "BF16", "shape": shape_of, "data_offsets": offsets}
    text = json.dumps(own).encode()
    with (folder / "own.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(bytes_of for _, bytes_of in parts.values())
    names = {name: "layers.safetensors" for name in header if name != "__metadata__"}
    names |= dict.fromkeys(parts, "own.safetensors")
    index = {"metadata": {"total_size": size + end}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def measure(engine: Engine, prompt: list[int], sampling: Sampling) -> tuple[list[int], float, float, int]:
    """(ids, seconds, CPU seconds, drafted tokens) of an answer, without its first token."""
    steps = engine.generate(prompt, sampling)
    answer = [next(steps)]
    wall, cpu = time.perf_counter(), time.process_time()
    answer += steps
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return [step.id for step in answer], wall, cpu, sum(step.drafted for step in answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    parser.add_argument("--dtype", default="q8_0")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--mtp", choices=("right", "wrong"), default="")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = counting_model(given.shape, Path(folder), mtp=given.mtp)
        options: dict[str, Any] = {"dtype": given.dtype, "threads": given.threads, "cache": "off"}
        engines = {mode: Engine.load(model, **options, speculative=mode) for mode in ("off", "auto")}
        vocab_size = engines["off"].facts["vocab_size"]
        found: dict[tuple[str, float, str], list[tuple[float, float, int]]] = {}
        for number in range(given.rounds):
            for name, make in PROMPTS.items():
                for temperature in (0.0, 0.7):
                    prompt = make(Random(f"{number} {name}"), vocab_size)
                    sampling = Sampling(temperature=temperature, max_tokens=given.tokens, seed=number)
                    answers = []
                    for mode in ("off", "auto") if number % 2 else ("auto", "off"):
                        ids, *figures = measure(engines[mode], prompt, sampling)
                        answers.append(ids)
                        found.setdefault((name, temperature, mode), []).append(tuple(figures))
                    assert answers[0] == answers[1], f"{name}: the answers differ"
    print(f"{given.shape}, {given.dtype}: speed with drafts against without, of {given.tokens} tokens")
    for name in PROMPTS:
        for temperature in (0.0, 0.7):
            without, drafts = found[name, temperature, "off"], found[name, temperature, "auto"]
            wall, cpu, count = (
                [statistics.median(run[i] for run in runs) for runs in (without, drafts)] for i in range(3)
            )
            print(
                f"{name:24}temperature {temperature}: {wall[0] / wall[1]:.2f} by the clock, "
                f"{cpu[0] / cpu[1]:.2f} in CPU time, {count[1]:.0f} tokens drafted"
            )


if __name__ == "__main__":
    main()
