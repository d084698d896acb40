"""Text cut before the first stop string."""

from collections.abc import Sequence


class StopStringFilter:
    """Incremental text, ending before the first stop string.

    Text that may be the start of a stop string is held back. `stopped`: whether a stop string was found.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self.stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str, incomplete: str = "") -> str:
        """Add text and return what became final. incomplete: what follows if nothing else comes."""
        if not self.stops:
            return text
        self._held += text
        if self._cut(self._held + incomplete):
            return self._release(len(self._held))
        return self._release(len(self._held) - open_length(self._held, self.stops))

    def finish(self, text: str) -> str:
        """End the text and return what was held back."""
        self._held += text
        self._cut(self._held)
        return self._release(len(self._held))

    def _release(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        return text

    def _cut(self, text: str) -> bool:
        """Whether `text` contains a stop string; if so, hold only the text before the first one."""
        found = [at for at in map(text.find, self.stops) if at >= 0]
        if found:
            self._held = text[: min(found)]
            self.stopped = True
        return bool(found)


def open_length(text: str, stops: Sequence[str]) -> int:
    """Length of the longest suffix of a text that is a prefix of one of `stops`, and not all of it."""
    longest = min(len(text), max(map(len, stops)) - 1)
    for length in range(longest, 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return length
    return 0
