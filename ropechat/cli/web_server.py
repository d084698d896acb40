"""The web server of `ropechat serve`: textual-serve's, closed to other sites. Needs the extra `serve`."""

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
"""Gives the keyboard to the terminal of textual-serve's page once it is there, without a click on it."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WebServer(Server):
    """Answers only pages of its own.

    A page of any other site that the user visits could connect to a port of this machine, and a name of that
    site could be pointed at it: so Host must be ours (unless exposed), and Origin the same if there is one.
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
        """textual-serve's page asks another site for a font, and so tells it that somebody chats here."""
        ours = f"'self' {self.public_url}"
        response.headers["Content-Security-Policy"] = (
            f"default-src {ours} data: blob: 'unsafe-inline'; connect-src {ours} {self._sockets}"
        )

    @web.middleware
    async def _only_ours(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
        if not self._exposed and host not in self._names:
            raise web.HTTPForbidden(text=f"not the name of this server; open {self.public_url}")
        if origin is not None and urlsplit(origin).netloc != host:
            raise web.HTTPForbidden(text="a page of another site")
        if not self._exposed and request.path == "/" and host != urlsplit(self.public_url).netloc:
            raise web.HTTPFound(self.public_url)  # the page talks to this name only
        return await handler(request)

    async def handle_index(self, request: web.Request) -> web.Response:
        """The page of textual-serve, which takes keys from the first moment on."""
        page: web.Response = await super().handle_index(request)
        assert page.text is not None
        page.text = page.text.replace("</body>", f"{FOCUS}</body>")
        return page
