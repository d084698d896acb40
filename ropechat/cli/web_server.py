"""The web server of `ropechat serve`: textual-serve, restricted to its own pages. Needs the extra `serve`."""

import socket
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web
from textual_serve.server import Server

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


class WebServer(Server):
    """Answers only requests from its own pages.

    Pages of other sites could connect to a port of this machine, also through DNS rebinding. So the Host
    header must be a name of this server (unless exposed), and an Origin header must equal it.
    """

    def __init__(self, command: str, host: str, port: int, *, exposed: bool) -> None:
        self._exposed = exposed
        shown = f"[{host}]" if ":" in host else host
        if host in ("0.0.0.0", "::"):
            shown = socket.gethostname()
        super().__init__(command, host, port, "ropechat", public_url=f"http://{shown}:{port}")
        self._sockets = self.public_url.replace("http", "ws", 1)
        self._names = {f"{name}:{port}" for name in (shown, "localhost", "127.0.0.1", "[::1]")}

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
        if origin is not None and urlsplit(origin).netloc != host:
            raise web.HTTPForbidden(text="request from another site")
        if not self._exposed and request.path == "/" and host != urlsplit(self.public_url).netloc:
            raise web.HTTPFound(self.public_url)  # the page connects to this name only
        return await handler(request)

    async def handle_index(self, request: web.Request) -> web.Response:
        """textual-serve's page, with keyboard focus from the start."""
        page: web.Response = await super().handle_index(request)
        assert page.text is not None
        page.text = page.text.replace("</body>", f"{FOCUS}</body>")
        return page
