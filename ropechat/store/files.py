"""Files that only their owner may read, whatever the umask."""

import contextlib
import os
from pathlib import Path

from ropechat.errors import FileAccessError
from ropechat.util.files import replacing


def private_folder(folder: Path) -> None:
    """Create a folder that only its owner may access. Raises FileAccessError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise unusable(folder, error) from None


def unusable(path: Path | str, error: BaseException) -> FileAccessError:
    """The error of a place where chats cannot be kept; a list of them needs it writable, too."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return FileAccessError(
        f"{path}: {reason}; chats are read and stored there: make the folder writable, or set "
        "ROPECHAT_DATA to another one"
    )


def private_file(path: Path) -> None:
    """Create an empty file that only its owner may read, unless it exists."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step; a device or pipe is written directly. Raises FileAccessError."""
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8", errors="replace")
            return
        with replacing(path, private=True, sync=True) as file:
            file.write(text.encode("utf-8", "replace"))
    except OSError as error:
        raise FileAccessError(f"{path}: {error.strerror or error}; not written") from None
