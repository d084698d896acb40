"""RoPE, sinusoidal positions or none: `python -m training.compare_positions --work FOLDER`.

Trains the same small model three times on the same data from the same seed and draws the curves. The
question is that of J. Su et al., "RoFormer" (2021): does RoPE train faster?
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

from training.curves import curve_of, svg

NAMES = {"rope": "RoPE", "sinusoidal": "sinusoidal", "none": "no positions"}
SMALL = {
    "hidden": 128,
    "layers": 3,
    "heads": 4,
    "kv-heads": 4,
    "intermediate": 384,
    "batch-tokens": 2048,
    "check-every": 20,
    "held-out": 150,
}


def main() -> None:
    """Train what is missing; write positions.svg and positions.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--dialogues", type=int, default=8_000)
    given = parser.parse_args()
    sizes = {"steps": given.steps, "dialogues": given.dialogues}
    first = given.work / next(iter(NAMES))
    for positions in NAMES:
        work = given.work / positions
        work.mkdir(parents=True, exist_ok=True)
        for name in ("tokenizer.json", "tokenizer_config.json", "corpus.npz"):
            if work != first:
                shutil.copyfile(first / name, work / name)
        options = {**SMALL, "work": work, "positions": positions, **sizes}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "training.train", "--no-compile", *words]
        subprocess.run(command, check=True)
    curves = {name: curve_of(given.work / positions / "log.json") for positions, name in NAMES.items()}
    (given.work / "positions.svg").write_text(svg(curves), encoding="utf-8")
    (given.work / "positions.json").write_text(json.dumps(curves) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
