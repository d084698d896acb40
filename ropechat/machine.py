"""What this machine has left: memory and disk. A leaf: imports nothing of ours."""

import contextlib
import os
import shutil
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def _number(path: Path) -> int | None:
    """A cgroup file's number; None for `max` and where there is none."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None


def free_memory() -> int | None:
    """Bytes that can be had without swapping: the least of MemAvailable and what the cgroup leaves.

    None where the system does not say. Source: Linux, Documentation/filesystems/proc.rst, cgroup-v2.rst.
    """
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    fields = [line.split() for line in lines if line.startswith("MemAvailable:")]
    if not fields:
        return None
    free = int(fields[0][1]) * 1024
    limit, used = _number(_CGROUP / "memory.max"), _number(_CGROUP / "memory.current")
    return free if limit is None else min(free, max(0, limit - (used or 0)))


def free_disk(path: Path) -> int:
    """Bytes free where `path` lies or would lie. Raises OSError."""
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def give_back_memory() -> None:
    """Ask the C library to return what was freed to the system; glibc keeps it otherwise."""
    import ctypes  # 4 ms

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
