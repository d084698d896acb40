"""Lines of a pipe or terminal, and whether the next one is there."""

import os
import select
from typing import IO

_CHUNK = 1 << 16
_MOST_AHEAD = 1 << 20
"""How much of a line `has_line` reads; the end of a longer one is waited for."""


class PipeReader:
    """Reads the lines of a stream by its descriptor.

    A buffered stream cannot say whether `readline` would block: it may have read the next line already.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream  # kept, so that the descriptor stays open
        self._buffer = bytearray()
        self._ended = False

    def fileno(self) -> int:
        """The descriptor. Raises OSError if the stream has none."""
        return self._stream.fileno()

    def _fill(self) -> None:
        data = os.read(self.fileno(), _CHUNK)
        self._ended = not data
        self._buffer += data

    def has_line(self) -> bool:
        """Whether the next line is there, or so much of it that its end is worth waiting for."""
        while not self._ended and b"\n" not in self._buffer and len(self._buffer) < _MOST_AHEAD:
            if not select.select([self.fileno()], [], [], 0)[0]:
                return False
            self._fill()
        return True

    def readline(self, limit: int) -> bytes:
        """The next line with its newline, or its first `limit` bytes; b"" at the end. Blocks."""
        searched = 0
        while not self._ended and len(self._buffer) < limit and self._buffer.find(b"\n", searched) < 0:
            searched = len(self._buffer)
            self._fill()
        end = self._buffer.find(b"\n", 0, limit) + 1 or limit
        line = bytes(self._buffer[:end])
        del self._buffer[:end]
        return line
