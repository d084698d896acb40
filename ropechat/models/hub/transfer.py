"""Downloading the files of a plan: resumable, verified by hash, and atomic.

Bytes go to a partial file that survives Ctrl-C, kill -9 and a lost connection. It is renamed to its final
name only when its length and hash are right. The revision is recorded last, when all files are in place.
"""

import contextlib
import errno
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ropechat.errors import DownloadError, FileAccessError, RopechatError
from ropechat.models.hub import cache, client
from ropechat.models.hub.partial import BrokeOffError, FileProgress, Partial, StoppedError
from ropechat.models.hub.plan import DownloadPlan, RemoteFile, blob_path
from ropechat.models.weights import TOKENIZER
from ropechat.util.files import replacing
from ropechat.util.text import format_bytes

PAUSES: Sequence[float] = (0.5, 1, 2, 4, 8)  # seconds between retries without progress
_WORKERS = 4
_TICK = 0.1  # seconds
_GRACE = 0.5  # seconds for the threads to end
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass
class DownloadProgress:
    """The progress of a download. received: bytes received over the network in this run.

    stage: downloading, or of a package unpacking.
    """

    files: list[FileProgress]
    received: int = 0
    stage: str = "downloading"
    begun: float = field(default_factory=time.monotonic)

    @property
    def done(self) -> int:
        """Bytes on this machine."""
        return sum(one.done for one in self.files)

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(one.file.size for one in self.files)


OnProgress = Callable[[DownloadProgress], None]


def fetch(plan: DownloadPlan, on_progress: OnProgress | None = None) -> Path:
    """Download what is missing; return the path to open.

    on_progress: called about ten times a second, from this thread. An exception in this thread (Ctrl-C) stops
    the download at once; received bytes are kept, and the next `fetch` resumes from them.
    Raises DownloadError, FileAccessError.
    """
    download = _Download(plan)
    threads = [
        # Daemons: a thread that waits for the network must not delay the exit.
        threading.Thread(target=download.work_off, daemon=True)
        for _ in range(min(_WORKERS, len(plan.files)))
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive() and not download.stop.is_set():
                thread.join(_TICK)
                if on_progress is not None:
                    on_progress(download.progress)
    finally:
        download.stop.set()
        end = time.monotonic() + _GRACE
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, end - time.monotonic()))
    if download.error is not None:
        raise download.error
    if on_progress is not None:
        on_progress(download.progress)
    write_refs(plan)
    return plan.path


class _Download:
    """The state shared by the threads of a download."""

    def __init__(self, plan: DownloadPlan) -> None:
        self.stop = threading.Event()
        self.error: RopechatError | None = None
        small_first = sorted(plan.files, key=lambda file: file.size)
        self.progress = DownloadProgress([FileProgress(file) for file in small_first])
        self._plan = plan
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[FileProgress] = queue.SimpleQueue()
        for one in self.progress.files:
            self._waiting.put(one)

    def work_off(self) -> None:
        """Download file after file; the first error stops all threads."""
        with contextlib.suppress(queue.Empty):
            while not self.stop.is_set():
                one = self._waiting.get_nowait()
                try:
                    self._place(one)
                except StoppedError:
                    return
                except Exception as error:
                    with self._lock:
                        self.error = self.error or self._explained(error, one.file)
                    self.stop.set()

    def _place(self, one: FileProgress) -> None:
        """Download a file and link it under its final name."""
        blob, link = blob_path(self._plan.name.repo, one.file), self._plan.folder / one.file.name
        one.state = "running"
        if not link.is_file():
            if not blob.is_file():
                blob.parent.mkdir(parents=True, exist_ok=True)
                Partial(self._plan, one, self.stop).gather(self._received, self._wait)
            link_blob(blob, link)
        one.done, one.state = one.file.size, "done"

    def _received(self, count: int) -> None:
        with self._lock:
            self.progress.received += count

    def _wait(self, failures: int) -> bool:
        """Pause before a retry; False after too many failures."""
        if failures > len(PAUSES):
            return False
        if self.stop.wait(PAUSES[failures - 1]):
            raise StoppedError
        return True

    def _explained(self, error: Exception, file: RemoteFile) -> RopechatError:
        name = self._plan.name
        done, total = format_bytes(self.progress.done), format_bytes(self.progress.total)
        kept = f"{done} of {total} are kept for the next attempt"
        if isinstance(error, BrokeOffError):
            return DownloadError(f"{error}; {kept}")
        if isinstance(error, RopechatError):
            return error
        if isinstance(error, OSError) and not client.is_answer(error):
            if is_disk_full(error):
                where = cache.cache_folder()
                return DownloadError(f"{name}: disk full at {file.name}; free space in {where}; {kept}")
            return FileAccessError(f"{error.filename or cache.cache_folder()}: {error.strerror or error}")
        return DownloadError(f"{client.explanation(error, name)}; {kept}")


def is_disk_full(error: OSError) -> bool:
    """Whether a write failed for want of space, or of quota."""
    return error.errno in _FULL


def link_blob(blob: Path, link: Path) -> None:
    """Link a blob into the snapshot atomically; without support for links, move it."""
    link.parent.mkdir(parents=True, exist_ok=True)
    fresh = link.with_name(f".{os.getpid()}-{threading.get_ident()}")
    try:
        fresh.symlink_to(os.path.relpath(blob, link.parent))
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.replace(blob, link)
        return
    os.replace(fresh, link)


def write_refs(plan: DownloadPlan) -> None:
    """Record, as huggingface_hub does, the revision's commit and the absence of tokenizer.json."""
    if plan.gguf is None and all(file.name != TOKENIZER for file in plan.files):
        mark = cache.absence_mark(plan.name, plan.commit, TOKENIZER)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    if plan.name.revision == plan.commit:
        return
    ref = cache.repo_folder(plan.name.repo) / "refs" / plan.name.revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    with replacing(ref) as file:
        file.write(plan.commit.encode())
