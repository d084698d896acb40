"""Locks that tell which program owns an unfinished answer.

Each program locks its own file; the system releases the lock when the program ends. So a program has
ended exactly if its file is missing or can be locked. Unlike a process id, a lock cannot be reused by another
program. `filelock` would not be simpler: releasing and taking a name must also unlink the file safely.
"""

import contextlib
import os
import re
import secrets
from pathlib import Path

from ropechat.store.files import private_folder
from ropechat.util.files import try_lock

_BYTES = 8  # of a random name
_NAME = re.compile(f"[0-9a-f]{{{2 * _BYTES}}}")


class ProcessLock:
    """The lock of this program, until released. Removes the files of ended programs.

    fault: why the folder's file system cannot lock; then there is no lock, and the name is "".
    """

    def __init__(self, folder: Path) -> None:
        """Create and lock a file in `folder`. Raises FileAccessError, OSError."""
        private_folder(folder)
        self._folder = folder
        self.name, self.fault = "", ""
        while not (self._take() or self.fault):
            pass
        if not self.fault:
            has_others(folder, self.name)

    def _take(self) -> bool:
        """Create and lock a file; False if another program removed it in between, or with a `fault`."""
        name = secrets.token_hex(_BYTES)
        path = self._folder / name
        number = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            if try_lock(number) and _is_at(path, number):
                self.name, self._path, self._number = name, path, number
                return True
        except OSError as error:
            self.fault = error.strerror or str(error)
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(number)
        return False

    def release(self) -> None:
        """Remove the file and release the lock."""
        if self.name:
            with contextlib.suppress(OSError):
                self._path.unlink()
            with contextlib.suppress(OSError):
                os.close(self._number)


def _is_at(path: Path, number: int) -> bool:
    """Whether an open file is still at its path."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_ino == os.fstat(number).st_ino
    return False


def is_running(folder: Path, name: str) -> bool:
    """Whether the program with this lock is running; removes the file of an ended one."""
    path = folder / Path(name).name
    try:
        number = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        if not try_lock(number):
            return True
        with contextlib.suppress(OSError):
            path.unlink()  # while locked, so that a program that just created it notices
    except OSError:
        return True
    finally:
        os.close(number)
    return False


def has_others(folder: Path, own: str) -> bool:
    """Whether another program is using the same conversations; removes the files of ended ones."""
    names = [path.name for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    running = [is_running(folder, name) for name in names if name != own]
    return any(running)
