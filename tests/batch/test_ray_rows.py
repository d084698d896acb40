"""`Answer` of the Ray adapter on blocks of rows, without Ray."""

from typing import Any

import numpy as np

from ropechat.adapters.ray import Answer

SAMPLING = {"temperature": 1.0, "max_tokens": 4}


def block(prompts: list[str], **columns: list[Any]) -> dict[str, Any]:
    return {"prompt": np.array(prompts), **{name: np.array(values) for name, values in columns.items()}}


def test_rows_without_an_id_have_seeds_of_their_own_in_every_block() -> None:
    answer = Answer(sampling=SAMPLING, threads=1)
    prompts = ["One", "Two", "Three", "Four"]
    whole = answer(block(prompts))
    parts = [answer(block(prompts[:2])), answer(block(prompts[:1:-1]))]
    seeds = dict(zip(prompts, whole["row_seed"], strict=True))
    assert len({*seeds.values()}) == 4
    for part in parts:
        found = dict(zip(part["prompt"], zip(part["row_seed"], part["text"], strict=True), strict=True))
        texts = dict(zip(prompts, whole["text"], strict=True))
        assert found == {prompt: (seeds[prompt], texts[prompt]) for prompt in found}


def test_an_id_goes_before_the_content() -> None:
    rows = [Answer._row(0, block(["x"], id=["a"])), Answer._row(0, block(["y"], id=["a"]))]
    rows.append(Answer._row(0, block(["z"], custom_id=["a"])))
    assert [row.id for row in rows] == ["a"] * 3
    failed = [Answer._row(0, block([text], max_tokens=[-1])).id for text in "xxy"]
    assert failed[0] == failed[1] != failed[2]
