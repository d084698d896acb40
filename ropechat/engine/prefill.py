"""Reading a text into the KV cache before it is asked about."""

from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from ropechat.errors import CancelledError

if TYPE_CHECKING:
    from ropechat.engine import _core
    from ropechat.engine.inside import RequestLike


class Prefill:
    """A text that is read a forward pass at a time, for a later request that begins with it.

    done, total: tokens that are cached, and all of the text but the last one, which the request computes.
    `cancel` may be called from any thread.
    """

    def __init__(self, request: "RequestLike", ids: Sequence[int]) -> None:
        self._request, self._core, self._ids = request, request.core, list(ids)
        self.total = max(0, len(self._ids) - 1)
        self.done = self._count()
        self._sequence: int | None = None

    def _count(self) -> int:
        return min(self._core.cached(self._ids), self.total)

    def take(self, path: Path) -> str | None:
        """Take what a file has of the text. Returns why not all of the file could be used.

        Raises MemoryLimitError.
        """
        if self.done >= self.total:
            return None
        try:
            return self._core.take_prefix(self._ids, path, self._request.token)
        except CancelledError:
            return None
        finally:
            self.done = self._count()

    def step(self) -> bool:
        """Run one forward pass. Returns False when all is read, or after `cancel`.

        Raises MemoryLimitError, NonFiniteError.
        """
        core, token = self._core, self._request.token
        if self.done >= self.total or token.cancelled:
            return False
        if self._sequence is None:
            self._sequence = core.score(self._ids, readout_top_k=0, start=self.total, read_next=False)
        try:
            events = core.step([self._sequence], token)
        except CancelledError:
            return False
        self.done = max([self.done, *(event.done for event in events if event.kind == "prefill")])
        return bool(events) and self.done < self.total

    def keep(self) -> "_core.KeptPrefix | None":
        """What is cached of the text, to be written to a file; None for nothing, or without a disk cache."""
        return self._core.kept_prefix(self._ids)

    def cancel(self) -> None:
        """End a forward pass within one layer."""
        self._request.token.cancel()

    def close(self) -> None:
        """Give what was read to later requests."""
        if self._sequence is not None:
            self._core.free(self._sequence)
            self._sequence = None


def common_prefix(first: Iterable[int], second: Iterable[int]) -> list[int]:
    """The ids with which both begin."""
    return [id for id, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))]
