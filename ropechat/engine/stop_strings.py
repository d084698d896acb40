"""Text of generated ids, cut before the first stop string."""

from collections.abc import Sequence

from ropechat.tokenizer.stream import Detokenizer


class StopStringFilter:
    """Incremental text of ids, ending before the first stop string.

    Text that may be the start of a stop string is held back. `stopped`: whether a stop string was found.
    """

    def __init__(self, stream: Detokenizer, stops: Sequence[str] = ()) -> None:
        self._stream = stream
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, id: int) -> str:
        """Add an id and return the text that became final."""
        if not self._stops:
            return self._stream.push(id)
        self._held += self._stream.push(id)
        if self._cut(self._held + self._stream.peek()):
            return self._release(len(self._held))
        return self._release(len(self._held) - self._open_length())

    def skip(self, ids: Sequence[int]) -> None:
        """Add ids without returning their text."""
        if self._stops:
            for id in ids:
                self.push(id)
        else:
            self._stream.skip(ids)

    def finish(self) -> str:
        """End the text and return what was held back; an incomplete character becomes U+FFFD."""
        self._held += self._stream.flush()
        self._cut(self._held)
        return self._release(len(self._held))

    def _release(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        return text

    def _cut(self, text: str) -> bool:
        """Whether `text` contains a stop string; if so, hold only the text before the first one."""
        found = [at for at in map(text.find, self._stops) if at >= 0]
        if found:
            self._held = text[: min(found)]
            self.stopped = True
        return bool(found)

    def _open_length(self) -> int:
        """Length of the longest suffix of the held text that is a prefix of a stop string."""
        longest = min(len(self._held), max(map(len, self._stops)) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0
