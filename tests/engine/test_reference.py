"""The oracle against the goldens of transformers; no engine is involved."""

from pathlib import Path

import numpy as np
import pytest
from golden_cases import LLAMA_CASES, PROMPTS, Golden
from reference import Model, forward, probabilities, softmax


@pytest.fixture(scope="module", params=LLAMA_CASES, ids=lambda path: path.name)
def case(request: pytest.FixtureRequest) -> tuple[Model, Golden]:
    directory: Path = request.param
    return Model.load(directory), Golden.read(directory)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_logits(case: tuple[Model, Golden], prompt: str) -> None:
    model, golden = case
    golden.check(forward(golden.ids(prompt), model).T, f"logits.{prompt}")


def test_residual_stream(case: tuple[Model, Golden]) -> None:
    model, golden = case
    hidden: list[np.ndarray] = []
    forward(golden.ids("p7"), model, hidden)
    golden.check(np.stack(hidden).transpose(0, 2, 1), "debug.hidden.p7")


def test_probabilities(case: tuple[Model, Golden]) -> None:
    model, golden = case
    x = golden.ids("p7")
    P = probabilities(x, model)
    assert P.shape == (model.config["vocab_size"], len(x))
    assert (P > 0).all()
    assert (P < 1).all()
    np.testing.assert_allclose(P.sum(axis=0), 1, rtol=1e-12)
    golden.check(np.log(P).T, "logprobs.p7")


def test_greedy(case: tuple[Model, Golden]) -> None:
    """Every step recomputes the whole sequence: the definition that a cache has to reproduce."""
    model, golden = case
    for name, prompt in golden.greedy_runs():
        ids = list(prompt)
        for step, expected in enumerate(golden.tensors[f"{name}.output_ids"]):
            row = forward(ids, model)[:, -1]
            golden.check(row, f"{name}.logits", step)
            assert int(row.argmax()) == expected
            ids.append(int(expected))


def test_a_wrong_rotation_shows() -> None:
    """The check can fail: half a percent on the base of one case is far outside its tolerance."""
    model, golden = Model.load(LLAMA_CASES[0]), Golden.read(LLAMA_CASES[0])
    bent = Model(model.config | {"rope_theta": 10050.0}, model.theta)
    with pytest.raises(AssertionError, match="outside"):
        golden.check(forward(golden.ids("p33"), bent).T, "logits.p33")


def test_softmax_survives_large_logits() -> None:
    assert softmax(np.array([1e4, 1e4, -1e4]), axis=0).tolist() == [0.5, 0.5, 0.0]
