"""Time that passes only while everything waits for it, and then at once.

A test of the app waits for timers most of its time: pauses, frames, delays after typing. Under `Loop` such
a wait takes no time: when the event loop has nothing to run and no other thread is at work, `now` jumps to
whatever is due next. While something works, (nearly) no time passes, so a busy machine does not change what a
test sees; only for a thread that works longer than `PATIENCE_S` timers go on. They fire in the same order as
in real time.

`install` makes `time.monotonic` this clock, before the modules that read it are imported. A thread counts as
waiting while it is in `Condition.wait` or `Queue.get` of this module; tests put these in place of the
standard ones.
"""

from __future__ import annotations

import asyncio
import queue
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakSet

real = time.monotonic
PATIENCE_S = 0.1  # real seconds
SLOW = 1e-3  # how fast time passes under a loop while something works: intervals are never 0

_lock = threading.Lock()
_time = _since = 0.0  # this clock and the real one when `_rate` or the former changed
_rate = 1.0
_waiting: dict[threading.Thread, tuple[float, Condition]] = {}  # until when, and where
_known: WeakSet[threading.Thread] = WeakSet()  # threads that have waited here
_loop: Loop | None = None  # the one that runs, if any


def now() -> float:
    """Seconds, as `time.monotonic`."""
    return _time + (real() - _since) * _rate


def _set(to: float, rate: float) -> None:
    global _time, _since, _rate
    _time, _since, _rate = to, real(), rate


def install() -> None:
    """Make this clock `time.monotonic` of all modules imported from now on."""
    time.monotonic = now


class Condition(threading.Condition):
    """A condition whose waits last until their time has come on this clock."""

    def wait(self, timeout: float | None = None) -> bool:
        """As `threading.Condition.wait`; it may end earlier."""
        thread, due = threading.current_thread(), float("inf") if timeout is None else now() + timeout
        with _lock:
            _waiting[thread] = due, self
            _known.add(thread)
            loop = _loop
        if loop is not None:
            with suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(int)  # it looks again whether anything is at work
        try:
            super().wait(None if timeout is None else max(0.0, due - now()))
        finally:
            with _lock:
                _waiting.pop(thread, None)
        return now() < due

    def notify(self, n: int = 1) -> None:
        """Wake all; from now on they count as at work."""
        with _lock:
            for thread in [thread for thread, (_, where) in _waiting.items() if where is self]:
                del _waiting[thread]
        super().notify(len(self._waiters))  # type: ignore[attr-defined]


class Queue:
    """What the project uses of `queue.SimpleQueue`."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._changed = Condition()

    def put(self, item: Any) -> None:
        """Add an item; never waits."""
        with self._changed:
            self._items.append(item)
            self._changed.notify()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The oldest item. Raises queue.Empty after `timeout` seconds."""
        end = None if timeout is None else now() + timeout
        with self._changed:
            while not self._items:
                if not block or (end is not None and now() >= end):
                    raise queue.Empty
                self._changed.wait(None if end is None else end - now())
            return self._items.popleft()

    def __class_getitem__(cls, item: object) -> type[Queue]:
        return cls


class _Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Waits for files, and passes the time until then."""

    loop: Loop

    def select(self, timeout: float | None = None) -> list[Any]:
        found: list[Any] = super().select(0)
        end = float("inf") if timeout is None else now() + timeout
        while not found and now() < end:
            due, busy = min(end, _next_due()), self.loop.others_work()
            if busy or due == float("inf"):  # a thread, a file or a signal will end this
                found = super().select(PATIENCE_S if due == float("inf") else max(PATIENCE_S, due - now()))
            if not found and due < float("inf") and (not busy or self.loop.others_work()):
                _jump(due)
        return found


class Loop(asyncio.SelectorEventLoop):
    """An event loop on this clock."""

    def __init__(self) -> None:
        global _loop
        selector = _Selector()
        super().__init__(selector)
        selector.loop = self
        self._calls = 0  # functions that the executor runs
        self._strangers = {thread for thread in threading.enumerate() if thread not in _known}
        _loop = self
        _set(now(), SLOW)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """As usual; time does not jump until it is done."""
        future = super().run_in_executor(executor, func, *args)
        self._calls += 1
        future.add_done_callback(self._called)
        return future

    def _called(self, future: object) -> None:
        self._calls -= 1

    def others_work(self) -> bool:
        """Whether a thread is at work that was not there before this loop, or the executor."""
        with _lock:
            return self._calls > 0 or any(
                thread not in _waiting
                and thread not in self._strangers
                and not thread.name.startswith("asyncio_")
                and not thread.name.endswith("(process_request_thread)")  # of a server that the test runs
                for thread in threading.enumerate()
            )

    def close(self) -> None:
        """Close it; time passes as usual from now on."""
        global _loop
        if _loop is self:
            _loop = None
            _set(now(), 1.0)
        super().close()


def _next_due() -> float:
    with _lock:
        return min((due for due, _ in _waiting.values()), default=float("inf"))


def _jump(due: float) -> None:
    """Make it so late, and wake the threads that waited for it."""
    _set(max(due, now()), _rate)
    with _lock:
        ready = {where for until, where in _waiting.values() if until <= due}
    for where in ready:
        with where:
            where.notify()
