"""A process that computes models with ropechat, so that a crash ends neither the run nor the reference.

Reads a folder per line (a golden case without greedy runs), answers with a line of JSON: outcome and reason.
"""

import json
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[1:1] = [str(TESTS.parent), str(TESTS / "support")]

import numpy as np  # noqa: E402
from golden_cases import PROMPTS  # noqa: E402
from reference import read_safetensors  # noqa: E402
from runs import reason_of  # noqa: E402

from ropechat.engine._core import CancelToken, Engine  # noqa: E402
from ropechat.errors import RopechatError  # noqa: E402

TOLERANCE = 2e-4
"""Of the largest logit of a prompt."""


def compute(folder: Path) -> dict[str, object]:
    golden = read_safetensors(folder / "golden.safetensors")
    try:
        engine = Engine.load(str(folder), dtype="f32", threads=1, context=256)
        worst = 0.0
        for prompt in (prompt for prompt in PROMPTS if f"logits.{prompt}" in golden):
            expected = golden[f"logits.{prompt}"]
            found = engine.logits(golden[f"input_ids.{prompt}"].tolist(), CancelToken())
            if found.shape != expected.shape:
                return {"outcome": "wrong", "reason": f"shape {found.shape}, {expected.shape} expected"}
            worst = max(worst, float(np.abs(found - expected).max() / max(1.0, np.abs(expected).max())))
    except RopechatError as error:
        return {"outcome": "refused", "reason": reason_of(error)}
    except Exception as error:
        return {"outcome": "crash", "reason": f"{type(error).__name__}: {error}"[:200]}
    outcome = "equal" if worst <= TOLERANCE else "wrong"
    return {"outcome": outcome, "reason": "" if outcome == "equal" else f"logits {worst:.2g} apart"}


for line in sys.stdin:
    print(json.dumps(compute(Path(line.strip()))), flush=True)
