"""Calls from many callers, computed together: each joins the forward passes of those in progress."""

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from ropechat.engine.arrivals import Arrivals
from ropechat.engine.scheduler import Completion, Job, RunState
from ropechat.engine.validation import CLOSED
from ropechat.errors import CancelledError, RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ropechat.engine.engine import Engine

_PATIENCE = 0.1
"""Seconds until a call in progress is cancelled again."""


class Collector:
    """Collects jobs into one window of an engine. Thread-safe.

    window, timeout, on_pass: as for `Engine.generate_many`.
    """

    def __init__(
        self,
        engine: "Engine",
        window: int = 16,
        *,
        timeout: float | None = None,
        on_pass: Callable[[RunState], None] | None = None,
    ) -> None:
        self._engine, self._window = engine, window
        self._timeout, self._on_pass = timeout, on_pass
        self._arrivals = Arrivals[tuple[Job, Future[Completion]]]()
        self._running: dict[int, Future[Completion]] = {}
        self._thread = threading.Thread(target=self._run, name="ropechat-calls", daemon=True)
        self._thread.start()

    def submit(self, job: Job, lane: Hashable = None) -> Future[Completion]:
        """Start a job as soon as there is room; of several lanes one job each in turn.

        The future raises the job's error; once closed it is cancelled.
        """
        future: Future[Completion] = Future()
        if not self._arrivals.put((job, future), lane):
            future.cancel()
        return future

    def drop(self, lane: Hashable) -> None:
        """Cancel the jobs of a lane that have not started."""
        for _, future in self._arrivals.drop(lane):
            future.cancel()

    @property
    def is_idle(self) -> bool:
        """Whether no job waits and none is computed."""
        return not self._running and self._arrivals.is_empty

    def close(self) -> None:
        """Cancel what waits and what is in progress, and end."""
        for _, future in self._arrivals.close(drop=True):
            future.cancel()
        while self._thread.is_alive():  # a call that begins in this moment hears of the next one
            self._engine.cancel()
            self._thread.join(_PATIENCE)

    def _run(self) -> None:
        while self._arrivals.wait():
            try:
                for number, completion in self._engine.generate_many(
                    self._jobs(),
                    window=self._window,
                    ordered=False,
                    timeout=self._timeout,
                    on_pass=self._on_pass,
                ):
                    self._finish(self._running.pop(number), completion)
            except BaseException as error:
                next(self._jobs(), None)  # take the job that waited, if none has begun
                for future in self._running.values():
                    future.set_exception(error)
                self._running.clear()

    def _jobs(self) -> "Iterator[Job | None]":
        number = 0
        for item in self._arrivals.take(lambda: bool(self._running)):
            if item is None:
                yield None
                continue
            job, future = item
            if not future.set_running_or_notify_cancel():
                continue
            if self._engine.is_closed:  # the call in progress may still be ending, cancelled by the close
                future.set_exception(RequestError(CLOSED))
                continue
            self._running[number] = future
            number += 1
            yield job

    @staticmethod
    def _finish(future: "Future[Completion]", completion: Completion) -> None:
        if completion.error is not None:
            future.set_exception(completion.error)
        elif completion.finish_reason == "cancelled":
            future.set_exception(CancelledError("generation: cancelled"))
        else:
            future.set_result(completion)
