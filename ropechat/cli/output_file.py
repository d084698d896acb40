"""A file that a command writes text to."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from ropechat.errors import FileAccessError


class OutputFile:
    """Writes a file that gets its name when it is complete; a device or pipe is written to directly.

    Every method raises FileAccessError.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._is_direct = path, path.exists() and not path.is_file()
        self._partial = path if self._is_direct else path.with_name(path.name + ".partial")
        self._file: IO[bytes] = self._checked(lambda: self._partial.open("wb"))

    def _checked(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except OSError as error:
            raise FileAccessError(f"{self._partial}: {error.strerror}") from None

    def write(self, text: str) -> None:
        """Write text; to a device or pipe at once."""
        self._checked(lambda: self._file.write(text.encode("utf-8", "replace")))
        if self._is_direct:
            self._checked(self._file.flush)

    def line(self, text: str) -> None:
        """Write a line."""
        self.write(text + "\n")

    def close(self, *, complete: bool) -> None:
        """Give the file its name, or remove an incomplete one, whose last bytes the disk may refuse."""
        try:
            self._checked(self._file.close)
            if complete and not self._is_direct:
                self._checked(lambda: os.replace(self._partial, self._path))
        finally:
            if not complete and not self._is_direct:
                with contextlib.suppress(OSError):
                    self._partial.unlink(missing_ok=True)
