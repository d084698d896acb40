"""A status line on stderr."""

import contextlib
import sys
import time

from ropechat.cli.exit_codes import say
from ropechat.util.text import fit, format_duration

_BAR = 24
_TERMINAL_SECONDS = 0.1
_PLAIN_SECONDS = 5.0


def bar(share: float) -> str:
    """A progress bar for a share from 0 to 1."""
    full = int(share * _BAR)
    return f"[{'█' * full}{'░' * (_BAR - full)}]"


def terminal_width() -> int:
    """The width of the terminal."""
    import shutil  # imported here: it loads three compression libraries

    return shutil.get_terminal_size().columns


def progress_text(
    done: str, share: float | None, *, rate: float, left: float | None = None, failed: int = 0
) -> str:
    """Progress bar, what is done, failures, tokens per second, time left.

    share: from 0 to 1; None if the total is unknown, which leaves out the bar. rate: tokens per second; 0 if
    unknown. left: seconds; None if unknown.
    """
    parts = [done if share is None else f"{bar(share)} {done}"]
    if failed:
        parts.append(f"{failed} failed")
    if rate > 0:
        parts.append(f"{rate:.0f} tok/s")
    if left is not None:
        parts.append(f"ETA {format_duration(left)}")
    return " · ".join(parts)


class StatusLine:
    """Redraws one line on a terminal; elsewhere writes a new line every few seconds."""

    def __init__(self) -> None:
        self.is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._pause = _TERMINAL_SECONDS if self.is_terminal else _PLAIN_SECONDS
        self._shown = time.monotonic() - (self._pause if self.is_terminal else 0)
        self._drawn = False

    @property
    def is_due(self) -> bool:
        """Whether it is time to redraw the line."""
        return time.monotonic() - self._shown >= self._pause

    def show(self, text: str) -> None:
        """Redraw the line; `text` is cut to the terminal's width."""
        self._shown = time.monotonic()
        if not self.is_terminal:
            say(text)
            return
        self._draw("\r" + fit(text, terminal_width() - 1))
        self._drawn = True

    def note(self, text: str) -> None:
        """Clear the line and write a message."""
        self.clear()
        say(text)

    def clear(self) -> None:
        """Clear the line."""
        if self._drawn:
            self._draw("\r" + " " * (terminal_width() - 1) + "\r")
            self._drawn = False

    def _draw(self, text: str) -> None:
        """Write to the terminal, ignoring errors of a closed one."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()
