"""What a download will fetch, before it begins: files, bytes, what is here already, what the disk has."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropechat.errors import DownloadError
from ropechat.models.hub import cache, client
from ropechat.models.hub.names import HubName
from ropechat.models.weights import INDEX, MAX_INDEX_BYTES, choose_files, is_plain, join_names
from ropechat.util.system import free_disk
from ropechat.util.text import format_bytes

SHA1_DIGITS, SHA256_DIGITS = 40, 64
_SPARE_DISK = 16 << 20


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository. etag: its sha256 in hex (large files), or the sha1 of its git blob."""

    name: str
    size: int
    etag: str


@dataclass(frozen=True)
class DownloadPlan:
    """The files of a model at a commit. gguf: which of them is opened, None for safetensors.

    here: bytes that are on this machine already, also of files that broke off.
    """

    name: HubName
    commit: str
    files: tuple[RemoteFile, ...]
    weights: int
    gguf: str | None
    here: int

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def rest(self) -> int:
        """Bytes to fetch."""
        return self.total - self.here

    @property
    def folder(self) -> Path:
        """Where the files will be."""
        return cache.snapshot_folder(self.name.repo, self.commit)

    @property
    def path(self) -> Path:
        """What is opened: the folder, or the GGUF in it."""
        return self.folder / self.gguf if self.gguf else self.folder

    def lines(self, free_memory: int | None) -> list[str]:
        """The plan in words. free_memory: bytes that a model could take; None: not known."""
        begun = f" ({format_bytes(self.here)} of them are here already)" if self.here else ""
        count = len(self.files)
        opens = f": {self.gguf}" if self.gguf and count == 1 else ""
        free = f"{format_bytes(free_disk(self.folder))} free"
        return [
            f"{self.name}: {count} file{'' if count == 1 else 's'}, {format_bytes(self.total)}{begun}{opens}",
            f"to {self.folder} ({free})",
            _memory_line(self.weights, free_memory),
        ]

    def check_disk(self) -> None:
        """Raises DownloadError when what is to come does not fit on the disk."""
        free = free_disk(self.folder)
        if self.rest + _SPARE_DISK > free and self.rest:
            raise DownloadError(
                f"{self.name}: disk full: {format_bytes(self.rest)} to fetch, {format_bytes(free)} free in "
                f"{cache.cache_folder()}; make room, or set HF_HOME to another disk"
            )


def _memory_line(weights: int, free: int | None) -> str:
    if free is None:
        return f"weights: {format_bytes(weights)}"
    fits = "fit" if weights <= free else "will not fit"
    return f"weights: {format_bytes(weights)}, {fits} in memory ({format_bytes(free)} free)"


def make_plan(name: HubName) -> DownloadPlan:
    """Ask the Hub what the model consists of: one request, and one for the index of shards.

    Raises DownloadError (the Hub, the way to it), ModelNotFoundError (no such weights), ConfigError,
    UnsafePathError (what the repository holds cannot be right).
    """
    info = client.listing(name)
    commit = str(info.sha)
    if not cache.COMMIT.fullmatch(commit):
        raise DownloadError(f"{name}: {client.endpoint()} does not answer like a Hub; check HF_ENDPOINT")
    siblings = {str(entry.rfilename): entry for entry in info.siblings or ()}
    where = cache.snapshot_folder(name.repo, commit)

    def read_index() -> dict[str, Any]:
        return client.read_json(name, commit, INDEX, MAX_INDEX_BYTES, where / INDEX)

    chosen = choose_files(list(siblings), name.quant, read_index, str(name))
    if missing := sorted(set(chosen.files) - siblings.keys()):
        raise DownloadError(
            f"{name}: the repository lacks {join_names(missing)}; no model without; name another one"
        )
    files = tuple(_remote(siblings[file], name) for file in dict.fromkeys(chosen.files))
    weights = sum(file.size for file in files if file.name in chosen.weights)
    here = sum(bytes_here(name.repo, commit, file) for file in files)
    plan = DownloadPlan(name, commit, files, weights, chosen.gguf, here)
    plan.check_disk()
    return plan


def _remote(entry: Any, name: HubName) -> RemoteFile:
    """A listed file with all that is put into a path checked."""
    file = str(entry.rfilename)
    etag, size = str(entry.lfs.sha256 if entry.lfs else entry.blob_id), entry.size
    is_hash = len(etag) in (SHA1_DIGITS, SHA256_DIGITS) and set(etag) <= set("0123456789abcdef")
    if not is_plain(file) or not is_hash or not isinstance(size, int) or size < 0:
        raise DownloadError(f"{name}: {file!r:.80}: listed without a usable name, size or hash; not fetched")
    return RemoteFile(file, size, etag)


def blob_path(repo: str, file: RemoteFile) -> Path:
    """Where the bytes of a file lie once they are whole and verified."""
    return cache.repo_folder(repo) / "blobs" / file.etag


def partial_path(repo: str, file: RemoteFile) -> Path:
    """Where the bytes of a file gather. The ending is the one that cache tools clear away."""
    return blob_path(repo, file).with_name(f"{file.etag}.ropechat.incomplete")


def bytes_here(repo: str, commit: str, file: RemoteFile) -> int:
    """How many bytes of a file this machine has."""
    whole = (cache.snapshot_folder(repo, commit) / file.name, blob_path(repo, file))
    if any(path.is_file() for path in whole):
        return file.size
    try:
        return min(partial_path(repo, file).stat().st_size, file.size)
    except OSError:
        return 0
