"""Answers over HTTP: those of `run`, `batch` and Python, whole or as streams, with logprobs and usage."""

import io
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from asgi import Client
from cli_door import CompiledDoor
from thinking_models import thinking_model

from ropechat.batch.line import CHAT, COMPLETIONS, parse_request
from ropechat.batch.run import run_to_stream
from ropechat.batch.spec import BatchSpec, BatchWatcher
from ropechat.conversation import Message, Role
from ropechat.engine.agreement import agreement_of, best_answer
from ropechat.engine.engine import Engine
from ropechat.engine.spec import ModelSpec
from ropechat.sampling import Sampling

WORDS = ["What", "is", "a", "token", "RoPE", "rotary", "position", "why", "does", "the", "key", "turn"]


def requests(count: int, seed: int) -> list[tuple[str, dict[str, Any]]]:
    """Random requests of both endpoints with what both `batch` and the API understand."""
    rng = random.Random(seed)

    def text() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(1, 12)))

    made: list[tuple[str, dict[str, Any]]] = []
    for _ in range(count):
        body: dict[str, Any] = {"seed": rng.randrange(2**53), "max_tokens": rng.randint(1, 12)}
        if rng.random() < 0.7:
            body["temperature"] = rng.choice([0, 0.5, 1, 1.5])
        if rng.random() < 0.3:
            body["top_p"] = rng.choice([0.3, 0.9, 1])
        if rng.random() < 0.3:
            body["stop"] = rng.choice(["e", [" ", "k"], ["position"]])
        if rng.random() < 0.3:
            body |= {"presence_penalty": rng.uniform(-2, 2), "frequency_penalty": rng.uniform(-2, 2)}
        if rng.random() < 0.2:
            body["logit_bias"] = {str(rng.randrange(300)): rng.uniform(-100, 5)}
        if rng.random() < 0.5:
            if rng.random() < 0.4:
                body |= {"echo": True, "max_tokens": rng.randint(0, 3)}
            if rng.random() < 0.4:
                body["logprobs"] = rng.randint(0, 3)
            made.append((COMPLETIONS, {"prompt": text(), **body}))
            continue
        messages = [{"role": "user", "content": text()}]
        if rng.random() < 0.3:
            messages = [{"role": "system", "content": text()}, *messages]
        if rng.random() < 0.2:
            messages += [{"role": "assistant", "content": text()}, {"role": "user", "content": text()}]
        if rng.random() < 0.15:
            body["response_format"] = rng.choice(
                [
                    {"type": "json_object"},
                    {"type": "json_schema", "json_schema": {"schema": {"type": "integer"}}},
                ]
            )
        made.append((CHAT, {"messages": messages, **body}))
    return made


class _Loaded(BatchWatcher):
    """A batch with an engine that is loaded."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def load(self, model: ModelSpec, sampling: Sampling) -> Engine:
        return self._engine


def of_batch(engine: Engine, asked: list[tuple[str, dict[str, Any]]], form: str = "openai") -> list[Any]:
    """The results of a batch: bodies in OpenAI's form, or records."""
    lines = [
        json.dumps({"custom_id": str(n), "method": "POST", "url": path, "body": body}) + "\n"
        for n, (path, body) in enumerate(asked)
    ]
    written: list[str] = []
    source = io.BytesIO("".join(lines).encode())
    spec = BatchSpec(source, input_format="openai", unset=frozenset(Sampling.__dataclass_fields__))
    run_to_stream(spec, written.append, form, watcher=_Loaded(engine))
    found = [json.loads(line) for line in "".join(written).splitlines()]
    return [one["response"]["body"] for one in found] if form == "openai" else found


