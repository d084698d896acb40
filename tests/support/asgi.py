"""A client of an ASGI application in the same event loop: requests, streams, clients that go away."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

JSON = {"host": "127.0.0.1:8080", "content-type": "application/json"}


class Response:
    """What the application has sent. status: None before the response begins."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = b""
        self.arrived = asyncio.Event()
        self.ended = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The events of a stream so far, without the last one, [DONE]."""
        lines = [line for line in self.body.decode().split("\n\n") if line]
        assert all(line.startswith("data: ") for line in lines)
        return [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]


class Client:
    """Sends requests to an application."""

    def __init__(self, app: Any) -> None:
        self.app = app

    @contextlib.asynccontextmanager
    async def open(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] = JSON
    ) -> AsyncIterator[Response]:
        """Begin a request; at the end of the block the client goes away. body: JSON, or bytes as they are."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        response, gone = Response(), asyncio.Event()
        pieces = [{"type": "http.request", "body": data, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if pieces:
                return pieces.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                assert response.status is None
                response.status = message["status"]
                response.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                assert response.status is not None
                assert not response.ended
                response.body += message["body"]
                response.ended = not message.get("more_body", False)
            response.arrived.set()

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        task = asyncio.create_task(self.app(scope, receive, send))
        task.add_done_callback(lambda _: response.arrived.set())
        try:
            yield response
        finally:
            gone.set()
            await task

    async def ask(
        self, path: str, body: object = None, method: str = "POST", headers: Mapping[str, str] = JSON
    ) -> Response:
        """Send a request and wait for the end of its response."""
        async with self.open(method, path, body, headers) as response:
            while not response.ended:
                response.arrived.clear()
                await response.arrived.wait()
        return response

    async def get(self, path: str, **headers: str) -> Response:
        return await self.ask(path, None, "GET", {**JSON, **headers})
