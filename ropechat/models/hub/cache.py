"""The Hub cache on this machine, read without huggingface_hub (its import takes 0.19 s) or network.

<cache>/models--org--name/refs/<revision>          the commit of a branch or tag
                          snapshots/<commit>/...   links to
                          blobs/<etag>             the bytes, by sha256 (large files) or git's sha1 (small)
                          .no_exist/<commit>/...   empty marks of files that the repository does not have
The layout is huggingface_hub's (docs: "Manage huggingface_hub cache-system"), so tools share the files.
"""

import os
import re
from pathlib import Path
from typing import Any

from ropechat.errors import ConfigError, ModelNotFoundError, NotDownloadedError
from ropechat.models.hub.names import HubName
from ropechat.models.weights import INDEX, MAX_INDEX_BYTES, TOKENIZER, Contents, choose_files, join_names
from ropechat.util.files import read_json

COMMIT = re.compile(r"[0-9a-f]{40}")
PREFIX = "models--"
_MAX_DEPTH = 3


def cache_folder() -> Path:
    """The folder of huggingface_hub's cache: HF_HUB_CACHE, HF_HOME/hub or ~/.cache/huggingface/hub."""
    for name, inside in (
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    ):
        if value := os.environ.get(name):
            return Path(os.path.expandvars(os.path.expanduser(value))) / inside
    return Path(os.path.expanduser("~/.cache/huggingface/hub"))


def repo_folder(repo: str) -> Path:
    """The folder of a repository in the cache."""
    return cache_folder() / (PREFIX + repo.replace("/", "--"))


def commit_of(name: HubName) -> str | None:
    """The commit of a revision at its last download; None if unknown."""
    if COMMIT.fullmatch(name.revision):
        return name.revision
    try:
        text = (repo_folder(name.repo) / "refs" / name.revision).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return text if COMMIT.fullmatch(text) else None


def snapshot_folder(repo: str, commit: str) -> Path:
    """The folder of a repository's files at a commit."""
    return repo_folder(repo) / "snapshots" / commit


def file_names(folder: Path) -> list[str]:
    """Files below a folder, as relative paths; broken links are left out."""
    found = []
    for root, folders, files in os.walk(folder):
        inside = Path(root).relative_to(folder)
        if len(inside.parts) + 1 >= _MAX_DEPTH:
            folders.clear()
        found += [str(inside / name) for name in files if os.path.isfile(os.path.join(root, name))]
    return sorted(found)


def _read_index(folder: Path) -> dict[str, Any]:
    return read_json(folder, INDEX, ConfigError, MAX_INDEX_BYTES) or {}


def model_files(folder: Path, quant: str | None, where: str) -> tuple[Contents, list[str]]:
    """The files of the model in a folder, and the missing ones. Raises as `weights.choose_files`."""
    names = file_names(folder)
    chosen = choose_files(names, quant, lambda: _read_index(folder), where)
    return chosen, sorted(set(chosen.files) - set(names))


def absence_mark(name: HubName, commit: str, file: str) -> Path:
    """The marker file that records that a repository does not have `file`."""
    return repo_folder(name.repo) / ".no_exist" / commit / file


def find(name: HubName) -> Path:
    """The snapshot's folder, or the GGUF file in it. Raises NotDownloadedError naming what is missing."""
    commit = commit_of(name)
    folder = None if commit is None else snapshot_folder(name.repo, commit)
    if commit is None or folder is None or not folder.is_dir():
        raise NotDownloadedError(f"{name}: not in the Hub cache {cache_folder()}")
    try:
        chosen, missing = model_files(folder, name.quant, str(name))
    except ModelNotFoundError as error:
        raise NotDownloadedError(f"{error} in the Hub cache {cache_folder()}") from None
    if chosen.gguf is not None:
        if missing:
            raise NotDownloadedError(f"{name}: incomplete in the Hub cache (missing {join_names(missing)})")
        return folder / chosen.gguf
    if not (folder / TOKENIZER).is_file() and not absence_mark(name, commit, TOKENIZER).exists():
        missing.append(TOKENIZER)  # another program may have downloaded only the weights
    if missing:
        raise NotDownloadedError(f"{name}: incomplete in the Hub cache (missing {join_names(missing)})")
    return folder
