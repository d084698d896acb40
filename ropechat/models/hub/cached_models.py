"""The models in the Hub cache: listing them with their sizes, and removing them.

By hand: scan_cache_dir would import huggingface_hub (0.19 s) and does not know which files make a model.
"""

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ropechat.errors import ModelFileError, ModelNotFoundError, UnsafePathError
from ropechat.models.hub import cache
from ropechat.models.hub.names import MAIN, HubName, is_repo
from ropechat.models.weights import INDEX, SINGLE, Contents, choose_files, gguf_sets

_INCOMPLETE = ".incomplete"


@dataclass(frozen=True)
class CachedModel:
    """A model in the cache. path: the path to open. missing: missing files; with any, it cannot be loaded."""

    name: HubName
    path: Path
    size: int
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Removal:
    """Files and folders to remove, and the number of bytes this frees."""

    paths: tuple[Path, ...]
    size: int

    def execute(self) -> None:
        """Remove them; missing ones are skipped. Raises OSError."""
        for path in self.paths:
            with contextlib.suppress(FileNotFoundError):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()


def list_cached() -> list[CachedModel]:
    """Every model in the cache, complete or not, sorted by name."""
    found: list[CachedModel] = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for folder in sorted(cache.cache_folder().iterdir()):
            repo = repo_of(folder.name)
            if repo is not None and folder.is_dir():
                found += models_of(repo, folder)
    return found


def repo_of(folder: str) -> str | None:
    """The repository whose folder in the cache has this name; None for other names."""
    repo = folder.removeprefix(cache.PREFIX).replace("--", "/", 1)
    return repo if folder.startswith(cache.PREFIX) and is_repo(repo) else None


def models_of(repo: str, folder: Path) -> list[CachedModel]:
    """The models of a repository's folder, complete or not."""
    found: list[CachedModel] = []
    for commit, revision in _revisions(folder):
        found += _in_snapshot(repo, revision, folder / "snapshots" / commit)
    partial = sum(_size(path) for path in _entries(folder / "blobs") if path.name.endswith(_INCOMPLETE))
    if partial and not any(one.missing for one in found):
        found.append(CachedModel(HubName(repo), folder, partial, ("the rest of a stopped download",)))
    return found


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _revisions(folder: Path) -> list[tuple[str, str]]:
    """(commit, branch or tag, or the commit itself) of each snapshot."""
    names: dict[str, str] = {}
    refs = folder / "refs"
    for path in sorted(path for path in refs.rglob("*") if path.is_file()):
        name, commit = str(path.relative_to(refs)), path.read_text(encoding="ascii", errors="replace").strip()
        if name == MAIN or commit not in names:
            names[commit] = name
    commits = [path.name for path in _entries(folder / "snapshots") if cache.COMMIT.fullmatch(path.name)]
    return [(commit, names.get(commit, commit)) for commit in commits]


def _in_snapshot(repo: str, revision: str, folder: Path) -> Iterator[CachedModel]:
    names = cache.file_names(folder)
    quants: list[str | None] = [None] if {SINGLE, INDEX} & set(names) else []
    sets = gguf_sets(names)
    labels = [one.quant for one in sets]
    quants += [one.quant if one.quant and labels.count(one.quant) == 1 else one.name for one in sets]
    for quant in quants:
        name = HubName(repo, revision, quant)
        try:
            chosen, missing = cache.model_files(folder, quant, str(name))
        except (ModelNotFoundError, ModelFileError, UnsafePathError) as error:
            yield CachedModel(name, folder, 0, (str(error),))
            continue
        there = [folder / file for file in chosen.files if file not in missing]
        path = folder / chosen.gguf if chosen.gguf else folder
        yield CachedModel(name, path, sum(map(_size, there)), tuple(missing))


def _size(path: Path) -> int:
    """Size of a file in bytes, following links; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def plan_removal(name: HubName) -> Removal:
    """Plan the removal of a repository, or only of the given quantization or revision.

    Blobs used by another snapshot of the repository stay. Raises ModelNotFoundError if it is not cached.
    """
    folder = cache.repo_folder(name.repo)
    if not folder.is_dir():
        raise ModelNotFoundError(f"{name}: not in the Hub cache {cache.cache_folder()}; nothing to remove")
    if name.quant is None and name.revision == MAIN:
        locks = cache.cache_folder() / ".locks" / folder.name
        return Removal((folder, locks), _bytes_below(folder))
    commit = cache.commit_of(name)
    snapshot = None if commit is None else cache.snapshot_folder(name.repo, commit)
    if commit is None or snapshot is None or not snapshot.is_dir():
        raise ModelNotFoundError(f"{name}: revision not in the Hub cache; nothing to remove")
    if name.quant is None:
        links = [snapshot / file for file in cache.file_names(snapshot)]
        refs = [path for path in (folder / "refs").rglob("*") if path.is_file() and _names(path, commit)]
        return _with_blobs(folder, links, [snapshot, *refs])
    chosen: Contents = choose_files(cache.file_names(snapshot), name.quant, dict, str(name))
    links = [snapshot / file for file in chosen.files]
    return _with_blobs(folder, links, links)


def _names(ref: Path, commit: str) -> bool:
    return ref.read_text(encoding="ascii", errors="replace").strip() == commit


def _with_blobs(folder: Path, links: Iterable[Path], paths: Iterable[Path]) -> Removal:
    """`paths`, and the blobs to which only `links` lead."""
    gone = set(links)
    snapshots = folder / "snapshots"
    kept = {path.resolve() for path in snapshots.rglob("*") if path not in gone and path.is_file()}
    freed = {path.resolve() for path in gone if path.is_file()} - kept
    blobs = [path for path in freed if path.parent == (folder / "blobs").resolve()]
    return Removal((*paths, *blobs), sum(map(_size, freed)))


def _bytes_below(folder: Path) -> int:
    """Total size of the regular files below a folder, without following links."""
    return sum(
        os.lstat(path).st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()
    )
