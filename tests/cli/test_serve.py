"""`ropechat serve`: where it listens, to whom it answers, and what it says without its extra."""

import asyncio
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cli_door import Door
from model_folders import byte_folder


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Door:
    monkeypatch.setenv("COLORTERM", "")  # the command changes it
    return Door(monkeypatch, capfd)


class Served(ModuleType):
    """A stand-in for web_server: tells what would be served."""

    def __init__(self) -> None:
        super().__init__("ropechat.cli.web_server")
        self.calls: list[tuple[Any, ...]] = []
        outer = self

        class WebServer:
            public_url = "http://here"

            def __init__(self, command: str, host: str, port: int, *, exposed: bool) -> None:
                outer.calls.append((command, host, port, exposed))

            def serve(self) -> None:
                pass

        self.WebServer = WebServer


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    made = Served()
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def test_it_listens_on_this_machine_alone(door: Door, served: Served, tmp_path: Path) -> None:
    model = byte_folder(tmp_path / "model")
    code, _, err = door("serve", "-m", model, "--temperature", 0)
    assert code == 0, err
    ((command, host, port, exposed),) = served.calls
    assert (host, port, exposed) == ("127.0.0.1", 8000, False)
    assert command.endswith(f"chat -m {model} --temperature 0")
    assert os.environ["COLORTERM"] == "truecolor"  # the browser draws, whatever this terminal can


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.1", "::", "example.org"])
def test_other_addresses_need_a_word(host: str, door: Door, served: Served, tmp_path: Path) -> None:
    model = byte_folder(tmp_path / "model")
    code, _, err = door("serve", "--host", host, "-m", model)
    assert code == 2
    assert "add --expose" in err
    assert not served.calls
    code, _, err = door("serve", "--host", host, "--expose", "-m", model)
    assert code == 0
    assert "warning: " in err
    assert "anyone on the network can chat" in err


@pytest.mark.parametrize("host", ["::1", "localhost", "127.9.9.9"])
def test_these_are_this_machine(host: str, door: Door, served: Served, tmp_path: Path) -> None:
    assert door("serve", "--host", host, "-m", byte_folder(tmp_path / "model"))[0] == 0
    assert served.calls


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--top-k", "x"], 2, "'x' is not a valid integer"),
        (["--temperature", "-1"], 2, "--temperature: must be a number from 0 to 100 (got -1.0)"),
        (["--nonsense"], 2, "--nonsense"),
        (["-m", "/nowhere/at/all"], 2, "/nowhere/at/all"),
    ],
)
def test_what_a_page_could_not_say(
    options: list[str], code: int, message: str, door: Door, served: Served, tmp_path: Path
) -> None:
    found, _, err = door("serve", "-m", byte_folder(tmp_path / "model"), *options)
    assert found == code
    assert message in err
    assert not served.calls


def test_without_the_extra(door: Door, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "ropechat.cli.web_server", raising=False)
    monkeypatch.setitem(sys.modules, "textual_serve", None)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    code, _, err = door("serve", "-m", byte_folder(tmp_path / "model"))
    assert code == 2
    assert "pip install 'ropechat[serve]'" in err


@pytest.mark.parametrize(
    ("headers", "exposed", "status"),
    [
        ({"Host": "127.0.0.1:8123"}, False, 200),
        ({"Host": "localhost:8123", "Origin": "http://localhost:8123"}, False, 302),
        ({"Host": "127.0.0.1:8123", "Origin": "http://evil.example"}, False, 403),
        ({"Host": "127.0.0.1:8123", "Origin": "null"}, False, 403),
        ({"Host": "evil.example:8123", "Origin": "http://evil.example:8123"}, False, 403),
        ({"Host": "box.lan:8123", "Origin": "http://box.lan:8123"}, True, 200),
        ({"Host": "box.lan:8123", "Origin": "http://evil.example"}, True, 403),
    ],
)
def test_only_its_own_pages_are_answered(headers: dict[str, str], exposed: bool, status: int) -> None:
    pytest.importorskip("textual_serve")
    test_utils = pytest.importorskip("aiohttp.test_utils")
    from ropechat.cli.web_server import WebServer

    async def ask() -> int:
        app = await WebServer("true", "127.0.0.1", 8123, exposed=exposed)._make_app()
        async with test_utils.TestClient(test_utils.TestServer(app)) as client:
            answer = await client.get("/", headers=headers, allow_redirects=False)
            assert (
                "connect-src 'self' http://127.0.0.1:8123 ws://127"
                in answer.headers["Content-Security-Policy"]
            )
            page = await answer.text()
            assert ("keys.focus()" in page) is (answer.status == 200)  # before the first click
            return int(answer.status)

    assert asyncio.run(ask()) == status


