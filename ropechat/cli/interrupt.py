"""Ending signals during a computation."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
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


@dataclass
class Stop:
    """Whether an ending signal has arrived, and how many tokens had been scored."""

    arrived: bool = False
    tokens: int = 0


@contextlib.contextmanager
def finish_on_signal(engine: "Engine") -> Iterator[Stop]:
    """As `cancel_on_signal`, but the handler of the first signal runs after the body.

    So the body can complete its output with what is computed; it must end when the signal has arrived. A
    second signal ends it at once.
    """
    stop, before, first = Stop(), dict[int, Callable[[int, FrameType | None], object]](), list[int]()

    def hold(number: int, frame: FrameType | None) -> None:
        if stop.arrived:
            before[number](number, frame)
        stop.arrived = True
        first.append(number)

    try:
        for number in _ENDING:
            if callable(handler := signal.getsignal(number)):
                before[number] = handler
                signal.signal(number, hold)
    except ValueError:  # not the main thread: signals are handled elsewhere
        yield stop
        return
    try:
        with cancel_on_signal(engine):
            yield stop
    finally:
        for held, handler in before.items():
            signal.signal(held, handler)
    if stop.arrived:
        before[first[0]](first[0], None)
