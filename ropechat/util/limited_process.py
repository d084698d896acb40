"""Untrusted work in a child process whose time and memory are limited; `limited_child` is the child's side.

A process is started on demand, restarted if it dies, and ends with this one: at exit, or at the end of its
input if this process is killed. All threads share it, one request at a time. A forked child starts its own.
"""

import atexit
import contextlib
import json
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ropechat.errors import FileAccessError, InternalError
from ropechat.util.limited_child import HEAD_BYTES

if TYPE_CHECKING:
    import subprocess


class LimitExceededError(Exception):
    """The work was given up. kind: "limit", or "stopped" (killed or starved from outside)."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(what)
        self.kind = kind
        self.what = what


class _DiedError(Exception):
    """The process ended or sent an invalid reply."""


class LimitedProcess:
    """A child process that answers requests, which are bytes, by JSON objects; `start` is optional.

    module: its `serve()` is the child's program. packages: installed packages that it imports. what: it does,
    for messages. wall_seconds: for a process that is stopped or starved; any other one reaches its limit of
    CPU time first. greeting: a request that each new process gets first, and its limit of CPU time; if its
    reply has an "error", that is the reply.
    """

    def __init__(
        self,
        module: str,
        packages: Sequence[str],
        what: str,
        *,
        wall_seconds: float,
        max_reply: int,
        greeting: tuple[bytes, float] | None = None,
    ) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.wall_seconds = wall_seconds
        self._module = module
        self._packages = packages
        self._what = what
        self._max_reply = max_reply
        self._greeting = greeting
        self._lock = threading.Lock()
        self._is_greeted = False
        self._to = self._from = -1
        _all.add(self)

    @property
    def pid(self) -> int | None:
        """The running process, if there is one."""
        process = self._process
        return None if process is None else process.pid

    def start(self) -> None:
        """Start the process if none runs, without waiting for it."""
        with self._lock:
            self._ensure()

    def ask(self, request: bytes, cpu_seconds: float) -> dict[str, Any]:
        """The reply to a request. cpu_seconds: the child's limit, for the message.

        A reply whose "kind" is "limit" ends the process, as its state is unreliable after a MemoryError.
        Raises LimitExceededError, FileAccessError if no process can be started, InternalError.
        """
        with self._lock:
            self._ensure()
            limit = cpu_seconds
            try:
                reply: dict[str, Any] = {}
                if not self._is_greeted and self._greeting is not None:
                    first, limit = self._greeting
                    reply = self._exchange(first)
                self._is_greeted = "error" not in reply
                if self._is_greeted:
                    limit = cpu_seconds
                    reply = self._exchange(request)
            except TimeoutError:
                self._end()
                raise LimitExceededError(
                    "stopped", f"did not finish within {self.wall_seconds:g} s"
                ) from None
            except _DiedError:
                self._explain(self._end(patience=1.0), limit)
            except BaseException:  # Ctrl-C: a late reply would be taken for that of the next request
                self._end()
                raise
            if reply.get("kind") == "limit":
                self._end()
        return reply

    def close(self) -> None:
        """End the process, also during a request."""
        process = self._process
        if process is not None:
            process.kill()
        if self._lock.acquire(timeout=1):
            try:
                self._end()
            finally:
                self._lock.release()

    def __del__(self) -> None:
        self._end()

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
        code = f"import sys; sys.path += sys.argv[1:]; from {self._module} import serve; serve()"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-X", "utf8", "-c", code, *_folders(self._packages)],
                stdin=child_reads,
                stdout=child_writes,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                start_new_session=True,  # no terminal, and no Ctrl-C
            )
            self._is_greeted = False
        except OSError as error:
            raise FileAccessError(
                f"{sys.executable}: cannot start the process that {self._what}: {error.strerror}"
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
        deadline = time.monotonic() + self.wall_seconds
        for part in (len(data).to_bytes(HEAD_BYTES, "big"), data):
            view = memoryview(part)
            while view:
                _wait(self._to, deadline, to_write=True)
                try:
                    view = view[os.write(self._to, view) :]
                except BrokenPipeError:
                    raise _DiedError from None
        size = int.from_bytes(self._receive(HEAD_BYTES, deadline), "big")
        if size > self._max_reply:
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

    def _explain(self, code: int, cpu_seconds: float) -> NoReturn:
        if code == -signal.SIGPROF:
            raise LimitExceededError("limit", f"must take at most {cpu_seconds:g} s of CPU time")
        if code > 0:
            raise InternalError(
                f"the process that {self._what} ended with exit code {code}; reinstall ropechat"
            )
        if code == -signal.SIGKILL:
            raise LimitExceededError("stopped", f"the process that {self._what} was killed; try again")
        name = signal.Signals(-code).name if code else "without a reply"
        raise LimitExceededError(
            "limit", f"ended the process that {self._what} ({name}) by exceeding a limit"
        )


def _folders(packages: Sequence[str]) -> list[str]:
    """The folders of ropechat and of these packages, the child's only ones but the standard library."""
    from importlib.util import find_spec

    folders = [str(Path(__file__).resolve().parents[2])]
    for name in packages:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise InternalError(f"{name}: not installed; reinstall ropechat")
        folder = str(Path(spec.origin).parent.parent)
        if folder not in folders:
            folders.append(folder)
    return folders


def _wait(descriptor: int, deadline: float, *, to_write: bool = False) -> None:
    import select  # imported here: only a running process needs it

    poll = select.poll()
    poll.register(descriptor, select.POLLOUT if to_write else select.POLLIN)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError


_all: "weakref.WeakSet[LimitedProcess]" = weakref.WeakSet()


def _forget_all() -> None:
    for process in list(_all):
        process.forget()


def _close_all() -> None:
    for process in list(_all):
        process.close()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_all)
