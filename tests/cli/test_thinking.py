"""`run` and `batch` with a model that thinks: its answer, and its thought where it is asked for."""

import json
from pathlib import Path

import pytest
from cli_door import CompiledDoor, Door
from thinking_models import OPENED, THINK, thinking_model

from ropechat.cli.exit_codes import OK, SOME_FAILED


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Door:
    return CompiledDoor(monkeypatch, capfd)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return thinking_model(tmp_path / "thinker", OPENED, THINK)


def test_run_prints_the_answer(door: Door, model: Path) -> None:
    asked = ["run", "-m", model, "Who are you?", "--seed", 3, "--max-tokens", 6, "--think", 5]
    code, out, err = door(*asked, "--json")
    record = json.loads(out)
    assert code == OK
    thought, answer = record["reasoning"], record["text"]
    assert (
        len(record["reasoning_ids"])
        == len(record["reasoning_logprobs"])
        == record["usage"]["reasoning_tokens"]
    )
    assert len(record["ids"]) == len(record["logprobs"]) == 6
    assert record["usage"]["completion_tokens"] == 6 + record["usage"]["reasoning_tokens"]
    code, out, err = door(*asked)
    assert (code, out.strip()) == (OK, answer.strip())
    assert "of a thought)" in err
    code, out, err = door(*asked, "--fail-below", 1, "--json")
    assert code == 1
    assert sum(one["tokens"] for one in json.loads(out)["unsure"]) == 6  # those of the answer
    code, out, _ = door(*asked, "--show-thinking")
    assert out.index(thought.strip()) < out.index(answer.strip())
    code, out, _ = door(*asked[:-2], "--think", "off", "--json")
    assert "reasoning" not in json.loads(out)
    code, out, err = door(*asked[:-2], "--think", "some")
    assert (code, "--think" in err) == (2, True)
    code, out, err = door("run", "-m", model, "Hi", "--think", "low")
    assert "think: this model's chat template has no efforts" in err


def test_a_trace_has_all_tokens_and_says_which_were_forced(door: Door, model: Path, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    door("run", "-m", model, "Hi", "--seed", 3, "--max-tokens", 4, "--think", 0, "--trace", trace, "--quiet")
    assert trace.read_text().count('"name": "forced"') == 4  # "\n", the marker and two "\n"
    code, _, err = door("inspect", "--open", trace, "--replay")
    assert code == OK, err


def test_batch_keeps_the_thought_apart(door: Door, model: Path, tmp_path: Path) -> None:
    rows = tmp_path / "in.jsonl"
    lines = [
        {"id": "own", "prompt": "Who?", "think": False},
        {"id": "few", "prompt": "Who?", "thinking_budget": 3, "logprobs": True},
        {"id": "effort", "prompt": "Who?", "reasoning_effort": "low"},
        {"id": "none", "prompt": "Who?", "reasoning_effort": "none"},
        {
            "id": "before",
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b", "reasoning_content": "c"},
                {"role": "user", "content": "d"},
            ],
            "thinking_budget": 2,
        },
    ]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "out.jsonl"
    code, _, err = door("batch", rows, "-m", model, "--max-tokens", 4, "--seed", 1, "-o", out)
    assert code == SOME_FAILED, err
    found = {record["id"]: record for record in map(json.loads, out.read_text().splitlines())}
    assert not found["effort"]["ok"]
    assert "reasoning" not in found["own"]
    assert found["none"]["ok"]
    few = found["few"]
    assert few["usage"]["reasoning_tokens"] == len(few["reasoning_logprobs"])
    assert few["usage"]["completion_tokens"] == len(few["reasoning_logprobs"]) + len(few["logprobs"])
    assert "reasoning" in found["before"]
    code, _, _ = door("batch", rows, "-m", model, "--max-tokens", 4, "--seed", 1, "-o", tmp_path / "o.csv")
    assert (tmp_path / "o.csv").read_text().splitlines()[0].startswith("id,text")


def test_openai_lines(door: Door, model: Path, tmp_path: Path) -> None:
    rows = tmp_path / "in.jsonl"
    body = {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 3, "thinking_budget": 4}
    rows.write_text(
        json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body})
    )
    out = tmp_path / "out.jsonl"
    code, _, err = door("batch", rows, "-m", model, "-o", out, "--format", "openai")
    assert code == OK, err
    answered = json.loads(out.read_text())["response"]["body"]
    message = answered["choices"][0]["message"]
    assert set(message) == {"role", "content", "reasoning_content", "refusal"}
    assert answered["usage"]["completion_tokens_details"]["reasoning_tokens"] > 4
