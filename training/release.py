"""Make a run the built-in model: `python -m training.release --work FOLDER ...`.

Exports it to ropechat/builtin, asks the test questions, writes transcript.md, and MODEL_CARD.md from card.md
and newcomers.md (which `newcomers.py` makes from a reader's verdicts).
"""

import argparse
import dataclasses
import json
import re
import zlib
from pathlib import Path
from typing import Any

from ropechat.builtin import FOLDER
from ropechat.engine.engine import Engine
from training.evaluate import ask, held_out_bits, table, transcript
from training.export import export
from training.questions import questions
from training.train import Recipe

HERE = Path(__file__).parent
FILES = (
    "config.json",
    "model.safetensors",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


def command(recipe: dict[str, Any]) -> str:
    """The command that makes this run: what differs from the defaults of Recipe."""
    usual = dataclasses.asdict(Recipe())
    words = [f"--{name.replace('_', '-')} {value}" for name, value in recipe.items() if value != usual[name]]
    return " ".join(["python -m training.train --work FOLDER", *words])


def losses(log: list[dict[str, Any]]) -> str:
    """About six points of the held-out loss, the last one among them."""
    stride = max(1, len(log) // 6)
    points = [entry for at, entry in enumerate(log) if (len(log) - 1 - at) % stride == 0]
    return ", ".join(f"{entry['held_out']:.4f} after {entry['step']} steps" for entry in points)


def judged(transcript: str) -> str:
    """The table at the head of newcomers.md."""
    return "\n".join(line for line in transcript.splitlines()[:8] if line.startswith("|"))


def figures(work: Path, engine: Engine, measured: dict[str, str]) -> dict[str, str]:
    """What stands between @ signs in card.md."""
    recipe = json.loads((work / "recipe.json").read_text(encoding="utf-8"))
    log = json.loads((work / "log.json").read_text(encoding="utf-8"))
    verdicts = [ask(engine, question) for question in questions() if question["part"] == "test"]
    (HERE / "transcript.md").write_text("\n".join(transcript(verdicts)), encoding="utf-8")
    ppl, bits = held_out_bits(engine)
    return {
        **measured,
        "LAYERS": str(recipe["layers"]),
        "HIDDEN": str(recipe["hidden"]),
        "HEADS": str(recipe["heads"]),
        "KV": str(recipe["kv_heads"]),
        "PARAMS": f"{engine.facts['num_parameters'] / 1e6:.2f} million",
        "VOCAB": f"{engine.facts['vocab_size']:,}",
        "SIZE": f"{(FOLDER / 'model.safetensors').stat().st_size / 1e6:.2f} MB",
        "CONTEXT": f"{engine.facts['max_position_embeddings']:,}",
        "TOTAL": f"{sum((FOLDER / name).stat().st_size for name in FILES) / 1e6:.2f} MB",
        "WHEEL": f"{sum(len(zlib.compress((FOLDER / name).read_bytes())) for name in FILES) / 1e6:.1f} MB",
        "DIALOGUES": f"{recipe['dialogues']:,}",
        "COMMAND": command(recipe),
        "STEPS": f"{recipe['steps']:,} steps of {recipe['batch_tokens']:,} tokens (padding included)",
        "LOSSES": losses(log),
        "TABLE": "\n".join(table(verdicts)),
        "NEWCOMERS": judged((HERE / "newcomers.md").read_text(encoding="utf-8")),
        "HELDOUT": f"perplexity {ppl:.3f} per token, {bits:.3f} bits per byte",
    }


def main() -> None:
    """Read the options and release."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--took", required=True, help="how long the training took, and on what, for the card")
    parser.add_argument("--speed", required=True, help="a sentence on its speed, for the card")
    parser.add_argument("--logits", required=True, help="the largest difference of logits from transformers'")
    given = parser.parse_args()
    export(given.work, FOLDER)
    measured = {"TOOK": given.took, "SPEED": given.speed, "LOGITS": given.logits}
    found = figures(given.work, Engine.load(FOLDER), measured)
    card = (HERE / "card.md").read_text(encoding="utf-8")
    text = re.sub(r"@([A-Z]+)@", lambda match: found[match[1]], card)
    (FOLDER / "MODEL_CARD.md").write_text(text, encoding="utf-8")
    print(found["TABLE"])


if __name__ == "__main__":
    main()
