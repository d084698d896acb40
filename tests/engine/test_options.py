"""Options of families beside transformers: the cases of tests/golden/options, made by `make_options.py`."""

from pathlib import Path

import numpy as np
import pytest
from golden_cases import GOLDEN
from reference import read_safetensors

from ropechat import Engine

CASES = sorted(path.parent for path in GOLDEN.glob("options/*/golden.safetensors"))


@pytest.mark.parametrize("directory", CASES, ids=lambda path: path.name)
def test_logits(directory: Path) -> None:
    golden = read_safetensors(directory / "golden.safetensors")
    engine = Engine.load(directory, dtype="f32")
    for prompt in ("p7", "p33"):
        want = golden[f"logits.{prompt}"]
        found = np.asarray(engine.logits(golden[f"input_ids.{prompt}"].tolist()))
        assert np.abs(found - want).max() <= 2e-4 * max(1.0, float(np.abs(want).max())), prompt
