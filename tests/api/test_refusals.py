"""What a server refuses: fields by their names, strangers, what is too large, too slow or too much."""

import asyncio
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asgi import JSON, Client

from ropechat.api.spec import Limits
from ropechat.batch.line import CHAT, COMPLETIONS
from ropechat.engine.engine import Engine

MESSAGES = [{"role": "user", "content": "x"}]
KEY = "correct-horse-battery"


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (CHAT, {}, "messages: missing"),
        (COMPLETIONS, {}, "prompt: missing"),
        (CHAT, {"messages": []}, "messages: must be a non-empty list"),
        (
            CHAT,
            {"messages": MESSAGES, "temprature": 1},
            "temprature: unknown field; did you mean temperature?",
        ),
        (CHAT, {"messages": MESSAGES, "tools": [{}]}, "tools: not supported"),
        (CHAT, {"messages": MESSAGES, "tool_choice": "required"}, "tool_choice: not supported"),
        (CHAT, {"messages": MESSAGES, "store": True}, "store: not supported"),
        (CHAT, {"messages": MESSAGES, "echo": True}, "echo: not a field of /v1/chat/completions"),
        (CHAT, {"messages": [{**MESSAGES[0], "name": "Ann"}]}, "messages[].name: not supported"),
        (CHAT, {"messages": MESSAGES, "top_logprobs": 3}, "top_logprobs: requires logprobs"),
        (CHAT, {"messages": MESSAGES, "stream": 1}, "stream: must be true or false"),
        (CHAT, {"messages": MESSAGES, "stream_options": {}}, "stream_options: requires stream"),
        (CHAT, {"messages": MESSAGES, "n": 129}, "n: must be an integer from 1 to 128"),
        (CHAT, {"messages": MESSAGES, "temperature": -1}, "temperature: must be a number"),
        (CHAT, {"messages": MESSAGES, "max_tokens": 0}, "max_tokens: must be an integer from 1"),
        (CHAT, {"messages": MESSAGES, "prompt_logprobs": 21}, "prompt_logprobs: must be an integer"),
        (CHAT, {"messages": MESSAGES, "response_format": {"type": "xml"}}, "response_format.type: must be"),
        (CHAT, {"messages": MESSAGES, "agree": True}, "agree: requires n of at least 2"),
        (CHAT, {"messages": MESSAGES, "fail_below": 2}, "fail_below: must be a number from 0 to 1"),
        (CHAT, {"messages": MESSAGES, "truncate_prompt_tokens": 0}, "must be a positive integer, or -1"),
        (CHAT, {"messages": MESSAGES, "truncate_prompt_tokens": 2}, "truncate_prompt_tokens: must be more"),
        (COMPLETIONS, {"prompt": "x", "echo": True, "truncate_prompt_tokens": 2}, "together with echo"),
        (COMPLETIONS, {"prompt": []}, "prompt: must be a string"),
        (COMPLETIONS, {"prompt": ["x"] * 65, "n": 2}, "n: prompts times n must be at most 128"),
        (COMPLETIONS, {"prompt": [10**9]}, "id"),
        (COMPLETIONS, {"prompt": "x", "suffix": "y"}, "suffix: not supported"),
        ("/tokenize", {"prompt": "x", "extra": 1}, "extra: unknown field"),
        ("/detokenize", {"tokens": [-1]}, "tokens: must be ids"),
    ],
)
async def test_a_field_is_refused_by_its_name(
    path: str, body: dict[str, Any], message: str, client: Client
) -> None:
    response = await client.ask(path, body)
    assert response.status == 400
    error = response.json["error"]
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"


async def test_what_means_nothing_is_accepted(client: Client) -> None:
    answer = {"role": "assistant", "content": "y", "refusal": None, "tool_calls": [], "annotations": []}
    body = {
        "messages": [*MESSAGES, answer, *MESSAGES],
        "max_completion_tokens": 1,
        **{"user": "u", "metadata": {"a": "b"}, "store": False, "tool_choice": "none", "tools": []},
        **{"service_tier": "auto", "best_of": 1, "top_logprobs": None},
    }
    assert (await client.ask(CHAT, body)).status == 200


async def test_a_prompt_above_the_context(client: Client, engine: Engine) -> None:
    response = await client.ask(COMPLETIONS, {"prompt": [5] * (engine.context + 1), "stream": True})
    assert response.status == 400
    assert response.json["error"]["code"] == "context_length_exceeded"


