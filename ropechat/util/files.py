"""Reading the small files of a model folder: sizes, kinds and paths are checked before a byte is believed."""

import json
import os
import stat
from pathlib import Path
from typing import Any

from ropechat.errors import ConfigError, FileAccessError, ModelFileError, UnsafePathError

MAX_JSON_BYTES = 256 << 20
_HUB_BLOBS = "blobs"
_SHARED_MARK = ".huggingface-shared-blobs"


def _inside(directory: Path, path: Path) -> bool:
    """Whether a resolved file lies in the model's folder or among the blobs of the Hub cache around it.

    Blobs lie beside the snapshots; huggingface_hub 2.4 shares some between repositories, in a marked folder.
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
    """The content of a file in a model folder, or None when it is not there.

    Raises UnsafePathError for what is no regular file inside the folder, ModelFileError above `limit` bytes,
    FileAccessError when the system refuses.
    """
    path = directory / name
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):  # a .gguf file has no files of its own
        return None
    except OSError as error:
        if path.is_symlink():
            raise UnsafePathError(f"{path}: a link that cannot be followed; a file is required") from None
        raise FileAccessError(f"{path}: {error.strerror}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise UnsafePathError(f"{path}: not a regular file; only regular files are read")
    with os.fdopen(descriptor, "rb") as file:
        try:
            inside = _inside(directory, path)
        except (OSError, RuntimeError):
            inside = False
        if not inside:
            raise UnsafePathError(f"{path}: points out of the model's folder; copy the file into the folder")
        if status.st_size > limit:
            raise ModelFileError(f"{path}: {status.st_size} bytes; at most {limit} are allowed")
        try:
            return file.read(limit + 1)
        except OSError as error:
            raise FileAccessError(f"{path}: {error.strerror}") from None


def parse_json(data: bytes, where: Path, error: type[ModelFileError] = ConfigError) -> dict[str, Any]:
    """A JSON object. Raises `error` that names the file for anything else."""
    try:
        value = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as problem:
        raise error(f"{where}: byte {problem.start} is not UTF-8; download the file again") from None
    except RecursionError:
        raise error(f"{where}: JSON nested too deep; download the file again") from None
    except ValueError as problem:
        raise error(f"{where}: not JSON ({problem}); download the file again") from None
    if not isinstance(value, dict):
        raise error(f"{where}: a JSON {type(value).__name__}; an object is required")
    return value


def read_json(directory: Path, name: str, error: type[ModelFileError] = ConfigError) -> dict[str, Any] | None:
    """The JSON object in a file of a model folder, or None when the file is not there."""
    data = read_bytes(directory, name)
    return None if data is None else parse_json(data, directory / name, error)
