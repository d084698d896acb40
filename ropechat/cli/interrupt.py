"""Ending signals during a computation."""

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine

_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


_APART = 0.3
"""Seconds between a first and a second signal; `timeout` and terminals may send one signal twice."""
_GRACE = 1.0
"""Seconds that a command has after a second signal, before its process is ended."""


class SignalWatch:
    """A thread that hears of ending signals while the main thread waits in compiled code.

    Python runs handlers between bytecodes of the main thread only, and one call of a large model takes
    seconds. calls: made when a signal arrives. After a second signal the process ends within `_GRACE`.
    """

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []
        self._first: float | None = None

    def watch(self, read: int) -> None:
        """Read signals from the descriptor until its other end is closed."""
        while numbers := os.read(read, 64):
            for number in _ENDING.intersection(numbers):
                for call in tuple(self.calls):
                    call()
                now = time.monotonic()
                self._first = self._first or now
                if now - self._first > _APART:
                    if not select.select([read], [], [], _GRACE)[0] or os.read(read, 64):
                        os._exit(128 + number)
                    return


_active: list[SignalWatch] = []


@contextlib.contextmanager
def signals_watched() -> Iterator[SignalWatch]:
    """Have a watch; a nested call has the same one. Outside the main thread no signal is heard of."""
    if _active:
        yield _active[-1]
        return
    made = SignalWatch()
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    except ValueError:  # not the main thread: signals are handled elsewhere
        os.close(read)
        os.close(write)
        yield made
        return
    watcher = threading.Thread(target=made.watch, args=(read,), name="ropechat-signals", daemon=True)
    watcher.start()
    _active.append(made)
    try:
        yield made
    finally:
        _active.remove(made)
        signal.set_wakeup_fd(before)
        os.close(write)
        watcher.join()
        os.close(read)


@contextlib.contextmanager
def cancel_on_signal(engine: "Engine") -> Iterator[None]:
    """Cancel the engine's requests as soon as an ending signal arrives; its handler then runs as usual."""
    with signals_watched() as watch:
        watch.calls.append(engine.cancel)
        try:
            yield
        finally:
            watch.calls.remove(engine.cancel)


@dataclass
class Stop:
    """Whether an ending signal has arrived, and how much was done: tokens that were scored, unless named."""

    arrived: bool = False
    tokens: int = 0
    noun: str = "token"


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
