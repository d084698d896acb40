"""`ropechat api` with real clients: openai and its types, llm, lm-evaluation-harness, inspect_ai."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_server import Running

from ropechat.conversation import Message, Role
from ropechat.engine.engine import Engine
from ropechat.sampling import Sampling

pytestmark = [pytest.mark.extras, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
openai = pytest.importorskip("openai", reason="openai is not installed (make test-all)")
QUESTION = "What is RoPE?"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load("builtin") as made:
        yield made


@pytest.fixture(scope="module")
def running(engine: Engine) -> Iterator[Running]:
    made = Running(engine)
    yield made
    made.close()


@pytest.fixture(scope="module")
def url(running: Running) -> str:
    return "http://{}:{}/v1".format(*running.address)


def expected(engine: Engine, count: int) -> str:
    steps = engine.reply([Message(Role.USER, QUESTION)], Sampling(temperature=0, max_tokens=count))
    return "".join(step.text for step in steps)


def test_the_official_client_and_its_types(engine: Engine, url: str) -> None:
    from openai.types import Completion, Model
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    messages: Any = [{"role": "user", "content": QUESTION}]
    given: Any = {"model": "builtin", "temperature": 0, "max_tokens": 12}
    whole = client.chat.completions.create(messages=messages, logprobs=True, top_logprobs=2, n=2, **given)
    ChatCompletion.model_validate(whole.to_dict())
    assert [choice.message.content for choice in whole.choices] == [expected(engine, 12)] * 2
    assert whole.usage.completion_tokens == 24
    text, reason, usage = "", None, None
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(
        messages=messages, stream=True, stream_options=options, **given
    ):
        ChatCompletionChunk.model_validate(chunk.to_dict())
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
        usage = chunk.usage or usage
    assert (text, reason) == (expected(engine, 12), whole.choices[0].finish_reason)
    assert usage.total_tokens == whole.usage.prompt_tokens + 12
    Completion.model_validate(client.completions.create(prompt="A token is", logprobs=2, **given).to_dict())
    old = client.completions.create(prompt="A token is", echo=True, logprobs=2, **given)
    found = old.to_dict()
    for values in found["choices"][0]["logprobs"].values():
        values.pop(0)  # null, as OpenAI answers, which its types do not say
    Completion.model_validate(found)
    assert old.choices[0].text.startswith("A token is")
    chunks = list(client.completions.create(prompt="A token is", echo=True, stream=True, **given))
    Completion.model_validate(chunks[-1].to_dict())  # the others' finish_reason is null, as OpenAI answers
    assert "".join(chunk.choices[0].text for chunk in chunks) == old.choices[0].text
    for model in client.models.list():
        Model.model_validate(model.to_dict())
    with pytest.raises(openai.BadRequestError, match="tools: not supported") as caught:
        client.chat.completions.create(messages=messages, tools=[{"type": "function"}], **given)
    assert caught.value.param == "tools"
    with pytest.raises(openai.NotFoundError, match="gpt-4o"):
        client.chat.completions.create(messages=messages, model="gpt-4o")
    with pytest.raises(openai.BadRequestError, match="not offered"):
        client.embeddings.create(input="x", model="builtin")


def test_a_schema_of_pydantic(url: str) -> None:
    from pydantic import BaseModel

    class Token(BaseModel):
        length: int
        is_word: bool

    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    parsed = client.chat.completions.parse(
        model="builtin", messages=[{"role": "user", "content": "A token"}], response_format=Token, seed=1
    )
    assert isinstance(parsed.choices[0].message.parsed, Token)


def test_the_command_line_of_llm(
    engine: Engine, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- {{model_id: served, model_name: builtin, api_base: '{url}', api_key_name: served}}\n"
    )
    (tmp_path / "keys.json").write_text('{"served": "none"}')
    words = ["-m", "served", "-o", "temperature", "0", "-o", "max_tokens", "6", QUESTION]
    for streams in ([], ["--no-stream"]):
        done = subprocess.run([sys.executable, "-m", "llm", *words, *streams], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == expected(engine, 6).strip()


CHOICES = """task: served_choices
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{ context }}"
doc_to_choice: "{{ endings }}"
doc_to_target: label
target_delimiter: " "
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
ROWS: list[dict[str, Any]] = [
    {"context": "RoPE turns each query and", "endings": ["key", "banana", "sky"], "label": 0},
    {"context": "A token is a piece of", "endings": ["cake", "text"], "label": 1},
    {"context": "The cat sat on the", "endings": ["mat", "sun and the moon"], "label": 0},
]


@pytest.mark.parametrize("batch", [1, 4])
def test_loglikelihoods_of_the_harness(
    batch: int, engine: Engine, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`local-completions` gets the logprobs that the engine computes; the tokenizer is the server's."""
    pytest.importorskip("lm_eval", reason="lm_eval is not installed (make test-all)")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "choices.yaml").write_text(CHOICES.replace("FILE", str(rows)))
    model = f"model=builtin,base_url={url}/completions,num_concurrent=2,max_retries=1,max_length=512"
    words = ["--model", "local-completions", "--model_args", model, "--batch_size", str(batch)]
    words += ["--tasks", "served_choices", "--include_path", str(tmp_path), "--output_path", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "lm_eval", "run", *words, "--log_samples"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (samples,) = out.rglob("samples_*.jsonl")
    for row, line in zip(ROWS, samples.read_text().splitlines(), strict=True):
        scores = engine.rank(row["context"], [f" {ending}" for ending in row["endings"]])
        found = [(float(logprob), greedy == "True") for ((logprob, greedy),) in json.loads(line)["resps"]]
        assert found == [(pytest.approx(score.logprob, abs=1e-9), score.is_greedy) for score in scores]
        assert not any(math.isnan(logprob) for logprob, _ in found)


def test_inspect_ai_over_http(engine: Engine, url: str) -> None:
    pytest.importorskip("inspect_ai", reason="inspect_ai is not installed (make test-all)")
    source = (
        "import asyncio; from inspect_ai.model import GenerateConfig, get_model\n"
        "config = GenerateConfig(temperature=0, max_tokens=8, max_retries=0)\n"
        "model = get_model('openai-api/served/builtin')\n"
        f"print(asyncio.run(model.generate({QUESTION!r}, config=config)).completion)"
    )
    env = {**os.environ, "SERVED_BASE_URL": url, "SERVED_API_KEY": "none"}
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == expected(engine, 8).strip()
