"""Work in a thread of its own while the caller does something else. A leaf: imports nothing of ours."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """Begins `work` at once; `result` waits for it.

    Its thread is a daemon where the caller's is: a program does not end in the middle of compiled code.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ropechat-beside")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:  # raised again where the result is wanted
            self._error = error

    def result(self) -> T:
        """What `work` returned. Raises what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value
