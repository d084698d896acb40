"""Resolving a model's name to files: a path, a Hub id, a short name or `builtin`. Never downloads.

The Hub modules, the catalog and what other programs have are imported only for a name that is not a path.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ropechat import builtin
from ropechat.errors import FileAccessError, ModelNotFoundError, ModelPathError, NotDownloadedError
from ropechat.models.weights import CONFIG, INDEX, SINGLE, choose_gguf, gguf_sets, join_names, part_names
from ropechat.util.paths import expand_home
from ropechat.util.text import format_bytes, is_unicode

if TYPE_CHECKING:
    from ropechat.models.hub.names import HubName

BUILTIN = builtin.NAME
LAST = "last"
"""Stands for the model that the chat opened last, where a model is named; see `last.py`."""
ALLOWED_NAMES = (
    "a folder, a .gguf file, a Hub id (org/name, org/name:QUANT, org/name@revision), "
    "a short name (qwen3:0.6b) or `builtin`"
)
_MODEL_FILES = (".safetensors", ".json", ".jinja")
_MAX_LINKS = 8  # folders of links that lead to folders of links
_LOCAL_STARTS = ("/", "./", "../", "~")


def hub_name(model: str | Path) -> "HubName | None":
    """Parse a model's name as a Hub name, or look it up as a short name; None if it can only be a path."""
    text = str(model)
    if isinstance(model, Path) or text.startswith(_LOCAL_STARTS) or text.endswith(("/", ".safetensors")):
        return None
    if text == BUILTIN:
        return None
    if "/" in text:
        from ropechat.models.hub.names import parse

        return parse(text)
    from ropechat.models.catalog import find_short

    known = find_short(text)
    return None if known is None else known.hub_name


def resolve(model: str | Path, folders: Sequence[Path] = ()) -> Path:
    """The folder of a model, or its GGUF file (the first part of a split one).

    An existing path takes precedence; any other name is looked up in the Hub cache on this machine, then
    among the models of Ollama, LM Studio and llama.cpp, and in `folders`.
    Raises ModelPathError (no model at the path), NotDownloadedError (not in the Hub cache, or incomplete),
    ModelNotFoundError (no GGUF file matches, or several), FileAccessError; each lists what was tried.
    """
    text = str(model)
    if not text or "\0" in text:
        raise ModelPathError(f"model: must be {ALLOWED_NAMES} (got {text!r})")
    if not is_unicode(text):
        raise ModelPathError(f"{text!a}: the name of a model must be UTF-8; rename the file or folder")
    if text == BUILTIN:
        return _builtin()
    path = expand_home(text)
    if _exists(path):
        return _in_folder(path, None, text) if path.is_dir() else _file(path)
    name = hub_name(model)
    if name is not None and name.quant is not None and _exists(folder := Path(name.repo)) and folder.is_dir():
        return _in_folder(folder, name.quant, text)
    if name is not None:
        from ropechat.models.hub.cache import find

        try:
            return find(name)
        except NotDownloadedError as error:
            missing = str(error)
    if not isinstance(model, Path) and not text.startswith(_LOCAL_STARTS):
        from ropechat.models.elsewhere import find_elsewhere

        if (found := find_elsewhere(text, folders)) is not None:
            return found
    if name is None:
        raise ModelPathError(f"{text}: model not found (tried {path.absolute()}); {_advice(text)}")
    raise NotDownloadedError(_how_to_download(text, name, missing))


def _advice(text: str) -> str:
    """What to give instead of a name that means nothing."""
    from ropechat.models.catalog import closest_short, is_short

    if is_short(text) and (near := closest_short(text)):
        return f"did you mean {near}? (`ropechat models catalog` lists such names)"
    return f"give {ALLOWED_NAMES}"


def _how_to_download(text: str, name: "HubName", missing: str) -> str:
    """The error of a model that is not on this machine. missing: what the Hub cache lacks."""
    from ropechat.models.catalog import find_short

    if (known := find_short(text)) is not None:
        pull = f"run `ropechat models pull {text}` to download {format_bytes(known.size)} ({name})"
        return f"{text}: not on this machine; {pull}"
    return f"{missing} (tried {Path(text).absolute()} too); run `ropechat models pull {name}` to download it"


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
    parts = [path.with_name(name) for name in part_names(path.name)]
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        raise ModelPathError(f"{path}: missing parts {join_names(missing)}; download all parts")
    linked = _common_target(parts) if len(parts) > 1 else None
    return path if linked is None else linked / path.name


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
        return _follow_links(folder)
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


def _follow_links(folder: Path) -> Path:
    """The folder to which all files of a model in `folder` are linked; else the folder itself."""
    for _ in range(_MAX_LINKS):
        try:
            names = [entry.name for entry in os.scandir(folder) if entry.name.endswith(_MODEL_FILES)]
        except OSError as error:
            raise FileAccessError(f"{folder}: {error.strerror}") from None
        if (target := _common_target([folder / name for name in names])) is None:
            break
        folder = target
    return folder


def _common_target(files: Sequence[Path]) -> Path | None:
    """The folder to which all these files are linked under their own names, or None.

    Then the user has linked the model. Single links may come from a stranger and name any file of this
    machine: they are checked where the file is opened.
    """
    found: set[Path | None] = set()
    for file in files:
        target = file.parent / os.readlink(file) if file.is_symlink() else file
        found.add(target.parent if file.is_symlink() and target.name == file.name else None)
    return found.pop() if len(found) == 1 else None
