"""Train the built-in model: `python -m training.train --work FOLDER`.

Everything is drawn from the seed. The work folder holds the tokenizer, the corpus as numbers, a checkpoint
and the loss log; the same command goes on where the last one stopped, and one with more `--steps` goes on at
the learning rate of the longer run. Needs the extra `[train]`.
"""

import argparse
import dataclasses
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from training.dataset import Example, batches, examples
from training.model import Config, Decoder, Positions, config_of
from training.questions import banned
from training.tokenizer_training import learn, save

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SAVE_EVERY, SHOW_EVERY = 100, 10  # steps
CONTEXT = 512


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything that decides the result."""

    seed: int = 1
    steps: int = 5200
    batch_tokens: int = 6144
    dialogues: int = 220_000
    held_out: int = 400
    vocab_size: int = 4000
    hidden: int = 320
    layers: int = 6
    heads: int = 10
    kv_heads: int = 2
    intermediate: int = 800
    learning_rate: float = 4e-3
    weight_decay: float = 0.1
    warmup: int = 50
    decay: float = 0.5
    positions: Positions = "rope"
    optimizer: str = "muon"
    threads: int = 2
    check_every: int = 200

    def config(self, vocab_size: int) -> Config:
        """The config.json of the model."""
        return config_of(
            vocab_size, self.hidden, self.layers, self.heads, self.kv_heads, self.intermediate, CONTEXT
        )

    def rate(self, step: int) -> float:
        """The learning rate at a step: up, constant, and down to zero over the last part."""
        up = (step + 1) / self.warmup
        down = (self.steps - step) / (self.decay * self.steps)
        return self.learning_rate * min(1.0, up, down)


def prepared(recipe: Recipe, work: Path) -> "tuple[Tokenizer, list[Example], list[Example]]":
    """The tokenizer, the examples to learn from and those held out; kept in the work folder."""
    from tokenizers import Tokenizer

    if not (work / "tokenizer.json").exists():
        say("learning the tokenizer")
        save(learn(recipe.seed, recipe.vocab_size), work, CONTEXT)
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    held = examples(tokenizer, recipe.seed, "dev", recipe.held_out, banned())
    file = work / "corpus.npz"
    if not file.exists():
        say(f"writing {recipe.dialogues} dialogues")
        made = examples(tokenizer, recipe.seed, "train", recipe.dialogues, banned())
        ends = np.cumsum([len(example.ids) for example in made])
        ids = np.concatenate([example.ids for example in made])
        weights = np.concatenate([example.weights for example in made])
        np.savez(file, ends=ends, ids=ids, weights=weights.astype(np.float16))
    with np.load(file) as stored:
        ends, ids, weights = stored["ends"], stored["ids"], stored["weights"].astype(np.float32)
    say(f"{len(ends)} dialogues, {len(ids) / 1e6:.1f} M tokens")
    cuts = ends[:-1]
    rows = zip(np.split(ids, cuts), np.split(weights, cuts), strict=True)
    return tokenizer, [Example(*row) for row in rows], held


def say(text: str) -> None:
    """A line of progress to stderr."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def optimizers(model: Decoder, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices (K. Jordan, 2024), AdamW for embeddings and norms; or AdamW for all."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and name.startswith("layers.")]
    names = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in names]
    rate, decay = recipe.learning_rate, recipe.weight_decay
    if recipe.optimizer == "adamw":
        groups = [{"params": matrices, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]
        return [torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98))]
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def held_out_loss(model: Decoder, held: list[Example], recipe: Recipe) -> float:
    """Mean -ln p per answered token of the held-out dialogues."""
    only = [Example(one.ids, (one.weights == 1.0).astype(np.float32)) for one in held]
    total, count = 0.0, 0.0
    seen = 0
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):  # to compile it would take longer
        for batch in batches(only, recipe.batch_tokens, 0):
            if seen + len(batch.ids) > len(only) * 0.8:
                break
            seen += len(batch.ids)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model.losses(torch.from_numpy(batch.ids), torch.from_numpy(batch.weights))
            total, count = total + float(loss), count + float(batch.weights.sum())
    return total / count


