"""The server of `ropechat api` in a thread, on a free port."""

import http.client
import json
import socket
import threading
from typing import Any

import uvicorn

from ropechat.api import server
from ropechat.api.app import Api
from ropechat.api.spec import ApiSpec
from ropechat.engine.engine import Engine

HEADERS = {"Content-Type": "application/json"}


class Running:
    """A server in a thread. ended: released once for each request that is over."""

    def __init__(self, engine: Engine, **spec: Any) -> None:
        """spec: fields of ApiSpec."""
        self.ended = threading.Semaphore(0)
        self.api = Api(engine, ApiSpec(**spec), lambda line: self.ended.release())
        self.socket = server.listen("127.0.0.1", 0)
        self.address: tuple[str, int] = self.socket.getsockname()
        self._server = uvicorn.Server(server.config(self.api))
        self._thread = threading.Thread(target=self._server.run, args=([self.socket],))
        self._thread.start()

    def connections(self) -> list[Any]:
        """The open connections."""
        return list(self._server.server_state.connections)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=60)

    def ask(self, path: str, body: Any) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        connection.request("POST", path, json.dumps(body), HEADERS)
        response = connection.getresponse()
        found = response.status, json.loads(response.read())
        connection.close()
        return found

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self.socket.close()
        self.api.close()
