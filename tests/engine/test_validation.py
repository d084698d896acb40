"""Settings and options from a caller's own numbers."""

from typing import Any

import numpy as np
import pytest

from ropechat import Engine, RopechatError, Sampling


def test_sampling_takes_numbers_of_numpy() -> None:
    made = Sampling(
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        top_k=np.int32(3),  # type: ignore[arg-type]
        seed=np.uint64(2**64 - 1),  # type: ignore[arg-type]
        logit_bias=((np.int64(7), np.float32(1.5)),),  # type: ignore[arg-type]
    )
    assert made == Sampling(temperature=0.5, top_k=3, seed=2**64 - 1, logit_bias=((7, 1.5),))
    assert [type(made.temperature), type(made.top_k), type(made.seed)] == [float, int, int]
    assert list(map(type, made.logit_bias[0])) == [int, float]


@pytest.mark.parametrize(
    "wrong", [{"seed": np.float64(1)}, {"top_k": np.bool_(True)}, {"temperature": np.float32("nan")}]
)
def test_numbers_of_numpy_have_the_same_limits(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}: must be"):
        Sampling(**wrong)


@pytest.mark.parametrize("wrong", [{"threads": "2"}, {"context": -1}, {"prefix_bytes": 1.5}])
def test_sizes_of_a_load_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(RopechatError, match=f"{next(iter(wrong))}: must be a positive integer"):
        Engine.load("builtin", **wrong)
