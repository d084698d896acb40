"""The text side of generation: ids go in one by one, text comes out when it is certain."""

from collections.abc import Sequence

from ropechat.tokenizer.stream import Detokenizer


class StopStringFilter:
    """Incremental text that ends before the first stop string.

    Text that may be the beginning of a stop string is held back. `stopped` is True once one was found.
    """

    def __init__(self, stream: Detokenizer, stops: Sequence[str] = ()) -> None:
        self._stream = stream
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, id: int) -> str:
        """The text that became certain with this id."""
        if not self._stops:
            return self._stream.push(id)
        self._held += self._stream.push(id)
        if self._cut(self._held + self._stream.peek()):
            return self._release(len(self._held))
        return self._release(len(self._held) - self._open_length())

    def skip(self, ids: Sequence[int]) -> None:
        """As `push` of each, for whom their text is of no use."""
        if self._stops:
            for id in ids:
                self.push(id)
        else:
            self._stream.skip(ids)

    def finish(self) -> str:
        """The text that was still held back; half a character becomes U+FFFD."""
        self._held += self._stream.flush()
        self._cut(self._held)
        return self._release(len(self._held))

    def _release(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        return text

    def _cut(self, text: str) -> bool:
        """Whether `text` holds a stop string; then what stands before the first one is all that is held."""
        found = [at for at in map(text.find, self._stops) if at >= 0]
        if found:
            self._held = text[: min(found)]
            self.stopped = True
        return bool(found)

    def _open_length(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = min(len(self._held), max(map(len, self._stops)) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0
