"""Locks that tell which program owns an unfinished answer.

Each program locks its own file; the system releases the lock when the program ends. So a program has
ended exactly if its file is missing or can be locked. Unlike a process id, a lock cannot be reused by another
program. `filelock` would not be simpler: releasing and taking a name must also unlink the file safely.
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
    """The lock of this program, until released."""

    def __init__(self, folder: Path) -> None:
        """Create and lock a file in `folder`. Raises FileAccessError, OSError."""
        private_folder(folder)
        self._folder = folder
        while not self._take():
            pass

    def _take(self) -> bool:
        """Create and lock a file; False if another program removed it in between."""
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
        """Remove the file and release the lock."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        with contextlib.suppress(OSError):
            os.close(self._number)


def is_running(folder: Path, name: str) -> bool:
    """Whether the program with this lock is running; removes the file of an ended one."""
    path = folder / Path(name).name
    try:
        number = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        _lock(number)
        with contextlib.suppress(OSError):
            path.unlink()  # while locked, so that a program that just created it notices
    except OSError:
        return True
    finally:
        os.close(number)
    return False


def has_others(folder: Path, own: str) -> bool:
    """Whether another program is using the same conversations."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return any(is_running(folder, name) for name in names if name != own)
