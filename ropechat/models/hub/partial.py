"""One file on its way: the bytes so far, their hash, and how they go on."""

import contextlib
import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ropechat.errors import DownloadError
from ropechat.models.hub import client
from ropechat.models.hub.plan import SHA256_DIGITS, DownloadPlan, RemoteFile, blob_path, partial_path
from ropechat.util.files import try_lock

_PIECE = 1 << 20
_TURN = 0.1  # seconds between two checks of a file that another download has locked
_STARTED_S = 0.5  # seconds that the start of a program takes at most
_CONTENT_RANGE = re.compile(r"bytes (\d+)-")


class StoppedError(Exception):
    """The download was stopped on request."""


class BrokeOffError(DownloadError):
    """The Hub stopped sending before the end."""


class _UselessError(Exception):
    """What was gathered is no beginning of the file."""


@dataclass
class FileProgress:
    """How far one file is, in bytes. state: waiting, running, done."""

    file: RemoteFile
    done: int = 0
    state: str = "waiting"


class Partial:
    """The partial file of a download, locked by one process at a time."""

    def __init__(self, plan: DownloadPlan, progress: FileProgress, stop: threading.Event) -> None:
        self._plan = plan
        self._wanted = progress.file
        self._progress = progress
        self._stop = stop
        self._digest = _digest_of(progress.file)

    def gather(self, received: Callable[[int], None], wait: Callable[[int], bool]) -> None:
        """Download and verify the file and rename it, unless another process does so first.

        received(count): called for bytes from the network. wait(failures): called after each transient
        failure with the number of failures since the last received byte; returning False gives up. Wrong
        bytes are downloaded again once. Raises DownloadError, StoppedError, OSError and the session's errors.
        """
        blob, path = (
            blob_path(self._plan.name.repo, self._wanted),
            partial_path(self._plan.name.repo, self._wanted),
        )
        with self._held(path, blob) as file:
            if file is None:
                return
            failures, fresh = 0, False
            while not self._is_whole():
                before = self._progress.done
                try:
                    self._append(file, received)
                except _UselessError:
                    self._forget(file)
                    if fresh:
                        raise DownloadError(self._wrong()) from None
                    fresh = True
                except Exception as error:
                    if not (isinstance(error, BrokeOffError) or client.is_transient(error)):
                        raise
                    failures = 1 if self._progress.done > before else failures + 1
                    if not wait(failures):
                        raise
            os.fsync(file.fileno())
            os.replace(path, blob)

    def _is_whole(self) -> bool:
        return self._progress.done == self._wanted.size and self._digest.hexdigest() == self._wanted.etag

    @contextlib.contextmanager
    def _held(self, path: Path, blob: Path) -> Iterator[IO[bytes] | None]:
        """Lock the partial file and hash its content; None if another process completed it."""
        with held(path, blob, self._pause) as file:
            while file is not None and (piece := file.read(_PIECE)):
                self._take(piece)
            yield file

    def _pause(self) -> None:
        if self._stop.wait(_TURN):
            raise StoppedError

    def _append(self, file: IO[bytes], received: Callable[[int], None]) -> None:
        """Stream the rest of the file to the end of the partial file.

        Raises _UselessError if the bytes are wrong, BrokeOffError if they end early.
        """
        size = self._wanted.size
        if self._progress.done >= size and not self._is_whole():
            raise _UselessError
        start = self._progress.done
        try:
            with client.opened(self._plan.name, self._plan.commit, self._wanted.name, start) as response:
                if start and response.status_code == 200:  # the server sends the whole file
                    self._forget(file)
                elif start and not _continues(response, start):
                    raise _UselessError
                for piece in response.iter_raw():
                    if self._progress.done + len(piece) > size:
                        raise _UselessError
                    write_all(file, piece)
                    self._take(piece)
                    received(len(piece))
        except Exception as error:
            if client.status(error) == 416:  # range not satisfiable
                raise _UselessError from None
            raise
        if self._progress.done < size:
            raise BrokeOffError(f"{self._plan.name}: {self._wanted.name}: the Hub stopped sending")
        if not self._is_whole():
            raise _UselessError

    def _take(self, piece: bytes) -> None:
        if self._stop.is_set():
            raise StoppedError
        self._digest.update(piece)
        self._progress.done += len(piece)

    def _forget(self, file: IO[bytes]) -> None:
        file.seek(0)
        file.truncate()
        self._digest = _digest_of(self._wanted)
        self._progress.done = 0

    def _wrong(self) -> str:
        kind = "sha256" if len(self._wanted.etag) == SHA256_DIGITS else "git hash"
        return (
            f"{self._plan.name}: {self._wanted.name}: received wrong bytes twice ({kind} or size differs "
            "from the Hub's); they are discarded; a proxy or mirror may alter files"
        )


@contextlib.contextmanager
def held(path: Path, blob: Path, pause: Callable[[], None]) -> Iterator[IO[bytes] | None]:
    """Open a partial file, locked, from its start; None if another process completed it to `blob`.

    pause: called between two attempts while another process has the lock. Raises OSError, and what it raises.
    """
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o666), "r+b", buffering=0) as file:
            if not try_lock(file.fileno()):  # another download of the same file
                pause()
                continue
            if blob.is_file():
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
                yield None
                return
            if _is_same(file.fileno(), path):
                yield file
                return


def discard(plan: DownloadPlan) -> None:
    """Remove the partial files of a download, except those locked by another process. Raises OSError.

    A lock is waited for: a program that is being started has those of this one until it has begun.
    """
    end = time.monotonic() + _STARTED_S
    for wanted in plan.files:
        path = partial_path(plan.name.repo, wanted)
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            while not (locked := try_lock(file.fileno())) and time.monotonic() < end:
                time.sleep(0.01)
            if locked:
                path.unlink()


def write_all(file: IO[bytes], piece: bytes) -> None:
    """Write all of it: an unbuffered write may be partial."""
    view = memoryview(piece)
    while view:
        view = view[file.write(view) :]


def _digest_of(file: RemoteFile) -> Any:
    """The hash of the etag: sha256, or git's sha1 of "blob <size>", a zero byte and the content."""
    if len(file.etag) == SHA256_DIGITS:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)


def _continues(response: Any, start: int) -> bool:
    """Whether a response starts at byte `start`."""
    match = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
    return response.status_code == 206 and match is not None and int(match[1]) == start


def _is_same(descriptor: int, path: Path) -> bool:
    """Whether an open file still has this name; its previous owner may have renamed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
