"""Computations that end before their time with what is there: by a watcher, or stopped from any thread."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

from ropechat.errors import CancelledError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ropechat.engine.engine import Engine


class Watcher:
    """What a computation tells to whom it is of interest; the methods of this class do nothing."""

    @property
    def is_stopped(self) -> bool:
        """Whether the computation was stopped on purpose, so that its result is what is there."""
        return False

    def note(self, text: str) -> None:
        """Called with notes, such as what the computation will cost, and that a part of it failed."""


class Stoppable:
    """Base of a computation that the thread of an engine runs. name: in the error of one that was stopped."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = Lock()
        self._engine: Engine | None = None  # while this computes
        self._is_stopped = False

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped, and not resumed."""
        return self._is_stopped

    @property
    def runs(self) -> bool:
        """Whether the engine's thread is at it."""
        return self._engine is not None

    @contextmanager
    def running(self, engine: Engine) -> Iterator[None]:
        """Compute with an engine. Raises CancelledError after `stop`."""
        with self._lock:
            self.check()
            self._engine = engine
        try:
            yield
        finally:
            with self._lock:
                self._engine = None

    def stop(self) -> None:
        """End the computation within one layer of the model, or keep it from beginning; from any thread.

        Other requests of the engine continue: the thread of this one runs no other at the same time.
        """
        with self._lock:
            self._is_stopped = True
            if self._engine is not None:
                self._engine.cancel()

    def resume(self) -> None:
        """Let it compute again after `stop`."""
        self._is_stopped = False

    def check(self) -> None:
        """Raise CancelledError after `stop`."""
        if self._is_stopped:
            raise CancelledError(f"{self._name}: stopped")
