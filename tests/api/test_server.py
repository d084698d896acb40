"""The server over real sockets: what uvicorn makes of it, its limits, killed clients; and the command."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_server import HEADERS, Running
from cli_door import Door
from model_folders import byte_folder

from ropechat.api import server
from ropechat.api.app import Api
from ropechat.batch.line import COMPLETIONS
from ropechat.engine.engine import Engine


@pytest.fixture
def running(engine: Engine) -> Iterator[Running]:
    made = Running(engine)
    yield made
    made.close()


def raw(path: str, body: Any) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    return head.encode() + b"\r\n\r\n" + data


def read_to_end(connection: socket.socket) -> bytes:
    data = b""
    while piece := connection.recv(65536):
        data += piece
    return data


def test_requests_follow_each_other_on_one_connection(running: Running) -> None:
    connection = http.client.HTTPConnection(*running.address, timeout=60)
    for stream in (False, True, False):
        body = {"prompt": "What is", "max_tokens": 2, "temperature": 0, "stream": stream}
        connection.request("POST", COMPLETIONS, json.dumps(body), HEADERS)
        response = connection.getresponse()
        assert response.status == 200
        assert b"text" in response.read()
    (kept,) = running.connections()
    accepted = kept.transport.get_extra_info("socket")
    assert accepted.getsockopt(
        socket.IPPROTO_TCP, socket.TCP_NODELAY
    )  # else each event waits for the last one
    connection.close()


def test_what_is_not_http_is_refused(running: Running) -> None:
    with running.connect() as connection:
        connection.sendall(b"Hello\r\n\r\n")
        head, _, body = read_to_end(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert json.loads(body)["error"]["message"] == "request: must be valid HTTP"


def test_a_head_must_arrive_in_time(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_HEAD_SECONDS", 0.01)
    for begun in (b"", b"POST / HTTP/1.1\r\nHost:"):
        with running.connect() as connection:
            connection.sendall(begun)
            assert read_to_end(connection) == b""


def kill_clients(running: Running, engine: Engine, count: int) -> None:
    """Clients that go away before and during their answer leave nothing behind."""
    kept = http.client.HTTPConnection(*running.address, timeout=60)

    def ask() -> tuple[int, int]:
        """Descriptors and threads of this process after a request on one connection."""
        kept.request("POST", COMPLETIONS, json.dumps({"prompt": "x", "max_tokens": 1}), HEADERS)
        response = kept.getresponse()
        assert response.status == 200
        response.read()
        assert running.ended.acquire(timeout=60)
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    ask()
    descriptors, threads = ask()
    bias = {str(id): -100 for id in engine.stop_ids}
    for number in range(count):
        stream = number % 2 == 0
        body = {
            "prompt": "What",
            "max_tokens": 400,
            "logit_bias": bias,
            "stream": stream,
            "n": 1 + number % 3,
        }
        request = raw(COMPLETIONS, body)
        with running.connect() as connection:
            connection.sendall(request[: -1 if number % 5 == 4 else None])
            if number % 3 == 0 and stream and number % 5 != 4:
                assert connection.recv(100)
    for _ in range(count):
        assert running.ended.acquire(timeout=60)
    # What is left is gone after a few more turns of the server's loop.
    assert any(
        ask() <= (descriptors, threads + 1) for _ in range(50)
    )  # + 1: another thread that reads bodies
    assert running.api.metrics.in_progress == 0
    assert running.api.answers.is_idle
    kept.close()


def test_killed_clients_leave_nothing(running: Running, engine: Engine) -> None:
    kill_clients(running, engine, 12)


@pytest.mark.trust
def test_many_killed_clients_leave_nothing(running: Running, engine: Engine) -> None:
    kill_clients(running, engine, 200)


# ---- the command


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_command_serves_until_a_signal(number: int, code: int) -> None:
    launch = [sys.executable, "-c", "import sys; from ropechat.cli import main; sys.exit(main())"]
    child = subprocess.Popen(
        [*launch, "api", "-m", "builtin", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    url = next(line for line in child.stderr if line.startswith("http")).split()[0]
    port = int(url.split(":")[2].partition("/")[0])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/v1/models")
    assert json.loads(connection.getresponse().read())["data"][0]["id"] == "builtin"
    connection.close()
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (code, "")
    assert "Traceback" not in err


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Api]:
    """The applications that the command would serve."""
    made: list[Api] = []
    monkeypatch.setattr(server, "serve", lambda api, sockets: made.append(api))
    return made


KEY = "correct-horse-battery"


@pytest.mark.parametrize(
    ("options", "variables", "message"),
    [
        (["--host", "0.0.0.0"], {}, "add --expose"),
        (["--host", "0.0.0.0", "--expose"], {}, "--expose: requires a key"),
        (
            ["--host", "0.0.0.0", "--expose"],
            {"ROPECHAT_API_KEY": "short"},
            "ROPECHAT_API_KEY: must be 16 to 512",
        ),
        (["--api-key-file", "missing"], {}, "missing: No such file"),
        (["--temperature", "-1"], {}, "--temperature: must be"),
    ],
)
def test_what_the_command_refuses(
    options: list[str],
    variables: dict[str, str],
    message: str,
    door: Door,
    served: list[Api],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code, out, err = door("api", "-m", byte_folder(tmp_path / "model"), *options)
    assert (code, out) == (74 if "missing" in options else 2, "")
    assert message in err
    assert "short" not in err
    assert not served


def test_the_command_serves_what_its_options_say(
    door: Door, served: list[Api], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, key = byte_folder(tmp_path / "model"), tmp_path / "key"
    key.write_text(f"{KEY}\n")
    given = ["--alias", "gpt-4o", "--parallel", 3, "--waiting", 4, "--temperature", 0.5, "--port", 0]
    code, out, err = door("api", "-m", model, *given, "--api-key-file", key)
    assert (code, out) == (0, ""), err
    (api,) = served
    spec = api._spec
    assert api.names[1:] == ("gpt-4o",)
    assert (spec.key, spec.limits.requests, spec.sampling.temperature) == (KEY, 7, 0.5)
    assert "top_p" in spec.unset
    assert "temperature" not in spec.unset
    port = err.rpartition("127.0.0.1:")[2].partition("/")[0]
    assert spec.hosts is not None
    assert f"localhost:{port}" in spec.hosts
    monkeypatch.setenv("ROPECHAT_API_KEY", KEY)
    code, _, err = door("api", "-m", model, "--host", "0.0.0.0", "--expose", "--port", 0)
    assert code == 0, err
    assert (served[1]._spec.key, served[1]._spec.hosts) == (KEY, None)
    assert KEY not in err


def test_without_the_extra(door: Door, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ropechat.api.server", None)
    code, _, err = door("api", "-m", byte_folder(tmp_path / "model"))
    assert code == 2
    assert "pip install 'ropechat[api]'" in err


def test_a_port_that_is_taken(door: Door, running: Running, tmp_path: Path) -> None:
    code, _, err = door("api", "-m", byte_folder(tmp_path / "model"), "--port", running.address[1])
    assert code == 74
    assert "choose another --host or --port" in err
