"""Ending signals during a computation."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine

_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


@contextlib.contextmanager
def cancel_on_signal(engine: "Engine") -> Iterator[None]:
    """Cancel the engine's requests as soon as an ending signal arrives; its handler then runs as usual.

    Python runs handlers between bytecodes of the main thread only, and a pass over a long prompt of a large
    model takes seconds.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    except ValueError:  # not the main thread: signals are handled elsewhere
        os.close(read)
        os.close(write)
        yield
        return

    def watch() -> None:
        while numbers := os.read(read, 64):
            if not _ENDING.isdisjoint(numbers):
                engine.cancel()

    watcher = threading.Thread(target=watch, name="ropechat-signals", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(write)
        watcher.join()
        os.close(read)
