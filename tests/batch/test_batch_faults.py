"""A few of the faults of tests/support/batch_faults.py, with the built-in model."""

import json
import random
from pathlib import Path

import pytest
from batch_faults import BAD, Faults
from repeats import repeats


@pytest.mark.slow
@repeats(1, 1000)
@pytest.mark.parametrize("what", ["kill", "full"])
def test_a_run_survives(count: int, what: str, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    faults = Faults(tmp_path, random.Random(seed))
    getattr(faults, what)(count)
    assert {name: faults.found[name] for name in BAD} == dict.fromkeys(BAD, 0), f"seed {seed}"
    assert faults.found["resumes to the end"] >= 1


@pytest.mark.slow
@repeats(2, 1000)
def test_a_killed_run_of_a_model_that_thinks_goes_on(count: int, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    faults = Faults(tmp_path, random.Random(seed), thinks=True)
    for record in map(json.loads, faults.plain.splitlines()):
        thought, usage = record["reasoning_logprobs"], record["usage"]
        assert len(thought) == usage["reasoning_tokens"]
        assert len(thought) + len(record["logprobs"]) == usage["completion_tokens"]
    faults.kill(count)
    assert {name: faults.found[name] for name in BAD} == dict.fromkeys(BAD, 0), f"seed {seed}"
    assert faults.found["resumes to the end"] >= 1