class Run:
    """A training run in a work folder."""

    def __init__(self, recipe: Recipe, work: Path, vocab_size: int) -> None:
        torch.manual_seed(recipe.seed)
        torch.set_num_threads(recipe.threads)
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
        self.recipe, self.work, self.step = recipe, work, 0
        self.model = Decoder(recipe.config(vocab_size), recipe.positions)
        self.optimizers = optimizers(self.model, recipe)
        self.log: list[dict[str, Any]] = []
        if (work / "checkpoint.pt").exists():
            self._restore()

    def _restore(self) -> None:
        state = torch.load(self.work / "checkpoint.pt", weights_only=True)
        if state["recipe"] | {"steps": self.recipe.steps} != dataclasses.asdict(self.recipe):
            raise SystemExit(f"{self.work}: a run of another recipe; give another --work")
        self.step, self.log = state["step"], state["log"]
        self.model.load_state_dict(state["model"])
        for optimizer, kept in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        say(f"going on at step {self.step}")

    def save(self) -> None:
        """Write the checkpoint and the log; a reader sees the old or the new one, never half."""
        state = {
            "recipe": dataclasses.asdict(self.recipe),
            "step": self.step,
            "log": self.log,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        torch.save(state, self.work / "checkpoint.tmp")
        os.replace(self.work / "checkpoint.tmp", self.work / "checkpoint.pt")
        (self.work / "log.json").write_text(json.dumps(self.log, indent=0) + "\n", encoding="utf-8")

    def learn(self, ids: torch.Tensor, weights: torch.Tensor) -> float:
        """One step; returns the weighted mean loss."""
        rate = self.recipe.rate(self.step)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = self.model.losses(ids, weights) / weights.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        return float(loss.detach())


def train(run: Run, learned: list[Example], held: list[Example], until: int | None = None) -> None:
    """All steps that are missing (or those up to `until`), with a line of progress every few."""
    recipe = run.recipe
    end = recipe.steps if until is None else min(until, recipe.steps)
    started, first, smooth, tokens = time.monotonic(), run.step, math.nan, 0
    for at, batch in enumerate(batches(learned, recipe.batch_tokens, recipe.seed)):
        if at < run.step:  # going on: these were learned before
            continue
        if run.step >= end:
            break
        loss = run.learn(torch.from_numpy(batch.ids), torch.from_numpy(batch.weights))
        smooth = loss if math.isnan(smooth) else 0.95 * smooth + 0.05 * loss
        tokens += batch.weights.size
        spent = time.monotonic() - started
        if run.step % SHOW_EVERY == 0:
            left = spent / (run.step - first) * (recipe.steps - run.step)
            say(
                f"step {run.step}/{recipe.steps}  loss {smooth:.4f}  {tokens / spent:,.0f} tokens/s  "
                f"{left / 60:.0f} min left"
            )
        if run.step % recipe.check_every == 0 or run.step == recipe.steps:
            checked = held_out_loss(run.model, held, recipe)
            run.log.append({"step": run.step, "loss": round(smooth, 4), "held_out": round(checked, 4)})
            say(f"step {run.step}  held-out loss {checked:.4f}")
        if run.step % SAVE_EVERY == 0 or run.step == recipe.steps:
            run.save()


def main() -> None:
    """Read the options, prepare, train."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder of the run")
    parser.add_argument(
        "--no-compile", action="store_true", help="without torch.compile (no C++ compiler needed)"
    )
    for field in dataclasses.fields(Recipe):
        name = f"--{field.name.replace('_', '-')}"
        parser.add_argument(name, type=type(field.default), default=field.default, help=f"[{field.default}]")
    given = vars(parser.parse_args())
    # oneDNN keeps a program for each shape, and batches have many: its usual 1024 take 10 GB in a full run
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    work, plain = given.pop("work"), given.pop("no_compile")
    recipe = Recipe(**given)
    work.mkdir(parents=True, exist_ok=True)
    (work / "recipe.json").write_text(
        json.dumps(dataclasses.asdict(recipe), indent=2) + "\n", encoding="utf-8"
    )
    tokenizer, learned, held = prepared(recipe, work)
    run = Run(recipe, work, tokenizer.get_vocab_size())
    say(f"{sum(p.numel() for p in run.model.parameters()) / 1e6:.2f} M parameters")
    if not plain:
        for layer in run.model.layers:
            layer.compile()
    train(run, learned, held)


if __name__ == "__main__":
    main()
