"""Reading the small files of a model folder, which are checked first; replacing a file in one step."""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

from ropechat.errors import ConfigError, FileAccessError, ModelFileError, UnsafePathError
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
) -> Iterator[IO[bytes]]:
    """Open a new file, which replaces `path` when the block ends; if the block raises, `path` stays as it is.

    A file that is replaced passes its permissions on. partial: the name of the new file until then; by
    default a hidden one beside the file to which `path` leads, so that a link stays a link. private: only
    this user may read it. packed: gzip. sync: content and name are on disk afterwards. Raises OSError.
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
