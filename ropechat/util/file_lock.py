"""Locks of open files against other programs; the system releases them when a program ends."""

import errno
import fcntl

_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


def try_lock(descriptor: int) -> bool:
    """Lock an open file; False if another program holds its lock.

    Raises OSError where files cannot be locked, as on Lustre without `-o flock`.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return False
        raise
    return True
