"""The Hub's cache on this machine, read without huggingface_hub and without the network.

<cache>/models--org--name/refs/<revision>          the commit of a branch or tag
                          snapshots/<commit>/...   links to
                          blobs/<etag>             the bytes, by sha256 (large files) or git's sha1 (small)
                          .no_exist/<commit>/...   empty: that the repository lacks a file
The layout is huggingface_hub's (docs: "Manage huggingface_hub cache-system"), so that tools share the files.
"""

import os
import re
from pathlib import Path

from ropechat.errors import ConfigError, ModelNotFoundError, NotDownloadedError
from ropechat.models.hub.names import HubName
from ropechat.models.weights import INDEX, TOKENIZER, Contents, choose_files, join_names
from ropechat.util.files import read_json

COMMIT = re.compile(r"[0-9a-f]{40}")
PREFIX = "models--"
_MAX_DEPTH = 3


def cache_folder() -> Path:
    """Where huggingface_hub keeps models: HF_HUB_CACHE, HF_HOME/hub or ~/.cache/huggingface/hub."""
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
    """Where a repository lies in the cache."""
    return cache_folder() / (PREFIX + repo.replace("/", "--"))


def commit_of(name: HubName) -> str | None:
    """The commit that a revision stood for when it was fetched last."""
    if COMMIT.fullmatch(name.revision):
        return name.revision
    try:
        text = (repo_folder(name.repo) / "refs" / name.revision).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return text if COMMIT.fullmatch(text) else None


def snapshot_folder(repo: str, commit: str) -> Path:
    """The files of a repository at a commit."""
    return repo_folder(repo) / "snapshots" / commit


def file_names(folder: Path) -> list[str]:
    """Files below a folder that are whole, by path inside it; a link that leads nowhere is none."""
    found = []
    for root, folders, files in os.walk(folder):
        inside = Path(root).relative_to(folder)
        if len(inside.parts) + 1 >= _MAX_DEPTH:
            folders.clear()
        found += [str(inside / name) for name in files if os.path.isfile(os.path.join(root, name))]
    return sorted(found)


def model_files(folder: Path, quant: str | None, where: str) -> tuple[Contents, list[str]]:
    """The files of the model in a folder, and which of them are missing. Raises as `weight_files.choose`."""
    names = file_names(folder)
    chosen = choose_files(names, quant, lambda: read_json(folder, INDEX, ConfigError) or {}, where)
    return chosen, sorted(set(chosen.files) - set(names))


def absence_mark(name: HubName, commit: str, file: str) -> Path:
    """The mark that says that a repository has no such file."""
    return repo_folder(name.repo) / ".no_exist" / commit / file


def find(name: HubName) -> Path:
    """The snapshot's folder, or the GGUF file in it. Raises NotDownloadedError with what is missing."""
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
            raise NotDownloadedError(f"{name}: incomplete in the Hub cache: {join_names(missing)} missing")
        return folder / chosen.gguf
    if not (folder / TOKENIZER).is_file() and not absence_mark(name, commit, TOKENIZER).exists():
        missing.append(TOKENIZER)  # the weights came without it, as when another program needed no more
    if missing:
        raise NotDownloadedError(f"{name}: incomplete in the Hub cache: {join_names(missing)} missing")
    return folder
