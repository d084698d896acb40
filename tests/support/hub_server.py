"""A stand-in for the Hub's HTTP API: listing, resolve, redirects to a second host, ranges, faults.

Its shape was read off huggingface_hub 2.4: `GET /api/models/ID/revision/REV?blobs=true` and
`HEAD|GET /ID/resolve/REV/FILE` with X-Repo-Commit, ETag, X-Linked-Size, X-Linked-Etag; errors carry
X-Error-Code.
"""

import contextlib
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

COMMIT = "c0ffee" + "0" * 34
LFS_ENDINGS = (".safetensors", ".gguf", ".bin")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Repo:
    """files: name -> content. gated: a token is needed for files. commits: revision -> commit.

    facts: more keys of the listing, such as cardData and gguf. sizes: listed sizes that are not the files'.
    """

    files: dict[str, bytes]
    gated: bool = False
    private: bool = False
    commits: dict[str, str] = field(default_factory=lambda: {"main": COMMIT})
    facts: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)


@dataclass
class Request:
    method: str
    path: str
    start: int
    host: str
    token: str | None


Body = Callable[[str, int, bytes], bytes | None]  # (file, start, rest) -> what is sent; less: the line drops


def _all(file: str, start: int, rest: bytes) -> bytes:
    return rest


@dataclass
class Hub:
    """What the server serves, how it misbehaves, and what it was asked."""

    repos: dict[str, Repo] = field(default_factory=dict)
    url: str = ""
    cdn: str = ""
    token: str = "hf_right"
    requests: list[Request] = field(default_factory=list)
    body: Body = _all
    ignores_ranges: bool = False
    without_length: bool = False
    seconds_per_piece: float = 0.0
    status: int = 0  # answer everything with it
    lies: dict[str, str] = field(default_factory=dict)  # file -> sha256 in the listing

    def starts(self, file: str) -> list[int]:
        """The first byte of each request for the content of a file."""
        return [
            one.start
            for one in self.requests
            if one.path.endswith(f"/blob/{file}") or self._direct(one, file)
        ]

    def _direct(self, one: Request, file: str) -> bool:
        return one.method == "GET" and one.path.endswith(f"/{file}") and not file.endswith(LFS_ENDINGS)


def _listed(hub: Hub, name: str, data: bytes, size: int) -> dict[str, Any]:
    entry: dict[str, Any] = {"rfilename": name, "size": size, "blobId": git_sha1(data)}
    if name.endswith(LFS_ENDINGS):
        digest = hub.lies.get(name, sha256(data))
        entry |= {"lfs": {"sha256": digest, "size": size, "pointerSize": 130}}
    return entry


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._answer()

    def _answer(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        token = self.headers.get("Authorization")
        hub.requests.append(Request(self.command, path, start, self.headers["Host"], token))
        if hub.status:
            return self._refuse(hub.status, "")
        pieces = path.strip("/").split("/")
        if pieces[0] == "cdn":  # /cdn/org/name/blob/FILE
            repo = hub.repos["/".join(pieces[1:3])]
            return self._send("/".join(pieces[4:]), repo.files["/".join(pieces[4:])], start)
        at = 2 if pieces[0] == "api" else 0
        repo_id, rest = "/".join(pieces[at : at + 2]), pieces[at + 2 :]
        found = hub.repos.get(repo_id)
        if found is None or (found.private and token != f"Bearer {hub.token}"):
            return self._refuse(401 if token is None else 404, "RepoNotFound")
        revision = rest[1] if len(rest) > 1 else "main"
        commit = found.commits.get(revision, revision if revision in found.commits.values() else "")
        if not commit:
            return self._refuse(404, "RevisionNotFound")
        if at:
            sizes = found.sizes
            listing = [
                _listed(hub, one, data, sizes.get(one, len(data))) for one, data in found.files.items()
            ]
            answer = {"id": repo_id, "sha": commit, "siblings": listing, "gated": found.gated}
            return self._json(answer | found.facts)
        if found.gated and token != f"Bearer {hub.token}":
            return self._refuse(401 if token is None else 403, "GatedRepo")
        return self._resolve(repo_id, "/".join(rest[2:]), found, commit, start)

    def _resolve(self, repo_id: str, file: str, repo: Repo, commit: str, start: int) -> None:
        data = repo.files.get(file)
        if data is None:
            return self._refuse(404, "EntryNotFound")
        headers = {"X-Repo-Commit": commit, "ETag": f'"{git_sha1(data)}"'}
        if file.endswith(LFS_ENDINGS):
            headers |= {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{sha256(data)}"'}
            headers |= {"Location": f"{self.hub.cdn}/cdn/{repo_id}/blob/{file}?signature=secret"}
            return self._head(302, 0, headers)
        return self._send(file, data, start, headers)

    def _send(self, file: str, data: bytes, start: int, headers: dict[str, str] | None = None) -> None:
        hub = self.hub
        if hub.ignores_ranges:
            start = 0
        if start >= len(data) and start:
            return self._head(416, 0, {"Content-Range": f"bytes */{len(data)}"})
        rest = data[start:]
        span = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
        sent = hub.body(file, start, rest)
        length = None if hub.without_length else len(rest)
        self._head(206 if start else 200, length, {**(headers or {}), **span})
        if self.command == "HEAD":
            return None
        for at in range(0, len(sent or b""), 1 << 14):
            self.wfile.write((sent or b"")[at : at + (1 << 14)])
            time.sleep(hub.seconds_per_piece)
        if sent is None or len(sent) != len(rest):
            self.close_connection = True
        return None

    def _head(self, status: int, length: int | None, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if length is None:
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def _json(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self._head(200, len(data), {"Content-Type": "application/json"})
        if self.command != "HEAD":
            self.wfile.write(data)

    def _refuse(self, status: int, code: str) -> None:
        self._head(
            status, 0, {"X-Error-Code": code, "X-Error-Message": f"\x1b[31m{code}"[5:]} if code else {}
        )


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *request: Any) -> None:
        """A client that was killed is no error of the server."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(*request)


def use(hub: Hub, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process and its children ask this Hub, with their caches below `home`."""
    for variable in [name for name in os.environ if name.startswith(("HF_", "HUGGING"))]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HF_HOME", str(home / "hf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "own"))
    monkeypatch.setenv("HF_ENDPOINT", hub.url)


@contextlib.contextmanager
def serve() -> Iterator[Hub]:
    """A Hub and, on a second address, the host that it redirects large files to."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    servers = [_Server(("127.0.0.1", 0), handler) for _ in range(2)]
    hub.url = f"http://127.0.0.1:{servers[0].server_port}"
    hub.cdn = f"http://localhost:{servers[1].server_port}"
    for server in servers:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