async def test_paths_methods_and_models(client: Client) -> None:
    embeddings = await client.ask("/v1/embeddings", {"input": "x"})
    assert (embeddings.status, embeddings.json["error"]["code"]) == (400, "unsupported")
    assert (await client.ask("/v1/responses", {})).status == 404
    wrong = await client.get(CHAT)
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    unknown = await client.ask(CHAT, {"messages": MESSAGES, "model": "gpt-5"})
    assert (unknown.status, unknown.json["error"]["code"]) == (404, "model_not_found")


async def test_other_sites_other_names_and_missing_keys(served: Callable[..., Client]) -> None:
    client = served(hosts=frozenset({"127.0.0.1:8080"}), origins=frozenset({"https://ours.example"}), key=KEY)
    bearer = {"authorization": f"Bearer {KEY}"}
    assert (await client.get("/v1/models", **bearer)).status == 200
    assert (await client.get("/v1/models", host="evil.example:8080", **bearer)).status == 403
    for origin in ("https://evil.example", "null", "http://[", "http://127.0.0.1:8080@evil.example", "x"):
        assert (await client.get("/v1/models", origin=origin, **bearer)).status == 403
    assert (await client.get("/v1/models", origin="http://127.0.0.1:8080", **bearer)).status == 200
    ours = {"origin": "https://ours.example"}
    preflight = await client.ask(CHAT, None, "OPTIONS", {**JSON, **ours})
    assert preflight.status == 204
    assert preflight.headers["access-control-allow-origin"] == "https://ours.example"
    for header in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {KEY}"}):
        refused = await client.ask(CHAT, {"messages": MESSAGES}, "POST", {**JSON, **ours, **header})
        assert (refused.status, refused.json["error"]["code"]) == (401, "invalid_api_key")
        assert refused.headers["access-control-allow-origin"]  # so that the page can read the error
    assert (await client.get("/health")).status == 200
    assert (await client.get("/metrics")).status == 401


async def test_bodies_have_bounds(served: Callable[..., Client]) -> None:
    client = served(limits=Limits(body_bytes=100, body_seconds=0.05))
    large = await client.ask(CHAT, {"messages": [{"role": "user", "content": "x" * 100}]})
    assert large.status == 413
    form = await client.ask(
        CHAT, b"a=b", "POST", {"host": "h", "content-type": "application/x-www-form-urlencoded"}
    )
    assert form.status == 415

    sent: list[Any] = []

    async def never() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(name.encode(), value.encode()) for name, value in JSON.items()]
    await client.app({"type": "http", "method": "POST", "path": CHAT, "headers": headers}, never, send)
    assert sent[0]["status"] == 408


async def test_a_client_that_takes_no_bytes_is_left(engine: Engine, served: Callable[..., Client]) -> None:
    client = served(limits=Limits(send_seconds=0.05))
    body = json.dumps({"prompt": "What", "max_tokens": 400, "stream": True}).encode()
    waiting: list[Any] = [{"type": "http.request", "body": body}]
    sent, gone = 0, asyncio.Event()

    async def receive() -> Any:
        return waiting.pop() if waiting else await gone.wait()

    async def send(message: Any) -> None:
        nonlocal sent
        sent += 1
        if sent == 3:
            try:
                await asyncio.Event().wait()
            finally:
                gone.set()

    headers = [(name.encode(), value.encode()) for name, value in JSON.items()]
    scope = {"type": "http", "method": "POST", "path": COMPLETIONS, "headers": headers}
    await client.app(scope, receive, send)
    assert gone.is_set()  # the send that hung was ended
    assert sent == 3
    assert client.app.metrics.disconnects == 1


LONG = {"prompt": "What", "max_tokens": 400, "logit_bias": {}, "temperature": 0, "stream": True}


def endless(engine: Engine) -> dict[str, Any]:
    """A request whose answer ends with the context only."""
    return {**LONG, "logit_bias": {str(id): -100 for id in engine.stop_ids}}


async def test_a_full_queue_refuses_and_a_client_that_goes_away_makes_room(
    engine: Engine, served: Callable[..., Client]
) -> None:
    client = served(limits=Limits(window=1, waiting=0))
    async with client.open("POST", COMPLETIONS, endless(engine)) as response:
        await response.arrived.wait()
        refused = await client.ask(COMPLETIONS, {"prompt": "x", "max_tokens": 1})
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    assert not response.ended
    assert (await client.ask(COMPLETIONS, {"prompt": "x", "max_tokens": 1})).status == 200
    assert client.app.metrics.disconnects == 1


