"""One HTTP request and its response, over ASGI, within limits of size and time."""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, MutableMapping
from typing import Any

from ropechat.api.errors import ApiError
from ropechat.api.responses import to_json
from ropechat.api.spec import Limits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[str, str]]


class SlowClientError(Exception):
    """The client takes no bytes of its response."""


class Exchange:
    """A request of an ASGI server. status: of the response, None before it begins."""

    def __init__(self, scope: Message, receive: Receive, send: Send, limits: Limits) -> None:
        self._receive, self._send, self._limits = receive, send, limits
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        self.status: int | None = None
        self.added: tuple[tuple[str, str], ...] = ()
        """Headers of every response."""
        self.note = ""
        """What the log says of it."""

    def header(self, name: str) -> str | None:
        """A header of the request by its lower-case name."""
        return self._headers.get(name.encode())

    async def body(self) -> bytes:
        """The body. Raises ApiError if it is too large or too slow, or not JSON by its type."""
        kind = (self.header("content-type") or "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(415, f"Content-Type: must be application/json (got {kind!r:.60})")
        most, data, size = self._limits.body_bytes, bytearray(), 0
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                more = True
                while more:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError(400, "body: the connection was closed before its end")
                    piece = message.get("body", b"")
                    size += len(piece)
                    if (
                        size <= most
                    ):  # what is too large is read to its end, so that the client reads the error
                        data += piece
                    more = message.get("more_body", False)
        except TimeoutError:
            what = f"body: must arrive within {self._limits.body_seconds:g} s"
            raise ApiError(408, what, headers=(("connection", "close"),)) from None
        if size > most:
            raise ApiError(413, f"body: must be at most {most:,} bytes (got {size:,})")
        return bytes(data)

    async def disconnected(self) -> None:
        """Return when the client is gone; to be called after `body`."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def reply(self, status: int, value: object, headers: Headers = ()) -> None:
        """Send a response of JSON."""
        await self.reply_bytes(status, to_json(value), "application/json", headers)

    async def reply_bytes(self, status: int, data: bytes, kind: str, headers: Headers = ()) -> None:
        """Send a response."""
        await self._begin(status, [("content-type", kind), ("content-length", str(len(data))), *headers])
        await self._put({"type": "http.response.body", "body": data})

    async def open_events(self) -> None:
        """Begin a response of server-sent events."""
        kind = "text/event-stream; charset=utf-8"
        await self._begin(
            200, [("content-type", kind), ("cache-control", "no-store"), ("x-accel-buffering", "no")]
        )

    async def event(self, data: bytes) -> None:
        """Send an event."""
        await self._put({"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True})

    async def close_events(self) -> None:
        """End the response."""
        await self._put({"type": "http.response.body", "body": b""})

    async def _begin(self, status: int, headers: list[tuple[str, str]]) -> None:
        given = [
            (name.encode(), value.encode("latin-1", "replace")) for name, value in (*headers, *self.added)
        ]
        self.status = status
        await self._put({"type": "http.response.start", "status": status, "headers": given})

    async def _put(self, message: Message) -> None:
        sending = self._send(message).__await__()
        try:
            first = next(sending)
        except StopIteration:  # as nearly always: a clock for each event would cost more than the event
            return
        try:
            async with asyncio.timeout(self._limits.send_seconds):
                await _Begun(first, sending)
        except TimeoutError:
            raise SlowClientError from None


class _Begun:
    """An awaitable that has begun. first: what it waits for."""

    def __init__(self, first: object, rest: Generator[object, None, None]) -> None:
        self._first, self._rest = first, rest

    def __await__(self) -> Generator[object, None, None]:
        try:
            yield self._first
        except BaseException as error:
            self._rest.throw(error)
        yield from self._rest
