"""Planning a download: its files, their sizes, what is present already, and free disk space."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

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
    """A file of a repository. etag: its sha256 in hex (large files), or its git blob's sha1."""

    name: str
    size: int
    etag: str


@dataclass(frozen=True)
class DownloadPlan:
    """The files of a model at a commit. gguf: the GGUF file to open; None for safetensors.

    here: bytes that are on this machine already, including partial files. resumes: whether a stopped download
    goes on where it was.
    """

    resumes: ClassVar[bool] = True

    name: HubName
    commit: str
    files: tuple[RemoteFile, ...]
    weights: int
    gguf: str | None
    here: int

    @property
    def total(self) -> int:
        """Total bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def rest(self) -> int:
        """Bytes to download."""
        return self.total - self.here

    @property
    def _disk(self) -> int:
        """Bytes of disk that the download takes."""
        return self.rest

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return cache.snapshot_folder(self.name.repo, self.commit)

    @property
    def path(self) -> Path:
        """The path to open: the folder, or the GGUF file in it."""
        return self.folder / self.gguf if self.gguf else self.folder

    def lines(self, free_memory: int | None) -> list[str]:
        """Describe the plan. free_memory: bytes available to a model; None if unknown."""
        begun = f" ({format_bytes(self.here)} already downloaded)" if self.here else ""
        count = len(self.files)
        opens = f": {self.gguf}" if self.gguf and count == 1 else ""
        free = f"{format_bytes(free_disk(self.folder))} free"
        return [
            f"{self.name}: {count} file{'' if count == 1 else 's'}, {format_bytes(self.total)}{begun}{opens}",
            f"to {self.folder} ({free})",
            _memory_line(self.weights, free_memory),
        ]

    def brief_lines(self, free_memory: int | None) -> list[str]:
        """`lines` without names and folders, for narrow places."""
        begun = f" ({format_bytes(self.here)} already here)" if self.here else ""
        count = len(self.files)
        size = f"{count} file{'' if count == 1 else 's'}, {format_bytes(self.total)}{begun}"
        disk = f"{format_bytes(free_disk(self.folder))} of disk free"
        return [f"{size}; {disk}", _memory_line(self.weights, free_memory)]

    def check_disk(self) -> None:
        """Raise DownloadError if the download does not fit on the disk."""
        free = free_disk(self.folder)
        if self._disk + _SPARE_DISK > free and self._disk:
            raise DownloadError(
                f"{self.name}: disk full: {format_bytes(self._disk)} needed, {format_bytes(free)} free in "
                f"{cache.cache_folder()}; free some space, or set HF_HOME to a folder on another disk"
            )


def _memory_line(weights: int, free: int | None) -> str:
    if free is None:
        return f"weights: {format_bytes(weights)}"
    fits = "fit" if weights <= free else "will not fit"
    return f"weights: {format_bytes(weights)}, {fits} in memory ({format_bytes(free)} free)"


def make_plan(name: HubName) -> DownloadPlan:
    """Ask the Hub for the files of a model: one request, and one for the index of shards.

    Raises DownloadError (Hub or network), ModelNotFoundError (no matching weights), ConfigError or
    UnsafePathError (invalid content of the repository).
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
            f"{name}: the repository is incomplete (missing {join_names(missing)}); choose another model"
        )
    files = tuple(_remote(siblings[file], name) for file in dict.fromkeys(chosen.files))
    weights = sum(file.size for file in files if file.name in chosen.weights)
    here = sum(bytes_here(name.repo, commit, file) for file in files)
    plan = DownloadPlan(name, commit, files, weights, chosen.gguf, here)
    plan.check_disk()
    return plan


def _remote(entry: Any, name: HubName) -> RemoteFile:
    """Validate the name, size and hash of a listed file."""
    file = str(entry.rfilename)
    etag, size = str(entry.lfs.sha256 if entry.lfs else entry.blob_id), entry.size
    is_hash = len(etag) in (SHA1_DIGITS, SHA256_DIGITS) and set(etag) <= set("0123456789abcdef")
    if not is_plain(file) or not is_hash or not isinstance(size, int) or size < 0:
        raise DownloadError(
            f"{name}: {file!r:.80}: the Hub lists no valid name, size or hash; nothing is downloaded"
        )
    return RemoteFile(file, size, etag)


def blob_path(repo: str, file: RemoteFile) -> Path:
    """The path of a file's content once it is complete and verified."""
    return cache.repo_folder(repo) / "blobs" / file.etag


def partial_path(repo: str, file: RemoteFile) -> Path:
    """The path of a partial download. Its suffix is the one that cache tools clean up."""
    return blob_path(repo, file).with_name(f"{file.etag}.ropechat.incomplete")


def bytes_here(repo: str, commit: str, file: RemoteFile) -> int:
    """Number of bytes of a file that are on this machine."""
    whole = (cache.snapshot_folder(repo, commit) / file.name, blob_path(repo, file))
    if any(path.is_file() for path in whole):
        return file.size
    try:
        return min(partial_path(repo, file).stat().st_size, file.size)
    except OSError:
        return 0
