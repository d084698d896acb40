"""Items that arrive while earlier ones are in progress."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Arrivals(Generic[T]):
    """A queue for `Engine.generate_many`: it yields None while no item is waiting but others are in progress.

    Items are taken in the order in which they came; of several lanes one item each in turn, so that a lane
    with many items does not delay the others. Thread-safe: any thread may `put`, one reads.
    """

    def __init__(self) -> None:
        self._lanes: OrderedDict[Hashable, deque[T]] = OrderedDict()
        self._changed = threading.Condition()
        self._closed = False
        self._first: T | None = None

    def put(self, item: T, lane: Hashable = None) -> bool:
        """Add an item; return whether it is taken: not once closed."""
        with self._changed:
            if not self._closed:
                self._lanes.setdefault(lane, deque()).append(item)
                self._changed.notify()
            return not self._closed

    @property
    def is_empty(self) -> bool:
        """Whether no item is waiting."""
        return not self._lanes

    def drop(self, lane: Hashable = None) -> list[T]:
        """Remove and return the items of a lane that are waiting."""
        with self._changed:
            return list(self._lanes.pop(lane, ()))

    def close(self, *, drop: bool = False) -> list[T]:
        """Let `wait` end, once it has returned the items added before; drop: return these here instead."""
        with self._changed:
            dropped = [item for items in self._lanes.values() for item in items] if drop else []
            if drop:
                self._lanes.clear()
            self._closed = True
            self._changed.notify()
            return dropped

    def wait(self) -> bool:
        """Block until there is an item to `take`; False once closed."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._lanes) or self._closed)
            self._first = self._next()
            return self._first is not None

    def take(self, is_busy: Callable[[], bool]) -> Iterator[T | None]:
        """Yield the items as they arrive, after `wait`; end when none is waiting and none is in progress.

        is_busy: whether yielded items are in progress. While it says so, None stands for "none now".
        """
        item, self._first = self._first, None
        while item is not None:
            yield item
            while True:
                with self._changed:
                    item, closed = self._next(), self._closed
                if item is not None or closed:
                    break
                if not is_busy():
                    return
                yield None

    def _next(self) -> T | None:
        """Take the next item; None without one."""
        if not self._lanes:
            return None
        lane, items = next(iter(self._lanes.items()))
        item = items.popleft()
        if items:
            self._lanes.move_to_end(lane)
        else:
            del self._lanes[lane]
        return item
