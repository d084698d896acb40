"""Trained models, where they lie beside the checkout: exact ids and text, and each use end to end."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropechat import Engine, Sampling

pytestmark = pytest.mark.slow

MODELS = ("stories260K", "tinystories-656k")


@cache
def engine_of(directory: Path) -> Engine:
    return Engine.load(directory, dtype="f32")


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest, real: Path) -> tuple[Path, list[dict[str, Any]], Engine]:
    directory = real / request.param
    cases = json.loads((directory / "reference.json").read_text())["cases"]
    return directory / "hf", cases, engine_of(directory / "hf")


Given = tuple[Path, list[dict[str, Any]], Engine]


def story(text: str) -> str:
    """The reference decodes with special tokens in it; ours are silent."""
    return text.removeprefix("<|start_story|>").strip()


def test_prompts_become_the_same_ids(model: Given) -> None:
    _, cases, engine = model
    for case in cases:
        assert engine.tokenizer.encode(case["prompt"]) == case["prompt_ids"]


def test_logits_after_the_prompt(model: Given) -> None:
    _, cases, engine = model
    for case in cases:
        row = engine.logits(case["prompt_ids"])[-1].astype(np.float64)
        ids, expected = zip(*case["logits_after_prompt_top20"], strict=True)
        np.testing.assert_allclose(row[list(ids)], expected, rtol=0, atol=1e-3)
        assert np.argsort(-row, kind="stable")[:20].tolist() == list(ids)
        assert row.sum() == pytest.approx(case["logits_after_prompt_sum"], abs=1e-3 * len(row))
        assert np.linalg.norm(row) == pytest.approx(case["logits_after_prompt_l2"], abs=1e-2)


def test_greedy_story(model: Given) -> None:
    _, cases, engine = model
    for case in cases:
        expected = case["greedy_new_ids"]
        steps = list(engine.generate(case["prompt"], Sampling(temperature=0, max_tokens=len(expected))))
        assert [step.id for step in steps] == expected
        logprobs = [step.logprob for step in steps]
        np.testing.assert_allclose(logprobs, case["greedy_logprobs"], rtol=0, atol=1e-3)
        assert engine.tokenizer.decode(case["prompt_ids"] + expected).strip() == story(case["text"])
        text = "".join(step.text for step in steps)
        assert story(case["prompt"] + text) == story(case["text"])


def test_many_at_once_are_the_same_stories(model: Given) -> None:
    _, cases, engine = model
    results = dict(
        engine.generate_many([case["prompt"] for case in cases], Sampling(temperature=0, max_tokens=60))
    )
    assert sorted(results) == list(range(len(cases)))
    for index, case in enumerate(cases):
        assert list(results[index].ids) == case["greedy_new_ids"]


def test_gguf_files_are_the_same_model(model: Given) -> None:
    """F32 to the bit; F16 as the safetensors rounded to f16; the same story from both."""
    directory, cases, engine = model
    name = directory.parent.name
    rounded = Engine.load(directory, dtype="f16", kv_dtype="f32")
    for kind, twin in (("f32", engine), ("f16", rounded)):
        kv_dtype = twin.facts["kv_dtype"]
        file = Engine.load(directory.parent / "gguf" / f"{name}.{kind}.gguf", kv_dtype=kv_dtype)
        assert file.facts["dtype"] == kind
        for case in cases:
            ids = case["prompt_ids"] + case["greedy_new_ids"]
            apart = np.abs(file.logits(ids) - twin.logits(ids)).max()
            assert apart <= (0 if kind == "f32" else 1e-3)
            limit = Sampling(temperature=0, max_tokens=len(case["greedy_new_ids"]))
            assert [step.id for step in file.generate(case["prompt_ids"], limit)] == case["greedy_new_ids"]


def ropechat(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "import sys; from ropechat.cli import main; sys.exit(main())"]
    return subprocess.run(
        [*command, *map(str, arguments)], input=stdin, capture_output=True, text=True, encoding="utf-8"
    )


def test_run_prints_the_story(model: Given) -> None:
    directory, cases, _ = model
    done = ropechat("run", "-m", directory, "--temperature", "0", "--max-tokens", "60", cases[0]["prompt"])
    assert done.returncode == 0, done.stderr
    told = story(cases[0]["text"]).removeprefix(cases[0]["prompt"]).strip()
    assert told in done.stdout


def test_run_tells_the_same_story_from_a_gguf(model: Given) -> None:
    directory, cases, _ = model
    name = directory.parent.name
    files = [directory.parent / "gguf" / f"{name}.{kind}.gguf" for kind in ("f32", "f16")]
    greedy = ("--temperature", "0", "--max-tokens", "60", "--quiet", "--kv-dtype", "f32")
    told = [ropechat("run", "-m", path, *greedy, cases[0]["prompt"]) for path in (directory, *files)]
    assert [(done.returncode, done.stdout) for done in told] == [(0, told[0].stdout)] * 3
    assert len(told[0].stdout) > 40


def test_inspect_says_what_score_says(model: Given) -> None:
    directory, cases, engine = model
    done = ropechat(
        "inspect", "-m", directory, "--candidates", "5", "--format", "jsonl", stdin=cases[0]["text"]
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    tokens = [line for line in lines if "id" in line]  # the first line speaks about the model
    trace = engine.score(cases[0]["text"], top_k=5)
    assert [token["id"] for token in tokens] == [token.id for token in trace]
    assert tokens[0]["logprob"] is None
    found, expected = ([token["logprob"] for token in tokens[1:]], [token.logprob for token in trace][1:])
    np.testing.assert_allclose(found, np.array(expected, float), rtol=0, atol=1e-3)


def test_batch_of_200(model: Given, real: Path, tmp_path: Path) -> None:
    directory, _, engine = model
    source, target = real / "prompts/tinystories_prefixes_200.jsonl", tmp_path / "out.jsonl"
    rows = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    limits = ("--max-tokens", "12", "--temperature", "0")
    done = ropechat("batch", "-m", directory, source, "-o", target, *limits)
    assert done.returncode == 0, done.stderr
    assert "has ignored fields: gold_continuation" in done.stderr
    results = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
    assert [result["id"] for result in results] == [row["id"] for row in rows]
    for row, result in list(zip(rows, results, strict=True))[::20]:
        alone = engine.generate(row["prefix"], Sampling(temperature=0, max_tokens=12))
        assert result["text"] == "".join(step.text for step in alone)
