"""A small process that restores the terminal if this one is killed or crashes in native code."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# No reports of mouse, focus and pastes; usual keys; the main screen, a cursor, wrapped lines, no style.
_MODES = (1000, 1002, 1003, 1006, 1015, 1004, 2004, 2026)
_RESET = "".join(f"\\033[?{mode}l" for mode in _MODES) + "\\033[<u\\033[?1049l\\033[?25h\\033[?7h\\033[0m"
_SCRIPT = f"""
saved=$(stty -g <&2)
echo
read -r word && exit
[ -n "$saved" ] && stty "$saved" $1 <&2
printf '{_RESET}' >&2
"""


@contextmanager
def watch_terminal(terminal: int, cleared_flags: str = "") -> Iterator[None]:
    """Restore the terminal if this process ends within the block. Does nothing without /bin/sh.

    cleared_flags: arguments for stty: the flags that were set before the terminal was held.
    """
    try:
        watcher = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "sh", cleared_flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=terminal,
            start_new_session=True,  # a signal to the group of this process must not end it
        )
    except OSError:
        yield
        return
    with watcher:
        assert watcher.stdin is not None
        assert watcher.stdout is not None
        watcher.stdout.readline()  # it has saved the state of the terminal
        try:
            yield
        finally:
            with suppress(OSError):
                watcher.stdin.write(b"left\n")
                watcher.stdin.flush()
