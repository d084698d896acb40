"""The web server of `ropechat serve`: textual-serve, restricted to its own pages. Needs the extra `serve`."""

import asyncio
import contextlib
import shlex
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from aiohttp import WSMsgType, web
from textual_serve.app_service import AppService
from textual_serve.server import Server

from ropechat.cli.listening import host_names, shown_name

MAX_PAGES = 8
"""Open pages; each has a process with its own copy of the model."""
_MAX_COLUMNS, _MAX_ROWS = 1000, 400
_PATIENCE = 3.0
"""Seconds that a chat has to end after its page is closed."""

FOCUS = """<script>
  new MutationObserver((_, watcher) => {
    const keys = document.querySelector(".xterm-helper-textarea");
    if (keys) {
      keys.focus();
      watcher.disconnect();
    }
  }).observe(document.body, { childList: true, subtree: true });
</script>"""
"""Focuses the terminal of textual-serve's page as soon as it exists, without a click."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ChatProcess(AppService):
    """The chat of one page, which ends with the page: a chat that does not answer is killed."""

    _task: asyncio.Task[None] | None

    async def _open_app_process(self, width: int = 80, height: int = 24) -> Process:
        """As the base class, but without a shell, which would survive its own end."""
        process = await asyncio.create_subprocess_exec(
            *shlex.split(self.command),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=self._build_environment(width, height),
        )
        self._process, self._stdin = process, process.stdin
        return process

    async def stop(self) -> None:
        """End the process: ask it to, then kill it."""
        task, self._task = self._task, None
        if task is None:
            return
        await self._download_manager.cancel_app_downloads(app_service_id=self.app_service_id)
        with contextlib.suppress(TimeoutError):  # one that reads nothing more
            await asyncio.wait_for(self.send_meta({"type": "quit"}), _PATIENCE)
            await asyncio.wait_for(asyncio.shield(task), _PATIENCE)
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await task
        await self._process.wait()


class WebServer(Server):
    """Answers only requests from its own pages.

    Pages of other sites could connect to a port of this machine, also through DNS rebinding. So the Host
    header must be a name of this server (unless exposed), and an Origin header must equal it.
    """

    def __init__(self, command: str, host: str, port: int, *, exposed: bool) -> None:
        self._exposed = exposed
        super().__init__(command, host, port, "ropechat", public_url=f"http://{shown_name(host)}:{port}")
        self._sockets = self.public_url.replace("http", "ws", 1)
        self._names = host_names(host, port)
        self._pages: dict[ChatProcess, web.WebSocketResponse] = {}

    async def _make_app(self) -> web.Application:
        made = await super()._make_app()
        made.middlewares.append(self._only_ours)
        made.on_response_prepare.append(self._nothing_from_elsewhere)
        return made

    async def _nothing_from_elsewhere(self, _: web.Request, response: web.StreamResponse) -> None:
        """Forbid external resources: textual-serve's page loads a font from another site."""
        ours = f"'self' {self.public_url}"
        response.headers["Content-Security-Policy"] = (
            f"default-src {ours} data: blob: 'unsafe-inline'; connect-src {ours} {self._sockets}"
        )

    @web.middleware
    async def _only_ours(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
        if not self._exposed and host not in self._names:
            raise web.HTTPForbidden(text=f"wrong host name; open {self.public_url}")
        if origin is not None and origin.partition("://")[2] != host:
            raise web.HTTPForbidden(text="request from another site")
        if not self._exposed and request.path == "/" and host != urlsplit(self.public_url).netloc:
            raise web.HTTPFound(self.public_url)  # the page connects to this name only
        return await handler(request)

    async def handle_index(self, request: web.Request) -> web.Response:
        """textual-serve's page, with keyboard focus from the start."""
        self._require_room()
        page: web.Response = await super().handle_index(request)
        assert page.text is not None
        page.text = page.text.replace("</body>", f"{FOCUS}</body>")
        return page

    def _require_room(self) -> None:
        if len(self._pages) >= MAX_PAGES:
            raise web.HTTPServiceUnavailable(
                text=f"{MAX_PAGES} pages are open; close one, then reload this one"
            )

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Run a chat for a page until one of both ends."""
        self._require_room()
        page = web.WebSocketResponse(heartbeat=15)
        chat = ChatProcess(
            self.command,
            write_bytes=page.send_bytes,
            write_str=page.send_str,
            close=page.close,
            download_manager=self.download_manager,
        )
        self._pages[chat] = page
        try:
            await page.prepare(request)
            await chat.start(*_size(request.query))
            with contextlib.suppress(ConnectionError):
                await self._process_messages(page, chat)
        finally:
            try:
                await chat.stop()
            finally:
                del self._pages[chat]
        return page

    async def _process_messages(self, websocket: web.WebSocketResponse, app_service: AppService) -> None:
        """Pass the page's messages on to the chat; invalid ones are ignored."""
        async for message in websocket:
            with contextlib.suppress(ValueError, TypeError, AttributeError):
                if message.type == WSMsgType.TEXT:
                    kind, *values = message.json()
                    await self._pass_on(kind, values[0] if values else None, websocket, app_service)

    async def _pass_on(
        self, kind: object, value: Any, websocket: web.WebSocketResponse, app_service: AppService
    ) -> None:
        if kind == "stdin":
            await app_service.send_bytes(value.encode("utf-8", "replace"))
        elif kind == "resize":
            await app_service.set_terminal_size(*_size(value))
        elif kind == "ping":
            await websocket.send_json(["pong", value])
        elif kind == "blur":
            await app_service.blur()
        elif kind == "focus":
            await app_service.focus()

    async def on_shutdown(self, app: web.Application) -> None:
        """End all chats; without that the server would wait for the pages."""
        await asyncio.gather(*(page.close() for page in self._pages.values()))


def _size(given: Any) -> tuple[int, int]:
    """Columns and rows of a page. Raises ValueError, TypeError, AttributeError for values of other types."""
    columns, rows = int(given.get("width", 80)), int(given.get("height", 24))
    return max(1, min(columns, _MAX_COLUMNS)), max(1, min(rows, _MAX_ROWS))