async def test_a_stopping_server_says_so(engine: Engine, served: Callable[..., Client]) -> None:
    client = served(limits=Limits(window=1))
    async with (
        client.open("POST", COMPLETIONS, endless(engine)) as running,
        client.open("POST", COMPLETIONS, {"prompt": "x", "max_tokens": 1}) as waiting,
    ):
        await running.arrived.wait()
        await asyncio.to_thread(client.app.close)
        while not (running.ended and waiting.ended):
            await asyncio.sleep(0)
    assert running.events[-1]["error"]["code"] == "stopping"
    assert (waiting.status, waiting.json["error"]["code"]) == (503, "stopping")
    late = await client.ask(COMPLETIONS, {"prompt": "x"})
    assert (late.status, late.json["error"]["code"]) == (503, "stopping")


async def test_an_answer_that_takes_too_long(engine: Engine, served: Callable[..., Client]) -> None:
    client = served(limits=Limits(seconds=1e-9))
    response = await client.ask(COMPLETIONS, {**endless(engine), "stream": False})
    assert (response.status, response.json["error"]["code"]) == (504, "timeout")


def hostile(rng: random.Random) -> tuple[str, bytes]:
    """A body that is not a request: cut, of wrong types, too deep, or with values out of range."""
    path = rng.choice([CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
    good: dict[str, Any] = {
        CHAT: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
        COMPLETIONS: {"prompt": "x", "max_tokens": 1},
        "/tokenize": {"prompt": "x"},
        "/detokenize": {"tokens": [1]},
    }[path]
    wrong: list[Any] = [
        [],
        {},
        -1,
        1e308,
        "\ud800",
        [[[]]],
        {"a": {}},
        "x" * 300,
        2**70,
        [None],
        [1, "x"],
        [{}],
    ]
    kind = rng.randrange(6)
    if kind == 0:
        data = json.dumps(good).encode()
        return path, data[: rng.randrange(len(data))]
    if kind == 1:
        return path, rng.randbytes(rng.randrange(200)) + b"\xff"
    if kind == 2:
        return path, b"[" * rng.randrange(1, 100_000)
    if kind == 3:
        return path, json.dumps({**good, "".join(rng.choices("abcxyz_", k=9)): 1}).encode()
    if kind == 4:
        return path, b'{"prompt": NaN}' if rng.random() < 0.5 else b'{"a": 1, "a": 2}'
    names = [
        "messages",
        "prompt",
        "tokens",
        "max_tokens",
        "temperature",
        "stop",
        "n",
        "seed",
        "logit_bias",
        "stream",
    ]
    names += ["logprobs", "response_format", "stream_options", "chat_template_kwargs", "structured_outputs"]
    body = {**good, rng.choice(names): rng.choice([one for one in wrong if one not in ([], {})])}
    body.pop("model", None)
    return path, json.dumps(body).encode()


async def refuse_all(client: Client, count: int, seed: int) -> None:
    rng = random.Random(seed)
    accepted = 0
    for _ in range(count):
        path, data = hostile(rng)
        response = await client.ask(path, data)
        assert response.status is not None
        if response.status == 200:  # such as a long text, or the seed 2^70 as a stop string
            accepted += 1
            continue
        assert 400 <= response.status < 500, (data, response.body)
        error = response.json["error"]
        assert error["message"]
        assert "Traceback" not in error["message"]
    assert accepted < count / 10


async def test_hostile_requests_get_a_clear_error(client: Client) -> None:
    await refuse_all(client, 60, 1)


@pytest.mark.trust
async def test_many_hostile_requests(client: Client) -> None:
    await refuse_all(client, 500, 2)


async def test_the_requests_of_the_page_are_understood(served: Callable[..., Client]) -> None:
    client = served(aliases=("smollm2:135m",))
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    asked = re.findall(
        r"curl http://127.0.0.1:8080(\S+) [^']*'Content-Type: application/json'[^']*-d '([^']*)'", text
    )
    assert len(asked) == 5
    for path, body in asked:
        response = await client.ask(path, {"max_tokens": 2, **json.loads(body)})
        assert (response.status == 200) != ("temprature" in body), response.body
