"""Reading a text into the KV cache before a request needs it."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from ropechat.errors import CancelledError, MemoryLimitError
from ropechat.util.kv_files import LEAST_KEPT

if TYPE_CHECKING:
    from ropechat.engine import _core
    from ropechat.engine.native import Request


class Prefill:
    """A text that is read a forward pass at a time, for a later request that begins with it.

    done, total: tokens that are cached, and all of the text but the last one, which the request computes.
    `cancel` may be called from any thread.
    """

    def __init__(self, request: "Request", ids: Sequence[int]) -> None:
        self._request, self._core, self._ids = request, request.core, list(ids)
        self.total = max(0, len(self._ids) - 1)
        self.done = self._count()
        self._sequence: int | None = None

    def _count(self) -> int:
        return min(self._core.cached(self._ids), self.total)

    def take(self, path: Path) -> str | None:
        """Load the part of the text that a file has. Returns why not all of the file could be used.

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
        """The cached part of the text, to write to a file; None if it is empty, or without a disk cache."""
        return self._core.kept_prefix(self._ids)

    def write(self, path: Path, total: int) -> int:
        """Write the cached part of the text; return its number of tokens, 0 if there is no file.

        total: as for `KeptPrefix.write`. Raises FileAccessError.
        """
        prefix = self.keep()
        if prefix is None or prefix.tokens < LEAST_KEPT:
            return 0
        return prefix.tokens if prefix.write(path, self._request.token, total=total) else 0

    def cancel(self) -> None:
        """End a forward pass within one layer."""
        self._request.token.cancel()

    def close(self) -> None:
        """Release the text, so that later requests can use its blocks."""
        if self._sequence is not None:
            self._core.free(self._sequence)
            self._sequence = None


class SharedPrefix:
    """The common prefix of the texts that an engine reads: loaded from a file, written to it at the end."""

    def __init__(self, begin: Callable[[Sequence[int]], Prefill], path: Path) -> None:
        """begin: `Engine.begin_prefill`. path: the file, which may not exist."""
        self._begin, self._path = begin, path
        self._ids: list[int] | None = None
        self.note: str | None = None
        """Why not all of the file could be used."""

    def add(self, ids: Sequence[int]) -> None:
        """Record the prefix of a text before it is read."""
        if self._ids is None:
            self._ids = list(ids)
            with suppress(MemoryLimitError):  # the text is then read
                self.note = self._begin(ids).take(self._path)
        elif ids[: len(self._ids)] != self._ids:
            self._ids = common_prefix(self._ids, ids)

    def keep(self, total: int) -> int:
        """Write the file; return how many tokens are in it. total: bytes of all such files at most.

        Returns 0 if nothing is written: too few tokens, no room on the disk, or cancelled. Raises
        FileAccessError.
        """
        return self._begin(self._ids).write(self._path, total) if self._ids else 0


def common_prefix(first: Iterable[int], second: Iterable[int]) -> list[int]:
    """The common prefix of both."""
    return [id for id, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))]
