"""Room on the disk, and memory that is not needed any more. A leaf: imports nothing of ours."""

import contextlib
import os
from pathlib import Path


def free_disk(path: Path) -> int:
    """Bytes free where `path` lies or would lie. Raises OSError."""
    import shutil  # late: it brings three compression libraries

    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def trim_heap() -> None:
    """Ask the C library to return what was freed to the system; glibc keeps it otherwise."""
    import ctypes  # 4 ms

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
