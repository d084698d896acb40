"""How far answers agree, beside NumPy."""

import json
import random
from typing import Any

import numpy as np
import pytest

from ropechat.engine.agreement import ABSENT, agreement_of, best_answer


def oracle(values: list[str]) -> tuple[float, float]:
    """(share of the most frequent value, entropy in nats)."""
    _, counts = np.unique(np.array(values), return_counts=True)
    shares = counts / counts.sum()
    return float(shares.max()), float(-(shares * np.log(shares)).sum())


def test_texts_agree_as_numpy_says() -> None:
    draw = random.Random(1)
    for _ in range(200):
        texts = draw.choices(["yes", "no", " no\n", "maybe", "é"], k=draw.randint(1, 12))
        found = agreement_of(texts)
        names = [text.strip() for text in texts]
        assert (found["share"], found["entropy"]) == pytest.approx(oracle(names), abs=1e-12)
        assert found["samples"] == len(texts)
        assert found["answers"] == {name: names.count(name) for name in names}
        assert list(found["answers"].values()) == sorted(found["answers"].values(), reverse=True)
        best = best_answer(texts)
        assert names.index(next(iter(found["answers"]))) == best


def test_fields_agree_as_numpy_says() -> None:
    draw = random.Random(2)
    for _ in range(100):
        values: list[dict[str, Any]] = [
            {"a": draw.choice([1, 2, "1", None]), "b": draw.choices([True, False], k=draw.randint(0, 2))}
            for _ in range(draw.randint(1, 9))
        ]
        texts = [json.dumps(value, indent=draw.choice([None, 1])) for value in values]
        found = agreement_of([*texts, "{cut"], is_json=True)
        assert found["samples"] == len(texts) + 1
        whole = [json.dumps(value) for value in values] + ["{cut"]
        assert (found["share"], found["entropy"]) == pytest.approx(oracle(whole), abs=1e-12)
        for name, field in found["fields"].items():
            at = None if name == "a" else int(name[2:-1])
            parts = [[value["a"]] if at is None else value["b"][at : at + 1] for value in values]
            said = [json.dumps(part[0]) if part else ABSENT for part in parts]
            assert (field["share"], field["entropy"]) == pytest.approx(oracle(said), abs=1e-12)
            assert field["values"] == {one: said.count(one) for one in said}


def test_one_answer_agrees_with_itself() -> None:
    assert agreement_of(["x"]) == {"share": 1.0, "entropy": 0.0, "samples": 1, "answers": {"x": 1}}
    assert str(agreement_of(["x"])["entropy"]) == "0.0"
    same = agreement_of(['{"a":1,"b":2}', '{ "b": 2, "a": 1 }'], is_json=True)
    assert (same["share"], list(same["answers"])) == (1.0, ['{"a":1,"b":2}'])
    assert best_answer(["b", "a", "a", "b"]) == 0
