"""A function call in a background thread."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """Runs `work` in a new thread; `result` waits for it.

    The thread is a daemon only if the caller's is: the interpreter must not exit during compiled code.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ropechat-beside")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:  # raised by `result`
            self._error = error

    def result(self) -> T:
        """Wait and return what `work` returned, or raise what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value
