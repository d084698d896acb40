"""Items that arrive while earlier ones are in progress."""

import queue
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Arrivals(Generic[T]):
    """A queue for `Engine.generate_many`: it yields None while no item is waiting but others are in progress.

    Thread-safe: any thread may `put`, one reads.
    """

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._first: T | None = None

    def put(self, item: T) -> None:
        """Add an item."""
        self._items.put(item)

    def close(self) -> None:
        """Let `wait` end, once it has returned the items added before."""
        self._items.put(None)

    def wait(self) -> bool:
        """Block until there is an item to `take`; False once closed."""
        self._first = self._items.get()
        return self._first is not None

    def take(self, is_busy: Callable[[], bool]) -> Iterator[T | None]:
        """Yield the items as they arrive, after `wait`; end when none is waiting and none is in progress.

        is_busy: whether yielded items are in progress. While it says so, None stands for "none now".
        """
        item = self._first
        while item is not None:
            yield item
            while True:
                try:
                    item = self._items.get_nowait()
                    break
                except queue.Empty:
                    if not is_busy():
                        return
                    yield None
        self.close()  # for `wait`
