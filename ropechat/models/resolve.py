"""Where a model is, by what people call it: a folder, a GGUF file, a Hub id or `builtin`. Never downloads.

What knows the Hub is imported for a name that is no path.
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
    """The Hub name that a model's name may be; None for what can only be a path."""
    text = str(model)
    if isinstance(model, Path) or text.startswith(_LOCAL_STARTS) or text.endswith(("/", ".safetensors")):
        return None
    from ropechat.models.hub.names import parse

    return parse(text)


def resolve(model: str | Path) -> Path:
    """The folder of a model, or its GGUF file (of a split one the first part).

    What exists as a path is that path; otherwise a Hub id is looked up in the cache on this machine.
    Raises ModelPathError (a path that holds no model), NotDownloadedError (a Hub id that is not here, or not
    whole), ModelNotFoundError (no or several GGUF files fit), FileAccessError; each lists what was tried.
    """
    text = str(model)
    if not text or "\0" in text:
        raise ModelPathError(f"{text!r}: no model; name {ALLOWED_NAMES}")
    if text == BUILTIN:
        return _builtin()
    path = Path(text).expanduser()
    if _exists(path):
        return _in_folder(path, None, text) if path.is_dir() else _file(path)
    name = hub_name(model)
    if name is not None and name.quant is not None and _exists(folder := Path(name.repo)) and folder.is_dir():
        return _in_folder(folder, name.quant, text)
    tried = f"tried the folder {path.absolute()}"
    if name is None:
        raise ModelPathError(f"{text}: no such model; {tried}; give {ALLOWED_NAMES}")
    from ropechat.models.hub.cache import find

    try:
        return find(name)
    except NotDownloadedError as error:
        pull = f"`ropechat models pull {name}` downloads it"
        raise NotDownloadedError(f"{error}; {tried} too; {pull}") from None


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise FileAccessError(f"{path}: {error.strerror}") from None
    return True


def builtin_folder() -> Path:
    """Where the model that comes with ropechat lies."""
    return builtin.FOLDER


def _builtin() -> Path:
    folder = builtin_folder()
    if not (folder / CONFIG).is_file():
        raise ModelNotFoundError(
            f"{BUILTIN}: this build comes without a model of its own; name {ALLOWED_NAMES}"
        )
    return folder


def _file(path: Path) -> Path:
    """A GGUF file that begins a model."""
    if path.suffix.lower() != ".gguf" and not _begins_as_gguf(path):
        raise ModelPathError(
            f"{path}: no GGUF file; a .gguf file, or a folder with {CONFIG} and *.safetensors, is required"
        )
    first = part_names(path.name)[0]
    if path.name != first:
        raise ModelPathError(f"{path}: not the first part of a split model; name {path.with_name(first)}")
    missing = [name for name in part_names(path.name) if not path.with_name(name).exists()]
    if missing:
        raise ModelPathError(f"{path}: {join_names(missing)} missing beside it; download all parts")
    return path


def _begins_as_gguf(path: Path) -> bool:
    """Whether a file of another name is one, as in the stores of other programs."""
    if not path.is_file():  # a pipe would not answer
        return False
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError as error:
        raise FileAccessError(f"{path}: {error.strerror}") from None


def _in_folder(folder: Path, quant: str | None, text: str) -> Path:
    """The folder itself, or the GGUF in it when it holds no safetensors model."""
    if quant is None and any((folder / name).exists() for name in (SINGLE, INDEX)):
        return folder
    from ropechat.models.hub.cache import file_names

    sets = gguf_sets(file_names(folder))
    if quant is not None:
        return _file(folder / choose_gguf(sets, quant, text).name)
    if len(sets) > 1:
        raise ModelPathError(
            f"{text}: {len(sets)} GGUF models: {join_names(one.name for one in sets)}; name one"
        )
    return _file(folder / sets[0].name) if sets else folder
