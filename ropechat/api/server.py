"""The HTTP server below the application: uvicorn, with limits that it lacks. Needs the extra `api`."""

import asyncio
import logging
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ropechat.api.app import Api
from ropechat.api.errors import ApiError
from ropechat.api.responses import to_json
from ropechat.errors import FileAccessError

_CONNECTIONS = 1024
"""Open connections; requests of further ones are answered with 503."""
_HEAD_BYTES = 64 << 10
_HEAD_SECONDS = 15.0
"""In which the head of a request must arrive."""
_IDLE_SECONDS = 30
"""How long a connection may wait for the next request."""
_STOP_SECONDS = 10
"""How long requests in progress may take at the end."""


class _Connection(H11Protocol):
    """A connection that is closed if the head of a request does not arrive in time."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget_late()

    def _expect_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget_late()
        elif self._late is None and not self.transport.is_closing():
            self._late = self.loop.call_later(_HEAD_SECONDS, self.transport.close)

    def _forget_late(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, in the form of all errors."""
        body = to_json(ApiError(400, "request: must be valid HTTP").body)
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises FileAccessError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, _, _, address = found[0]
        # Not socket.create_server: without the protocol asyncio leaves Nagle's algorithm on, which holds back
        # what follows a small write for 40 ms.
        made = socket.socket(family, kind, socket.IPPROTO_TCP)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            made.listen(_CONNECTIONS)
        except OSError:
            made.close()
            raise
        return made
    except OSError as error:
        what = f"{host}:{port}: {error.strerror or error}"
        raise FileAccessError(f"{what}; choose another --host or --port") from None


def serve(api: Api, sockets: list[socket.socket]) -> None:
    """Answer requests until a signal ends the server; the signal's own handler runs afterwards."""
    uvicorn.Server(config(api)).run(sockets)


def config(api: Api) -> uvicorn.Config:
    """How uvicorn is used: one process, HTTP/1.1, no log of its own."""
    return uvicorn.Config(
        api,
        http=_Connection,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level=logging.CRITICAL + 1,  # bad requests are no news, and bugs are answered by the application
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        h11_max_incomplete_event_size=_HEAD_BYTES,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
