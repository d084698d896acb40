"""The engine in f32 against what transformers computes: every golden case on every instruction set."""

from pathlib import Path

import numpy as np
import pytest
from core import add, drain, load, logits, logits_of
from golden_cases import CASES, Golden

from ropechat import Engine, Sampling

LONGEST = 256  # tokens; the long prompts exceed the trained length of some cases on purpose


@pytest.fixture(params=CASES, ids=lambda path: path.name)
def directory(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_logits(directory: Path, isa: str) -> None:
    golden, engine = Golden.read(directory), load(directory, context=LONGEST, threads=2)
    for prompt in golden.prompts:
        golden.check(logits(engine, golden.ids(prompt)), f"logits.{prompt}")


@pytest.mark.slow
def test_greedy(directory: Path, isa: str) -> None:
    """Prefill, then a cache: the same ids and the same logits as full recomputation at every step."""
    golden, engine = Golden.read(directory), load(directory, context=LONGEST)
    for name, prompt in golden.greedy_runs():
        expected = golden.tensors[f"{name}.output_ids"].tolist()
        sequence = add(engine, prompt, max_tokens=len(expected))
        events = [event for event in drain(engine, [sequence]) if event.kind == "token"]
        if f"{name}.logits" in golden.tensors:
            golden.check(np.stack([logits_of(event.row) for event in events]), f"{name}.logits")
        assert [event.id for event in events] == expected


@pytest.mark.slow
def test_scores(directory: Path) -> None:
    """Through the Python API: each token's logprob and rank, and the whole row behind it."""
    golden = Golden.read(directory)
    expected, ids = golden.tensors["logprobs.p7"], golden.ids("p7")
    engine = Engine.load(directory, dtype="f32", context=LONGEST)
    trace = engine.score(ids, top_k=expected.shape[1])
    assert [token.id for token in trace] == ids
    first, *rest = trace
    assert (first.logprob, first.rank, first.entropy, first.row) == (None, None, None, None)
    found = np.full_like(expected, np.nan)
    for t, row in enumerate([*(token.row for token in rest), trace.next]):
        assert row is not None
        for id, logprob in row.top:
            found[t, id] = logprob
    golden.check(found, "logprobs.p7")
    for t, token in enumerate(rest):
        assert token.logprob == pytest.approx(expected[t, token.id], abs=golden.atol)
        assert token.rank == 1 + int((expected[t] > expected[t, token.id]).sum())
        entropy = -(np.exp(expected[t]) * expected[t]).sum()
        assert token.entropy == pytest.approx(entropy, abs=1e-3)
        varentropy = (np.exp(expected[t]) * (expected[t] + entropy) ** 2).sum()
        assert token.row.varentropy == pytest.approx(varentropy, abs=1e-2)


@pytest.mark.slow
def test_python_api(directory: Path) -> None:
    """logits, probabilities and a greedy generation of `ropechat.Engine` (which does stop at an EOS)."""
    golden = Golden.read(directory)
    engine = Engine.load(directory, dtype="f32", context=LONGEST)
    ids = golden.ids("p33")
    golden.check(engine.logits(ids), "logits.p33")
    P = engine.probabilities(ids)
    assert P.dtype == np.float32
    assert P.shape == golden.tensors["logits.p33"].shape
    np.testing.assert_allclose(P.sum(axis=1), 1, atol=1e-5)
    prompt = golden.tensors["greedy.prompt_ids"].tolist()
    expected = golden.tensors["greedy.output_ids"].tolist()
    steps = list(engine.generate(prompt, Sampling(temperature=0, max_tokens=len(expected))))
    stops = [i for i, id in enumerate(expected) if id in engine.stop_ids]
    expected = expected[: stops[0] + 1] if stops else expected
    assert [step.id for step in steps] == expected
    assert steps[-1].finish_reason == ("stop" if stops else "length")
