"""The client of the renderer process (`sandbox`): one process for all chat templates, started on demand.

It is shared by all threads (one rendering at a time), restarted if it dies, and ends with this process: at
exit, or at the end of its input if this process is killed. A forked child starts its own.
"""

import atexit
import contextlib
import datetime
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ropechat.engine.templates.limits import (
    CPU_SECONDS,
    HEAD_BYTES,
    MAX_OUTPUT_BYTES,
    MAX_REQUEST_BYTES,
    WALL_SECONDS,
)
from ropechat.errors import FileAccessError, InternalError
from ropechat.util.text import limit_words

if TYPE_CHECKING:
    import subprocess

_LAUNCH = "import sys; sys.path += sys.argv[1:]; from ropechat.engine.templates.sandbox import serve; serve()"
_PACKAGES = ("jinja2", "markupsafe")
_MAX_REPLY = 6 * MAX_OUTPUT_BYTES + 1024  # ASCII JSON takes up to 6 bytes per UTF-8 byte


class TemplateFailureError(Exception):
    """A rendering failed. line: in the template.

    kind: "raised" (the template rejects the messages), "failed", "limit", or "stopped" (killed from outside).
    """

    def __init__(self, kind: str, what: str, line: int | None = None) -> None:
        super().__init__(what)
        self.kind = kind
        self.what = what
        self.line = line


class _DiedError(Exception):
    """The process ended or sent an invalid reply."""


def _library_folders() -> list[str]:
    """The folders of ropechat and jinja2, the only ones on the process's path but the standard library."""
    from importlib.util import find_spec

    folders = [str(Path(__file__).resolve().parents[3])]
    for name in _PACKAGES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise InternalError(f"{name}: not installed; reinstall ropechat")
        folder = str(Path(spec.origin).parent.parent)
        if folder not in folders:
            folders.append(folder)
    return folders


class TemplateProcess:
    """A renderer process; `start` is optional."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._to = self._from = -1

    @property
    def pid(self) -> int | None:
        """The running process, if there is one."""
        process = self._process
        return None if process is None else process.pid

    def start(self) -> None:
        """Start the process if none runs, without waiting for it."""
        with self._lock:
            self._ensure()

    def render(
        self, source: str, names: Mapping[str, Any] | None, now: datetime.datetime, *, strict: bool = False
    ) -> str:
        """Render a template with these variables (JSON values). `now`: the time of strftime_now.

        names: None compiles the template only, and returns the names that it uses, separated by spaces.
        strict: an undefined variable is a failure.
        Raises TemplateFailureError, FileAccessError if no process can be started, InternalError.
        """
        request = {
            "source": source,
            "names": None if names is None else dict(names),
            "now": now.isoformat(),
            "strict": strict,
        }
        data = json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass")
        if len(data) > MAX_REQUEST_BYTES:
            limit = f"messages {limit_words(MAX_REQUEST_BYTES, len(data))}"
            raise TemplateFailureError("limit", limit)
        with self._lock:
            self._ensure()
            try:
                reply = self._exchange(len(data).to_bytes(HEAD_BYTES, "big") + data)
            except TimeoutError:
                self._end()
                raise TemplateFailureError("stopped", f"did not finish within {WALL_SECONDS:g} s") from None
            except _DiedError:
                self._explain(self._end(patience=1.0))
            except BaseException:  # Ctrl-C: a late reply would be taken for that of the next request
                self._end()
                raise
            if reply.get("kind") == "limit":
                self._end()  # its state is unreliable after a MemoryError
        text, line = reply.get("text"), reply.get("line")
        if isinstance(text, str):
            return text
        where = line if isinstance(line, int) else None
        raise TemplateFailureError(str(reply.get("kind")), str(reply.get("error")), where)

    def close(self) -> None:
        """End the process, also during a rendering."""
        process = self._process
        if process is not None:
            process.kill()
        if self._lock.acquire(timeout=1):
            try:
                self._end()
            finally:
                self._lock.release()

    def forget(self) -> None:
        """Reset after a fork: the process is the parent's, and the lock may be held by a missing thread."""
        self._lock = threading.Lock()
        if self._process is not None:
            self._process.returncode = 0  # the parent waits for it
            self._process = None
            for descriptor in (self._to, self._from):
                with contextlib.suppress(OSError):
                    os.close(descriptor)

    def _ensure(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._end()
        import subprocess

        child_reads, self._to = os.pipe()
        self._from, child_writes = os.pipe()
        os.set_blocking(self._to, False)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-X", "utf8", "-c", _LAUNCH, *_library_folders()],
                stdin=child_reads,
                stdout=child_writes,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                start_new_session=True,  # no terminal, and no Ctrl-C
            )
        except OSError as error:
            raise FileAccessError(
                f"{sys.executable}: cannot start the process that renders chat templates: {error.strerror}"
            ) from None
        finally:
            os.close(child_reads)
            os.close(child_writes)
            if self._process is None:
                os.close(self._to)
                os.close(self._from)

    def _end(self, patience: float = 0.0) -> int:
        """Kill and reap the process; return its exit status, as Popen.returncode.

        patience: seconds to wait for a process that is already ending, to get its own exit status.
        """
        process, self._process = self._process, None
        if process is None:
            return 0
        if patience:
            import subprocess

            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience)
        process.kill()
        os.close(self._to)
        os.close(self._from)
        return process.wait()

    def _exchange(self, data: bytes) -> dict[str, Any]:
        deadline = time.monotonic() + WALL_SECONDS
        view = memoryview(data)
        while view:
            _wait(self._to, deadline, to_write=True)
            try:
                view = view[os.write(self._to, view) :]
            except BrokenPipeError:
                raise _DiedError from None
        size = int.from_bytes(self._receive(HEAD_BYTES, deadline), "big")
        if size > _MAX_REPLY:
            raise _DiedError
        try:
            reply = json.loads(self._receive(size, deadline))
        except ValueError:
            raise _DiedError from None
        if not isinstance(reply, dict):
            raise _DiedError
        return reply

    def _receive(self, count: int, deadline: float) -> bytes:
        pieces = []
        while count:
            _wait(self._from, deadline)
            piece = os.read(self._from, min(count, 1 << 20))
            if not piece:
                raise _DiedError
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)

    def _explain(self, code: int) -> NoReturn:
        if code == -signal.SIGPROF:
            limit = f"must take at most {CPU_SECONDS:g} s of CPU time"
            raise TemplateFailureError("limit", limit)
        if code > 0:
            raise InternalError(
                f"chat templates: the renderer process ended with exit code {code}; reinstall ropechat"
            )
        if code == -signal.SIGKILL:
            raise TemplateFailureError("stopped", "the renderer process was killed; try again")
        name = signal.Signals(-code).name if code else "without a reply"
        raise TemplateFailureError("limit", f"ended the renderer process ({name}) by exceeding a limit")


def _wait(descriptor: int, deadline: float, *, to_write: bool = False) -> None:
    import select  # imported here: only a running process needs it

    poll = select.poll()
    poll.register(descriptor, select.POLLOUT if to_write else select.POLLIN)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError


SHARED = TemplateProcess()
"""The renderer process of this program."""

atexit.register(SHARED.close)
os.register_at_fork(after_in_child=SHARED.forget)