def by_itself(body: dict[str, Any]) -> dict[str, Any]:
    """What a response says of the answers; ids, times, seeds and what was cached differ."""
    choices = [{name: one for name, one in choice.items() if name != "seed"} for choice in body["choices"]]
    usage = {name: body["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    return {"choices": choices, "object": body["object"], "usage": usage}


def of_python(engine: Engine, path: str, body: dict[str, Any]) -> str:
    """The text of `Engine.reply` or `Engine.generate`."""
    request = parse_request({"custom_id": "x", "url": path, "body": body})
    if not request.answers:
        return body["prompt"]  # type: ignore[no-any-return]
    sampling = engine.sampling(**request.sampling)
    if path == CHAT:
        messages = [part for part in request.content if isinstance(part, Message)]
        return "".join(step.text for step in engine.reply(messages, sampling, stop=request.stop))
    steps = engine.generate(body["prompt"], sampling, stop=request.stop)
    return body["prompt"] * request.echo + "".join(step.text for step in steps)


def of_run(door: CompiledDoor, path: str, body: dict[str, Any]) -> str | None:
    """The text of `ropechat run`; None where it has no option for something that is asked for."""
    fields = {name: value for name, value in body.items() if name not in ("logprobs", "prompt", "messages")}
    prompt, options = body.get("prompt", ""), ["--raw"]
    if path == CHAT:
        *system, last = body["messages"]
        prompt, options = last["content"], [word for one in system for word in ("--system", one["content"])]
        if any(one["role"] != "system" for one in system):
            return None
    form = fields.pop("response_format", {"type": "text"})
    if form["type"] == "json_schema":
        options += ["--json-schema", json.dumps(form["json_schema"]["schema"])]
    if form["type"] == "json_object" or fields.keys() & {"stop", "echo"}:
        return None
    for id, bias in fields.pop("logit_bias", {}).items():
        options += ["--logit-bias", f"{id}={bias}"]
    options += [word for name, value in fields.items() for word in (f"--{name.replace('_', '-')}", value)]
    code, out, err = door("run", "-m", "builtin", "--json", "--quiet", *options, prompt)
    assert code == 0, err
    text: str = json.loads(out)["text"]
    return text


async def compare_with_batch(engine: Engine, client: Client, asked: list[tuple[str, dict[str, Any]]]) -> None:
    expected = of_batch(engine, asked)
    for (path, body), record in zip(asked, expected, strict=True):
        response = await client.ask(path, body)
        assert response.status == 200, response.body
        assert by_itself(response.json) == by_itself(record), body
        choice = response.json["choices"][0]
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        assert text == of_python(engine, path, body), body


@pytest.mark.slow
async def test_the_answers_of_a_batch(engine: Engine, client: Client) -> None:
    await compare_with_batch(engine, client, requests(30, 1))


@pytest.mark.trust
@pytest.mark.timeout(1800)
async def test_the_answers_of_long_batches_and_of_run(
    engine: Engine, client: Client, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = requests(200, 2)
    await compare_with_batch(engine, client, asked)
    door, compared = CompiledDoor(monkeypatch, capfd), 0
    for path, body in asked:
        text = of_run(door, path, body)
        if text is not None:
            choice = (await client.ask(path, body)).json["choices"][0]
            assert text == (choice["message"]["content"] if path == CHAT else choice["text"]), body
            compared += 1
    assert compared > 60


async def test_the_answer_of_run_and_of_python(
    engine: Engine, client: Client, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    door = CompiledDoor(monkeypatch, capfd)
    given = {"temperature": 1.5, "seed": 11, "max_tokens": 16}
    options = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    _, out, _ = door("run", "-m", "builtin", "--json", *options, "What is a token?")
    message = Message(Role.USER, "What is a token?")
    steps = list(engine.reply([message], engine.sampling(**given)))
    body = {"messages": [{"role": "user", "content": message.content}], **given}
    whole = (await client.ask(CHAT, body)).json["choices"][0]
    text = "".join(step.text for step in steps)
    assert (whole["message"]["content"], whole["seed"]) == (text, 11)
    assert (json.loads(out)["text"], json.loads(out)["finish_reason"]) == (text, whole["finish_reason"])


def joined(events: list[Any], number: int = 0) -> tuple[str, str | None, list[Any]]:
    """Text, finish_reason and logprobs of a choice of a stream."""
    text, reason, logprobs = "", None, list[Any]()
    for event in events:
        for choice in event["choices"]:
            if choice["index"] == number:
                text += choice["text"] if "text" in choice else choice["delta"].get("content", "")
                reason = choice["finish_reason"] or reason
                logprobs += [choice["logprobs"]] if choice["logprobs"] else []
    return text, reason, logprobs


async def test_a_stream_says_what_the_whole_response_says(client: Client) -> None:
    for path, body in requests(12, 3):
        body["n"] = 2
        body["logprobs"] = True if path == CHAT else 2
        whole = (await client.ask(path, body)).json
        response = await client.ask(path, {**body, "stream": True, "stream_options": {"include_usage": True}})
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.body.endswith(b"data: [DONE]\n\n")
        *events, last = response.events
        assert last["choices"] == []
        assert by_itself(last | {"choices": []})["usage"] == by_itself(whole)["usage"]
        for number, choice in enumerate(whole["choices"]):
            text, reason, logprobs = joined(events, number)
            assert reason == choice["finish_reason"]
            if path == CHAT:
                assert text == choice["message"]["content"]
                tokens = [token for one in logprobs for token in one["content"]]
                assert tokens == choice["logprobs"]["content"]
            else:
                assert text == choice["text"]
                for name, values in choice["logprobs"].items():
                    assert [value for one in logprobs for value in one[name]] == values


async def test_samples_have_seeds_that_repeat_them(engine: Engine, client: Client) -> None:
    body = {"prompt": "A token", "n": 3, "temperature": 2, "max_tokens": 8, "seed": 5}
    whole = (await client.ask(COMPLETIONS, body)).json
    choices, usage = whole["choices"], whole["usage"]
    assert usage["prompt_tokens"] == len(engine.tokenizer.encode("A token"))  # once, not for each sample
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert len({choice["text"] for choice in choices}) > 1
    assert choices[0]["seed"] == 5
    for choice in choices:
        again = await client.ask(COMPLETIONS, {**body, "n": 1, "seed": choice["seed"]})
        assert again.json["choices"][0]["text"] == choice["text"]
    unseeded = await client.ask(COMPLETIONS, {**body, "n": 1, "seed": None})
    seed = unseeded.json["choices"][0]["seed"]
    again = await client.ask(COMPLETIONS, {**body, "n": 1, "seed": seed})
    assert again.json["choices"][0]["text"] == unseeded.json["choices"][0]["text"]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_logprobs_of_a_given_text_are_those_of_inspect(
    stream: bool, engine: Engine, client: Client
) -> None:
    prompts: list[str] = ["The position of a tokén 🙂 turns", "RoPE"]
    body = {
        "prompt": prompts,
        "echo": True,
        "logprobs": 3,
        "max_tokens": 2,
        "temperature": 0,
        "stream": stream,
    }
    response = await client.ask(COMPLETIONS, body)
    for number, prompt in enumerate(prompts):
        scores = engine.score(prompt, top_k=3).tokens
        if stream:
            text, _, parts = joined(response.events, number)
            found = {name: [one for part in parts for one in part[name]] for name in parts[0]}
        else:
            choice = response.json["choices"][number]
            text, found = choice["text"], choice["logprobs"]
        assert text.startswith(prompt)
        count = len(scores)
        assert len(found["tokens"]) == count + 2
        assert found["token_logprobs"][:count] == [token.logprob for token in scores]
        assert found["tokens"][:count] == [token.text for token in scores]
        assert found["top_logprobs"][0] is None
        for token, tops in zip(scores[1:], found["top_logprobs"][1:count], strict=True):
            assert token.row is not None
            assert sorted(tops.values()) == sorted(
                {engine.token_bytes(id): value for id, value in token.row.top}.values()
            )
        assert found["text_offset"][0] == 0
        made = engine.score([*(token.id for token in scores), *_ids_after(engine, prompt)], top_k=0).tokens[
            count:
        ]
        assert found["token_logprobs"][count:] == [token.logprob for token in made]


def _ids_after(engine: Engine, prompt: str) -> list[int]:
    return [step.id for step in engine.generate(prompt, Sampling(temperature=0, max_tokens=2))]


async def test_prompt_logprobs_without_an_answer(engine: Engine, client: Client) -> None:
    ids = engine.tokenizer.encode("The key turns")
    body = {"prompt": [ids, ids[:1]], "prompt_logprobs": 2, "max_tokens": 0}
    response = (await client.ask(COMPLETIONS, body)).json
    first, second = response["choices"]
    assert (first["text"], first["finish_reason"], second["prompt_logprobs"]) == ("", "length", [None])
    scores = engine.score(ids, top_k=2).tokens
    for token, found in zip(scores[1:], first["prompt_logprobs"][1:], strict=True):
        assert found[str(token.id)]["logprob"] == token.logprob
        assert found[str(token.id)]["rank"] == token.rank
        assert len(found) in (2, 3)
    assert response["usage"]["completion_tokens"] == 0
    chat = {"messages": [{"role": "user", "content": "x"}], "prompt_logprobs": 0, "max_tokens": 1}
    found = (await client.ask(CHAT, chat)).json["prompt_logprobs"]
    expected = engine.score(engine.prompt_ids([Message(Role.USER, "x")]), top_k=0).tokens
    assert [one and next(iter(one.values()))["logprob"] for one in found] == [one.logprob for one in expected]


async def test_how_sure_an_answer_is(engine: Engine, client: Client) -> None:
    messages = [{"role": "user", "content": "Is a token a word?"}]
    schema = {"type": "object", "properties": {"word": {"type": "boolean"}}, "required": ["word"]}
    of_schema = {"json_schema": {"schema": {**schema, "additionalProperties": False}}, "type": "json_schema"}
    common = {"messages": messages, "seed": 1, "fail_below": 1, "max_tokens": 20}
    asked: list[tuple[str, dict[str, Any]]] = [
        (CHAT, {**common, "structured_outputs": {"choice": ["Yes", "No"]}}),
        (CHAT, {**common, "response_format": of_schema}),
        (CHAT, common),
    ]
    own = (*("choices", "confidence", "allowed", "fields"), "unsure", "seed")
    for (path, body), record in zip(asked, of_batch(engine, asked, "jsonl"), strict=True):
        (choice,) = (await client.ask(path, body)).json["choices"]
        sure = {name: record[name] for name in own if name in record}
        assert record["error"]["class"] == "UnsureError"
        assert ("confidence" in sure) == (body is not common)
        assert {name: choice[name] for name in own if name in choice} == sure
        last = (await client.ask(path, {**body, "stream": True})).events[-1]["choices"][0]
        assert {name: last[name] for name in own if name in last} == sure
        (choice,) = (await client.ask(path, {**body, "fail_below": 0})).json["choices"]
        assert choice["unsure"] == []


async def test_how_far_samples_agree(client: Client) -> None:
    body = {
        "messages": [{"role": "user", "content": "Is a token a word?"}],
        **{"n": 5, "agree": True, "seed": 1, "temperature": 1.5},
        "structured_outputs": {"choice": ["Yes", "No"]},
    }
    found = (await client.ask(CHAT, body)).json
    texts = [choice["message"]["content"] for choice in found["choices"]]
    expected = {**agreement_of(texts), "best": best_answer(texts)}
    assert found["agreement"] == expected
    events = (await client.ask(CHAT, {**body, "stream": True})).events
    assert (events[-1]["choices"], events[-1]["agreement"]) == ([], expected)


async def test_a_long_prompt_is_cut(engine: Engine, client: Client) -> None:
    text = "Why does RoPE turn each key? " * 20
    common = {"seed": 1, "max_tokens": 3, "truncate_prompt_tokens": 40}
    asked: list[tuple[str, dict[str, Any]]] = [
        (CHAT, {"messages": [{"role": "user", "content": text}], **common}),
        (COMPLETIONS, {"prompt": text, **common}),
        (COMPLETIONS, {"prompt": engine.tokenizer.encode(text), **common}),
        (COMPLETIONS, {"prompt": text * 40, **common, "truncate_prompt_tokens": -1}),
    ]
    for (path, body), expected in zip(asked, of_batch(engine, asked), strict=True):
        found = (await client.ask(path, body)).json
        assert by_itself(found) == by_itself(expected)
        assert found["choices"][0]["truncated"] > 0
        assert found["usage"]["prompt_tokens"] <= (
            40 if body["truncate_prompt_tokens"] > 0 else engine.context
        )
    last = {"prompt": engine.tokenizer.encode(text)[-40:], "seed": 1, "max_tokens": 3}
    cut = (await client.ask(*asked[2])).json["choices"][0]["text"]
    assert (await client.ask(COMPLETIONS, last)).json["choices"][0]["text"] == cut
    scored = {**asked[2][1], "prompt_logprobs": 0}
    assert len((await client.ask(COMPLETIONS, scored)).json["choices"][0]["prompt_logprobs"]) == 40


async def test_a_shared_prefix_is_cached(client: Client) -> None:
    body = {"messages": [{"role": "user", "content": "What is a token? " * 8}], "max_tokens": 1}
    await client.ask(CHAT, body)
    usage = (await client.ask(CHAT, body)).json["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert usage["prompt_tokens"] > cached >= usage["prompt_tokens"] - 33


async def test_a_thought_is_reasoning_content(served: Callable[..., Client], tmp_path: Any) -> None:
    with Engine.load(thinking_model(tmp_path / "model", tokens=("<think>", "</think>"))) as thinking:
        client = served(thinking)
        think, end = (thinking.tokenizer.id_of(name) for name in ("<think>", "</think>"))
        messages = [{"role": "user", "content": "Why?"}]
        body = {"messages": messages, "seed": 1, "max_tokens": 4, "thinking_budget": 5}
        body["logit_bias"] = {str(think): 30, str(end): -100}
        whole = (await client.ask(CHAT, body)).json
        events = (await client.ask(CHAT, {**body, "stream": True})).events
        message = whole["choices"][0]["message"]
        assert message["reasoning_content"]
        deltas = [event["choices"][0]["delta"] for event in events]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == message["reasoning_content"]
        assert "".join(delta.get("content", "") for delta in deltas) == message["content"]
        assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] >= 5
        off = (await client.ask(CHAT, {**body, "reasoning_effort": "none"})).json
        assert "reasoning_content" not in off["choices"][0]["message"]


async def test_models_tokens_and_metrics(engine: Engine, served: Callable[..., Client]) -> None:
    lines: list[str] = []
    client = served(log=lines.append, aliases=("gpt-4o",))
    listed = (await client.get("/v1/models")).json["data"]
    assert [model["id"] for model in listed] == ["builtin", "gpt-4o"]
    assert (await client.get("/v1/models/gpt-4o")).json["id"] == "gpt-4o"
    assert (await client.get("/v1/models/gpt-3")).status == 404
    for model in ("builtin", "gpt-4o"):
        assert (
            await client.ask(COMPLETIONS, {"model": model, "prompt": "Hidden text", "max_tokens": 1})
        ).status == 200
    text = "Why does RoPE turn?"
    found = (await client.ask("/tokenize", {"prompt": text, "return_token_strs": True})).json
    assert found["tokens"] == engine.tokenizer.encode(text)
    assert "".join(found["token_strs"]) == text
    messages = [{"role": "user", "content": text}]
    ids = (await client.ask("/tokenize", {"messages": messages})).json["tokens"]
    assert ids == engine.prompt_ids([Message(Role.USER, text)])
    assert (await client.ask("/detokenize", {"tokens": found["tokens"]})).json == {"prompt": text}
    assert (await client.get("/health")).json == {"status": "ok"}
    metrics = (await client.get("/metrics")).body.decode()
    assert 'ropechat_requests_total{path="/v1/completions",status="200"} 2' in metrics
    assert "ropechat_completion_tokens_total 2" in metrics
    assert len(lines) == 9  # /health says nothing
    assert not any("Hidden" in line or "RoPE" in line for line in lines)
