"""Resolving a model's name to files: a folder, a GGUF file, a Hub id or `builtin`. Never downloads.

The Hub modules are imported only for a name that is not a path.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from ropechat import builtin
from ropechat.errors import FileAccessError, ModelNotFoundError, ModelPathError, NotDownloadedError
from ropechat.models.weights import CONFIG, INDEX, SINGLE, choose_gguf, gguf_sets, join_names, part_names

if TYPE_CHECKING:
    from ropechat.models.hub.names import HubName

BUILTIN = builtin.NAME
ALLOWED_NAMES = "a folder, a .gguf file, a Hub id (org/name, org/name:QUANT, org/name@revision) or `builtin`"
_LOCAL_STARTS = ("/", "./", "../", "~")


def hub_name(model: str | Path) -> "HubName | None":
    """Parse a model's name as a Hub name; None if it can only be a path."""
    text = str(model)
    if isinstance(model, Path) or text.startswith(_LOCAL_STARTS) or text.endswith(("/", ".safetensors")):
        return None
    from ropechat.models.hub.names import parse

    return parse(text)


def resolve(model: str | Path) -> Path:
    """The folder of a model, or its GGUF file (the first part of a split one).

    An existing path takes precedence; any other name is looked up in the Hub cache on this machine.
    Raises ModelPathError (no model at the path), NotDownloadedError (not in the Hub cache, or incomplete),
    ModelNotFoundError (no GGUF file matches, or several), FileAccessError; each lists what was tried.
    """
    text = str(model)
    if not text or "\0" in text:
        raise ModelPathError(f"model: must be {ALLOWED_NAMES} (got {text!r})")
    if text == BUILTIN:
        return _builtin()
    path = Path(text).expanduser()
    if _exists(path):
        return _in_folder(path, None, text) if path.is_dir() else _file(path)
    name = hub_name(model)
    if name is not None and name.quant is not None and _exists(folder := Path(name.repo)) and folder.is_dir():
        return _in_folder(folder, name.quant, text)
    tried = f"tried {path.absolute()}"
    if name is None:
        raise ModelPathError(f"{text}: model not found ({tried}); give {ALLOWED_NAMES}")
    from ropechat.models.hub.cache import find

    try:
        return find(name)
    except NotDownloadedError as error:
        pull = f"run `ropechat models pull {name}` to download it"
        raise NotDownloadedError(f"{error} ({tried} too); {pull}") from None


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise FileAccessError(f"{path}: {error.strerror}") from None
    return True


def builtin_folder() -> Path:
    """The folder of the built-in model."""
    return builtin.FOLDER


def _builtin() -> Path:
    folder = builtin_folder()
    if not (folder / CONFIG).is_file():
        raise ModelNotFoundError(f"{BUILTIN}: this build has no built-in model; give {ALLOWED_NAMES}")
    return folder


def _file(path: Path) -> Path:
    """Check that a file is the first or only GGUF file of a model."""
    if path.suffix.lower() != ".gguf" and not _begins_as_gguf(path):
        raise ModelPathError(f"{path}: must be a .gguf file, or a folder with {CONFIG} and *.safetensors")
    first = part_names(path.name)[0]
    if path.name != first:
        raise ModelPathError(f"{path}: must be the first part of a split model; give {path.with_name(first)}")
    missing = [name for name in part_names(path.name) if not path.with_name(name).exists()]
    if missing:
        raise ModelPathError(f"{path}: missing parts {join_names(missing)}; download all parts")
    return path


def _begins_as_gguf(path: Path) -> bool:
    """Whether a file without the .gguf suffix is one, as other programs store them."""
    if not path.is_file():  # reading a pipe could block
        return False
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError as error:
        raise FileAccessError(f"{path}: {error.strerror}") from None


def _in_folder(folder: Path, quant: str | None, text: str) -> Path:
    """The folder itself, or the GGUF file in it if it has no safetensors model."""
    if quant is None and any((folder / name).exists() for name in (SINGLE, INDEX)):
        return folder
    from ropechat.models.hub.cache import file_names

    sets = gguf_sets(file_names(folder))
    if quant is not None:
        return _file(folder / choose_gguf(sets, quant, text).name)
    if len(sets) > 1:
        names = join_names(one.name for one in sets)
        raise ModelPathError(
            f"{text}: must contain one GGUF model (got {len(sets)}: {names}); give one of them"
        )
    return _file(folder / sets[0].name) if sets else folder
