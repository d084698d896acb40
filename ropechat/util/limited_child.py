"""The child's side of a limited process: untrusted work within limits that the kernel enforces.

The child has no files, network, environment or terminal, and is killed when it exceeds a limit. Requests are
read from descriptor 0, replies are written to 1; the end of the input ends the process. Limits that a system
does not support are skipped (macOS has no RLIMIT_AS); CPU time is always limited.
"""

import contextlib
import os
import resource
import signal
from collections.abc import Callable, Iterator

HEAD_BYTES = 4
"""Each message is its length, big-endian, followed by its bytes."""


def begin() -> None:
    """Ignore the terminal's signals; the parent decides when this process ends."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGPIPE, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)  # the parent may ignore or block them
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})


def lock_down(memory_bytes: int, *, threads: bool = False) -> None:
    """Forbid new files, sockets, processes and writes to disk.

    memory_bytes: limit of address space in addition to what is in use. threads: allow new threads, which
    Linux counts as processes.
    """
    import unicodedata  # noqa: F401  errors import it late, when no file can be opened

    used = _address_space()
    limits = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": 0, "RLIMIT_NOFILE": 0}
    if not threads:
        limits["RLIMIT_NPROC"] = 0
    if used:
        limits["RLIMIT_AS"] = used + memory_bytes
    for name, value in limits.items():
        number = getattr(resource, name, None)
        if number is not None:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(number, (value, value))


@contextlib.contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """End the process if the block takes more CPU time, by SIGPROF.

    A timer with an uncaught signal ends the process even during one long operation of a library; unlike
    RLIMIT_CPU it starts again with each request.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def answer_requests(reply: Callable[[bytes], bytes]) -> None:
    """Answer requests until the input ends, then end the process."""
    while (head := _read(HEAD_BYTES)) is not None:
        body = _read(int.from_bytes(head, "big"))
        if body is None:
            break
        data = reply(body)
        _write(len(data).to_bytes(HEAD_BYTES, "big") + data)
    os._exit(0)


def _address_space() -> int:
    """Bytes of address space in use; 0 if unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


def _read(count: int) -> bytes | None:
    pieces = []
    while count:
        piece = os.read(0, min(count, 1 << 20))
        if not piece:
            return None
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
