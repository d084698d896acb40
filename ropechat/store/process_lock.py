"""Which running program an unfinished answer belongs to.

Each program holds a lock on a file of its own as long as it lives; the system lets go of it however the
program ends. So an owner is dead exactly when its file is gone or can be locked: no process number that
another may have taken over, no start time that each system tells in another way.
"""

import contextlib
import fcntl
import os
import secrets
from pathlib import Path

from ropechat.store.files import private_folder


def _lock(number: int) -> None:
    fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)


class ProcessLock:
    """This program, as long as it is not released."""

    def __init__(self, folder: Path) -> None:
        """Take a name in `folder`. Raises FileAccessError, OSError."""
        private_folder(folder)
        self._folder = folder
        while not self._take():
            pass

    def _take(self) -> bool:
        """Make a file and lock it; False when another took it for a dead one's in between."""
        self.name = secrets.token_hex(8)
        self._path = self._folder / self.name
        self._number = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        with contextlib.suppress(OSError):
            _lock(self._number)
            if self._path.stat().st_ino == os.fstat(self._number).st_ino:
                return True
        os.close(self._number)
        return False

    def release(self) -> None:
        """Give up the name."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        with contextlib.suppress(OSError):
            os.close(self._number)


def is_running(folder: Path, name: str) -> bool:
    """Is the program of this name still running? The file of a dead one is taken away."""
    path = folder / Path(name).name
    try:
        number = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        _lock(number)
        with contextlib.suppress(OSError):
            path.unlink()  # still locked: a program that is just taking this name sees that it is gone
    except OSError:
        return True
    finally:
        os.close(number)
    return False


def has_others(folder: Path, own: str) -> bool:
    """Does another program use the same conversations now?"""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return any(is_running(folder, name) for name in names if name != own)
