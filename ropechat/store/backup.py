"""A weekly copy of the database; the last three are kept."""

import contextlib
import os
import secrets
import sqlite3
import time
from pathlib import Path

from ropechat.store.files import private_file
from ropechat.store.schema import connect
from ropechat.util.files import sync_folder

WEEK = 7 * 24 * 3600.0  # seconds
MAX_COPIES = 3


def list_copies(folder: Path) -> list[Path]:
    """The existing copies, oldest first."""
    return sorted(folder.glob("weekly-*.db"))


def is_due(folder: Path, now: float) -> bool:
    """Whether the newest copy is a week old or missing."""
    found = list_copies(folder)
    return not found or not 0 <= now - found[-1].stat().st_mtime < WEEK


def make_copy(path: Path) -> None:
    """Copy a consistent snapshot of a database while others may write. Failures are ignored."""
    scratch = path.with_name(f".weekly-{secrets.token_hex(4)}.db")
    try:
        for left in path.parent.glob(".weekly-*.db"):  # left by a program that was killed
            if time.time() - left.stat().st_mtime > WEEK:
                left.unlink(missing_ok=True)
        private_file(scratch)
        with contextlib.closing(connect(path)) as connection:
            if connection.execute("SELECT count(*) FROM conversation").fetchone()[0]:
                connection.execute("VACUUM INTO ?", (str(scratch),))
                os.replace(scratch, path.with_name(time.strftime("weekly-%Y%m%d.db")))
                sync_folder(path.parent)
                for old in list_copies(path.parent)[:-MAX_COPIES]:
                    old.unlink(missing_ok=True)
    except (sqlite3.Error, OSError):  # a full disk is reported when the chats are written
        pass
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)


def delete_copies(folder: Path) -> None:
    """Delete all copies, also of older versions, because they contain deleted chats. Raises OSError."""
    for pattern in ("backup-v*.db", "weekly-*.db", ".weekly-*.db"):
        for copy in folder.glob(pattern):
            copy.unlink(missing_ok=True)
