"""Free disk space, and returning freed memory to the system."""

import contextlib
import os
from pathlib import Path


def free_disk(path: Path) -> int:
    """Free bytes on the filesystem of `path`, which may not exist. Raises OSError."""
    import shutil  # imported here: it loads three compression libraries

    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def trim_heap() -> None:
    """Return freed heap memory to the system; glibc keeps it by default."""
    import ctypes  # imported here: takes 4 ms

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
