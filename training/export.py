"""From a work folder to a model folder.

`python -m training.export --work FOLDER --to FOLDER`

Writes config.json, model.safetensors (bf16), generation_config.json and the tokenizer's files under the names
that transformers uses.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from training.train import Recipe


def export(work: Path, folder: Path) -> None:
    """Write the model of a checkpoint."""
    state = torch.load(work / "checkpoint.pt", weights_only=True)
    recipe = Recipe(**state["recipe"])
    if recipe.positions != "rope":
        raise SystemExit(
            f"{work}: positions: {recipe.positions}; only a model with rope is of the Llama shape"
        )
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": tensor.bfloat16().contiguous() for name, tensor in state["model"].items()}
    vocab_size = len(tensors["model.embed_tokens.weight"])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    generation = {"eos_token_id": [2, 0], "pad_token_id": 0, "do_sample": True, "temperature": 0.7}
    generation |= {"top_k": 40, "top_p": 0.95}
    for name, content in (("config", recipe.config(vocab_size)), ("generation_config", generation)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(work / name, folder / name)


def main() -> None:
    """Read the options and export."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--to", type=Path, required=True)
    given = parser.parse_args()
    export(given.work, given.to)


if __name__ == "__main__":
    main()