STUCK = "import time; print('__GANGLION__', flush=True); time.sleep(60)"
"""A chat that reads nothing and does not end."""
ECHO = """
import os, sys, json
print("__GANGLION__", flush=True)
def tell(text):
    data = text.encode()
    os.write(1, b"D" + len(data).to_bytes(4, "big") + data)
tell(f"{os.getpid()} {os.environ['COLUMNS']}x{os.environ['ROWS']}")
while head := sys.stdin.buffer.read(5):
    packet = sys.stdin.buffer.read(int.from_bytes(head[1:], "big"))
    if b'"quit"' in packet:
        break
    tell(packet.decode())
"""


def with_pages(program: str, use: Callable[[Any, Any], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run `use(server, client)` with a server whose chats are that program."""
    pytest.importorskip("textual_serve")
    test_utils = pytest.importorskip("aiohttp.test_utils")
    from ropechat.cli import web_server

    monkeypatch.setattr(web_server, "_PATIENCE", 0.1)
    command = shlex.join([sys.executable, "-c", program])

    async def run() -> Any:
        server = web_server.WebServer(command, "127.0.0.1", 8123, exposed=False)
        async with test_utils.TestClient(test_utils.TestServer(await server._make_app())) as client:
            return await use(server, client)

    return asyncio.run(asyncio.wait_for(run(), 20))


HOST = {"Host": "127.0.0.1:8123"}


def test_a_page_of_any_size_and_messages_of_any_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(server: Any, client: Any) -> list[str]:
        async with client.ws_connect("/ws?width=60000&height=-7", headers=HOST) as page:
            said = [(await page.receive_bytes()).decode()]
            for bad in ("{", "[]", "5", '["stdin", 5]', '["resize", {"width": "x"}]', '["resize"]', '"x"'):
                await page.send_str(bad)
            await page.send_json(["resize", {"width": 10**9, "height": 30}])
            await page.send_json(["stdin", "é"])
            await page.send_json(["ping", 1])
            for _ in range(3):
                data = (await page.receive()).data
                said.append(data if isinstance(data, str) else data.decode())
            return said

    first, *others = with_pages(ECHO, use, monkeypatch)
    assert first.endswith(" 1000x1")
    assert set(others) == {'{"type": "resize", "width": 1000, "height": 30}', "é", '["pong", 1]'}


def test_a_chat_ends_with_its_page_and_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(server: Any, client: Any) -> list[Any]:
        page = await client.ws_connect("/ws", headers=HOST)
        while not server._pages or next(iter(server._pages))._process is None:
            await asyncio.sleep(0.01)
        first = next(iter(server._pages))._process
        await page.close()
        await first.wait()
        await client.ws_connect("/ws", headers=HOST)
        while not server._pages or next(iter(server._pages))._process in (None, first):
            await asyncio.sleep(0.01)
        return [first, next(iter(server._pages))._process]

    first, second = with_pages(STUCK, use, monkeypatch)
    assert (first.returncode, second.returncode) == (-9, -9)


def test_pages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(server: Any, client: Any) -> list[int]:
        from ropechat.cli.web_server import MAX_PAGES

        pages = [await client.ws_connect("/ws", headers=HOST) for _ in range(MAX_PAGES)]
        refused = [(await client.get(path, headers=HOST)).status for path in ("/", "/ws")]
        await pages[0].close()
        while len(server._pages) == MAX_PAGES:
            await asyncio.sleep(0.01)
        return [*refused, (await client.get("/", headers=HOST)).status]

    assert with_pages(ECHO, use, monkeypatch) == [503, 503, 200]
