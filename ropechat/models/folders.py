"""Models in folders: of LM Studio, of llama.cpp, and in those that the user names.

A listing goes a few levels deep and reads a limited number of entries. What cannot be read is skipped with a
note.
"""

import os
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ropechat.models.hub import cached_models
from ropechat.models.weights import CONFIG, INDEX, SINGLE, GgufSet, gguf_sets, join_names, split_of

_MODEL_FILES = (".gguf", ".safetensors", ".json", ".jinja")
LM_STUDIO, LLAMA_CPP = "LM Studio", "llama.cpp"
MAX_DEPTH = 3  # levels of folders below the named one
MAX_ENTRIES = 20_000  # entries that are read below the named folder

OnNote = Callable[[str], None]


class FoundModel(NamedTuple):
    """A model on this machine. source: the program or folder it is from.

    reason: why it cannot be opened; None if nothing speaks against it.
    """

    name: str
    path: Path
    size: int
    source: str
    reason: str | None = None


def program_folders() -> list[tuple[str, Path]]:
    """(program, folder) of the places in which LM Studio and llama.cpp keep models; they may not exist."""
    home = Path(os.path.expanduser("~"))
    caches = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    if sys.platform == "darwin":
        caches = home / "Library" / "Caches"
    return [
        (LM_STUDIO, home / ".lmstudio" / "models"),
        (LM_STUDIO, home / ".cache" / "lm-studio" / "models"),
        (LLAMA_CPP, Path(os.environ.get("LLAMA_CACHE") or caches / "llama.cpp")),
    ]


def models_of_programs(on_note: OnNote) -> Iterator[FoundModel]:
    """Yield the models of LM Studio and llama.cpp."""
    for program, folder in program_folders():
        if folder.is_dir():
            yield from models_below(folder, program, on_note)


def models_below(root: Path, source: str, on_note: OnNote, depth: int = MAX_DEPTH) -> Iterator[FoundModel]:
    """Yield the models in a folder and its subfolders, by name.

    Each GGUF file is one, a split GGUF is one, and a folder with config.json and safetensors is one. Folders
    with the layout of the Hub cache are read as such. depth: levels of subfolders. on_note: is called with
    what was skipped, and why.
    """
    yield from _Listing(root, source, on_note).models(root, depth)


class _Listing:
    """One listing of a folder; it counts the entries and knows the folders it has read."""

    def __init__(self, root: Path, source: str, on_note: OnNote) -> None:
        self._root, self._source, self._note = root, source, on_note
        self._left = MAX_ENTRIES
        self._seen: set[tuple[int, int]] = set()  # device and inode: links may lead in circles

    def models(self, folder: Path, depth: int) -> Iterator[FoundModel]:
        """Yield the models in a folder, then those of its subfolders, `depth` levels down."""
        try:
            status = folder.stat()
            with os.scandir(folder) as entries:
                listed = sorted(islice(entries, self._left), key=lambda entry: entry.name)
        except OSError as error:
            self._note(f"skipped ({error.strerror or error}): {folder}")
            return
        if (status.st_dev, status.st_ino) in self._seen:
            return
        self._seen.add((status.st_dev, status.st_ino))
        self._left -= len(listed)
        files = {entry.name: size for entry in listed if (size := _file_size(entry)) is not None}
        yield from self._directly_in(folder, files)
        if depth == 0:
            return
        for entry in listed:
            if not _is_folder(entry) or entry.name.startswith("."):
                continue
            if self._left == 0:
                self._note(f"skipped (more than {MAX_ENTRIES:,} entries): the rest of {self._root}")
                self._left = -1
            if self._left < 0:
                return
            if (repo := cached_models.repo_of(entry.name)) is not None:
                yield from self._of_hub_layout(repo, folder / entry.name)
            else:
                yield from self.models(folder / entry.name, depth - 1)

    def _directly_in(self, folder: Path, files: dict[str, int]) -> Iterator[FoundModel]:
        """The models whose files are in this folder. files: name -> size in bytes."""
        if CONFIG in files and files.keys() & {SINGLE, INDEX}:
            yield self._found(self._name(folder), folder, sum(files.values()))
        parts: dict[tuple[str, int], list[str]] = {}
        for name in files:
            if name.endswith(".gguf"):
                parts.setdefault(split_of(name), []).append(name)
        whole = [name for (_, count), names in parts.items() if len(names) >= count for name in names]
        sets = gguf_sets(whole)
        for one in sets:
            path = folder / one.name
            missing = [name for name in one.files if name not in files]
            reason = f"missing parts {join_names(missing)}; download all parts" if missing else None
            size = sum(files.get(name, 0) for name in one.files)
            yield self._found(self._gguf_name(path, one, sets), path, size, reason)
        for (stem, count), names in parts.items():
            if len(names) < count:
                reason = f"{len(names)} of {count} parts are here; download all parts"
                size = sum(files[name] for name in names)
                yield self._found(self._name(folder / stem), folder / min(names), size, reason)

    def _of_hub_layout(self, repo: str, folder: Path) -> Iterator[FoundModel]:
        try:
            found = cached_models.models_of(repo, folder)
        except OSError as error:
            self._note(f"skipped ({error.strerror or error}): {folder}")
            return
        for one in found:
            reason = f"incomplete: {', '.join(one.missing)}" if one.missing else None
            yield self._found(str(one.name), one.path, one.size, reason)

    def _found(self, name: str, path: Path, size: int, reason: str | None = None) -> FoundModel:
        try:
            str(path).encode()
        except UnicodeEncodeError:
            reason = "its path is not UTF-8; rename it"
        return FoundModel(name, path, size, self._source, reason)

    def _name(self, path: Path) -> str:
        """The path within the listed folder; of that folder itself its name."""
        inside = str(path.relative_to(self._root))
        return path.name if inside == "." else inside

    def _gguf_name(self, path: Path, one: GgufSet, sets: list[GgufSet]) -> str:
        """In LM Studio's layout the Hub's name, publisher/repository:QUANT; else the path without .gguf."""
        inside = path.relative_to(self._root)
        if self._source == LM_STUDIO and len(inside.parts) == 3:
            alone = one.quant is not None and [other.quant for other in sets].count(one.quant) == 1
            return f"{inside.parent}:{one.quant if alone else path.name}"
        return split_of(str(inside))[0]


def _file_size(entry: "os.DirEntry[str]") -> int | None:
    """Size in bytes of a file of a model, following links; None for everything else."""
    try:
        return entry.stat().st_size if entry.name.endswith(_MODEL_FILES) and entry.is_file() else None
    except OSError:
        return None


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # links in a circle
        return False
