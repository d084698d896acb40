"""Files that only their owner may read, whatever the umask; written atomically."""

import contextlib
import os
import secrets
from pathlib import Path

from ropechat.errors import FileAccessError


def private_folder(folder: Path) -> None:
    """Create a folder that only its owner may access. Raises FileAccessError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise FileAccessError(
            f"{folder}: {error.strerror or error}; conversations cannot be stored"
        ) from None


def private_file(path: Path) -> None:
    """Create an empty file that only its owner may read, unless it exists."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def write_private(path: Path, text: str) -> None:
    """Write a file atomically; a device or pipe is written directly. Raises FileAccessError."""
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8", errors="replace")
            return
        number = os.open(scratch, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(number, "wb") as file:
            file.write(text.encode("utf-8", "replace"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise FileAccessError(f"{path}: {error.strerror or error}; not written") from None


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that a rename in it is durable. Ignored if the system cannot open folders."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
