"""Reading the small files of a model folder, which are checked first; texts; replacing and locking files."""

import errno
import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

from ropechat.errors import ConfigError, FileAccessError, ModelFileError, RequestError, UnsafePathError
from ropechat.util.text import limit_words

MAX_JSON_BYTES = 8 << 20
"""Published configurations have up to 1.2 MB."""
_MAX_JSON_PARTS = 4 << 20
"""Commas and brackets: each may become an object of up to 200 bytes. Large vocabularies have 1.6 million."""
_HUB_BLOBS = "blobs"
_SHARED_MARK = ".huggingface-shared-blobs"


def _inside(directory: Path, path: Path) -> bool:
    """Whether a file, with links resolved, is in the model's folder or in the blobs of its Hub cache.

    Blobs are next to the snapshots; huggingface_hub 2.4 shares some between repositories, in a marked folder.
    """
    target = path.resolve()
    folder = directory.resolve()
    if target.is_relative_to(folder):
        return True
    if folder.parent.name != "snapshots":
        return False
    repo = folder.parent.parent  # models--org--name
    shared = repo.parent / _HUB_BLOBS
    if target.parent.parent == shared:
        return (shared / _SHARED_MARK).is_file()
    return target.parent == repo / _HUB_BLOBS


def read_bytes(directory: Path, name: str, limit: int = MAX_JSON_BYTES) -> bytes | None:
    """The content of a file in a model folder, or None if it does not exist.

    Raises UnsafePathError if it is not a regular file inside the folder, ModelFileError above `limit` bytes,
    FileAccessError if the system refuses.
    """
    path = directory / name
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):  # NotADirectoryError: the model is a .gguf file
        return None
    except OSError as error:
        if path.is_symlink():
            raise UnsafePathError(f"{path}: must be a regular file (got a broken link)") from None
        raise FileAccessError(f"{path}: {error.strerror}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise UnsafePathError(f"{path}: must be a regular file")
    with os.fdopen(descriptor, "rb") as file:
        try:
            inside = _inside(directory, path)
        except (OSError, RuntimeError):
            inside = False
        if not inside:
            raise UnsafePathError(f"{path}: leads out of the model's folder; copy the file into the folder")
        if status.st_size > limit:
            raise ModelFileError(f"{path}: {limit_words(limit, status.st_size)}")
        try:
            return file.read(limit + 1)
        except OSError as error:
            raise FileAccessError(f"{path}: {error.strerror}") from None


def parse_json(data: bytes, where: Path, error: type[ModelFileError] = ConfigError) -> dict[str, Any]:
    """Parse a JSON object. Raises `error` naming the file for anything else."""
    parts = sum(map(data.count, (b",", b"[", b"{")))
    if parts > _MAX_JSON_PARTS:
        raise error(f"{where}: must have at most {_MAX_JSON_PARTS:,} commas and brackets (got {parts:,})")
    try:
        value = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as problem:
        raise error(f"{where}: byte {problem.start} is not UTF-8; download the file again") from None
    except RecursionError:
        raise error(f"{where}: JSON nested too deeply; download the file again") from None
    except ValueError as problem:
        raise error(f"{where}: not valid JSON ({problem}); download the file again") from None
    if not isinstance(value, dict):
        raise error(f"{where}: must be a JSON object (got {type(value).__name__})")
    return value


def read_json(
    directory: Path, name: str, error: type[ModelFileError] = ConfigError, limit: int = MAX_JSON_BYTES
) -> dict[str, Any] | None:
    """The JSON object in a file of a model folder, or None if the file does not exist. limit: in bytes."""
    data = read_bytes(directory, name, limit)
    return None if data is None else parse_json(data, directory / name, error)


def decode_text(data: bytes, name: str) -> str:
    """The text of UTF-8 bytes, without a byte order mark. name: of the file. Raises RequestError."""
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{name}: must be UTF-8 (byte {error.start} is not); convert the text to UTF-8"
        ) from None


def read_text(path: Path, *, empty: bool = False) -> str:
    """The text of a file. empty: whether it may be empty. Raises RequestError, FileAccessError."""
    try:
        text = decode_text(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise RequestError(f"{path}: file not found") from None
    except OSError as error:
        raise FileAccessError(f"{path}: {error.strerror or error}") from None
    if not (text or empty):
        raise RequestError(f"{path}: must have at least one character (the file is empty)")
    return text


def partial_name(path: Path) -> Path:
    """The name of an output file until it is complete."""
    return path.with_name(path.name + ".partial")


@contextmanager
def replacing(
    path: Path,
    *,
    partial: Path | None = None,
    private: bool = False,
    packed: bool = False,
    sync: bool = False,
    is_cut: Callable[[], bool] = lambda: False,
) -> Iterator[IO[bytes]]:
    """Open a new file, which replaces `path` when the block ends; if the block raises, `path` stays as it is.

    A file that is replaced passes its permissions on. partial: the name of the new file until then; by
    default a hidden one beside the file to which `path` leads, so that a link stays a link. private: only
    this user may read it. packed: gzip. sync: content and name are on disk afterwards. is_cut: whether the
    content was cut on purpose, and so keeps the name `partial`. Raises OSError.
    """
    target = path if partial is not None else Path(os.path.realpath(path))
    if partial is None:
        partial = target.with_name(f".ropechat-{os.urandom(4).hex()}.partial")
    with suppress(FileNotFoundError):
        partial.unlink()  # left by a program that was killed
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(partial, flags, 0o600 if private else 0o666)
    try:
        with open(descriptor, "wb", buffering=1 << 18) as file:
            if packed:
                import gzip  # imported here: rarely needed

                with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as zipped:
                    yield cast("IO[bytes]", zipped)
            else:
                yield file
            with suppress(FileNotFoundError):
                mode = stat.S_IMODE(target.stat().st_mode)
                os.fchmod(descriptor, mode & 0o700 if private else mode)
            if sync:
                file.flush()
                os.fsync(descriptor)
        if is_cut():
            return
        os.replace(partial, target)
        if sync:
            sync_folder(target.parent)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on disk. Ignored if the system cannot open folders."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def text_output(path: Path, is_cut: Callable[[], bool] = lambda: False) -> Iterator[Callable[[str], object]]:
    """Yield a function that writes text to a file, which gets its name at the end of the block.

    A device or pipe is written to directly and at once. is_cut: as for `replacing`; the content has the name
    of `partial_name` then. Raises FileAccessError.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("wb", buffering=0) as device:
                yield lambda text: device.write(text.encode("utf-8", "replace"))
            return
        with replacing(path, partial=partial_name(path), is_cut=is_cut) as file:
            yield lambda text: file.write(text.encode("utf-8", "replace"))
    except OSError as error:
        raise FileAccessError(f"{path}: {error.strerror or error}; not written") from None


def try_lock(descriptor: int) -> bool:
    """Lock an open file against other programs, until this one ends; False if another one holds its lock.

    Raises OSError where files cannot be locked, as on Lustre without `-o flock`.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True
