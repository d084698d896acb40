"""Models of Ollama, LM Studio and llama.cpp, in folders that the user names, and behind links."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from models import write_llama

from ropechat import builtin
from ropechat.engine.loading import check, display_name, read_header
from ropechat.errors import ModelPathError, NotDownloadedError, UnsafePathError
from ropechat.models import folders, ollama
from ropechat.models.folders import MAX_DEPTH, models_below
from ropechat.models.installed import ModelSummary, list_installed
from ropechat.models.resolve import resolve

GGUF = b"GGUF\3\0\0\0"
GOLDEN = Path(__file__).parents[1] / "golden" / "gguf" / "llama3" / "q8_0.gguf"
QWEN = "Qwen3-0.6B-Q8_0.gguf"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, in which nothing is but what the test makes."""
    for name in (
        *("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "OLLAMA_MODELS"),
        "LLAMA_CACHE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(builtin, "FOLDER", tmp_path / "no-builtin")
    monkeypatch.setattr(ollama, "_SERVICE", tmp_path / "no-service")
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "home"


def put(path: Path, data: bytes = GGUF) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def manifest(
    models: Path, name: str, layers: Sequence[Any], host: str = "registry.ollama.ai/library"
) -> Path:
    model, _, tag = name.partition(":")
    where = models / "manifests" / host / model / (tag or "latest")
    return put(where, json.dumps({"schemaVersion": 2, "layers": layers}).encode())


def layer(models: Path, data: bytes = GGUF, kind: str = "model", digest: str = "a" * 64) -> dict[str, Any]:
    """A layer whose blob is there."""
    put(models / "blobs" / f"sha256-{digest}", data)
    return {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}", "size": 1}


def listed(*named: Path) -> tuple[list[ModelSummary], list[str]]:
    notes: list[str] = []
    return list(list_installed(read_header, named, notes.append)), notes


def names(root: Path) -> list[str]:
    return [one.name for one in models_below(root, "x", pytest.fail)]


# ---- Ollama


def test_ollama_models_are_found_and_load(home: Path) -> None:
    models = home / ".ollama/models"
    license = layer(models, b"text", "license", "b" * 64)
    manifest(models, "tiny:1b", [layer(models, GOLDEN.read_bytes()), license])
    (row,), notes = listed()
    assert (row.name, row.source, row.reason) == ("tiny:1b", "Ollama", None)
    assert row.size == GOLDEN.stat().st_size
    assert row.model_type == "llama"
    assert notes == []
    path = resolve("tiny:1b")
    assert path == row.path == models / "blobs" / ("sha256-" + "a" * 64)
    assert display_name(path) == "tiny:1b"
    assert check(path)["model_type"] == "llama"
    assert display_name(put(models / "blobs" / ("sha256-" + "c" * 64))) == "sha256-" + "c" * 64


def test_names_of_ollama(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    models = tmp_path / "elsewhere"
    monkeypatch.setenv("OLLAMA_MODELS", str(models))
    one = layer(models)
    manifest(models, "llama3.2", [one])
    manifest(models, "mine:q8", [one], "registry.ollama.ai/somebody")
    manifest(models, "Some-GGUF:Q4_K_M", [one], "hf.co/org")
    assert [row.name for row in listed()[0]] == ["hf.co/org/Some-GGUF:Q4_K_M", "llama3.2", "somebody/mine:q8"]
    for name in ("llama3.2", "llama3.2:latest", "somebody/mine:q8", "hf.co/org/Some-GGUF:Q4_K_M"):
        assert resolve(name) == models / "blobs" / ("sha256-" + "a" * 64)


def test_what_ollama_has_of_the_catalog(home: Path) -> None:
    with pytest.raises(
        NotDownloadedError, match=r"qwen3:0.6b: not on this machine; run `ropechat models pull q"
    ):
        resolve("qwen3:0.6b")
    models = home / ".ollama/models"
    manifest(models, "qwen3:0.6b", [layer(models)])
    assert resolve("Qwen3:0.6b").name == "sha256-" + "a" * 64
    with pytest.raises(NotDownloadedError):  # `qwen3` is another size there
        resolve("qwen3")


@pytest.mark.parametrize(
    "layers",
    [
        *(None, "x", [], [3], [{}], [{"mediaType": "application/vnd.ollama.image.model"}]),
        [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../etc/passwd"}],
        [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + "A" * 64}],
        [{"mediaType": "application/vnd.ollama.image.tensor", "digest": "sha256:" + "a" * 64}],
    ],
)
def test_manifests_that_name_no_model(home: Path, layers: Any) -> None:
    manifest(home / ".ollama/models", "bad", layers)
    assert listed() == ([], [])
    with pytest.raises(ModelPathError, match="model not found"):
        resolve("bad")


def test_manifests_that_cannot_be_used(home: Path, tmp_path: Path) -> None:
    models = home / ".ollama/models"
    put(models / "manifests/registry.ollama.ai/library/cut/latest", b'{"layers": [')
    put(models / "manifests/registry.ollama.ai/library/huge/latest", b" " * (2 << 20))
    secret = put(tmp_path / "secret", b"{}")
    (models / "manifests/registry.ollama.ai/library/link").mkdir()
    (models / "manifests/registry.ollama.ai/library/link/latest").symlink_to(secret)
    put(models / "manifests/registry.ollama.ai/library/\x1b[2J/latest", b"{}")
    one = layer(models)
    manifest(models, "adapted", [one, layer(models, b"", "adapter", "d" * 64)])
    manifest(models, "gone", [{**one, "digest": "sha256:" + "e" * 64}])
    rows, notes = listed()
    reasons = {row.name: row.reason or "" for row in rows}
    assert set(reasons) == {"adapted", "gone"}
    assert "several files" in reasons["adapted"]
    assert reasons["gone"].endswith("No such file or directory; run `ollama pull gone`")
    assert len(notes) == 3
    assert all(note.startswith("skipped") for note in notes)


# ---- LM Studio, llama.cpp, folders


def test_lm_studio(home: Path) -> None:
    for root, name in ((".lmstudio", "one"), (".cache/lm-studio", "two")):
        put(home / root / f"models/Qwen/{name}-GGUF/{QWEN}")
        put(home / root / f"models/Qwen/{name}-GGUF/mmproj-model-f16.gguf")
    rows, notes = listed()
    assert [row.name for row in rows] == ["Qwen/one-GGUF:Q8_0", "Qwen/two-GGUF:Q8_0"]
    assert {row.source for row in rows} == {"LM Studio"}
    assert notes == []
    here = home / ".lmstudio/models/Qwen/one-GGUF" / QWEN
    assert resolve("Qwen/one-GGUF:Q8_0") == resolve("qwen3:0.6b") == here


def test_llama_cpp(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    flat = put(home / f".cache/llama.cpp/Qwen_Qwen3-0.6B-GGUF_{QWEN}")
    put(flat.with_name(flat.name + ".etag"), b"x")
    put(flat.with_name("manifest=Qwen=Qwen3-0.6B-GGUF=Q8_0.json"), b"{}")
    ((row,), notes) = listed()
    assert (row.name, row.source, notes) == (flat.name.removesuffix(".gguf"), "llama.cpp", [])
    assert resolve("qwen3:0.6b") == flat

    commit = "0123456789" * 4
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llama"))
    repo = tmp_path / "llama/models--org--name-GGUF"
    blob = put(repo / "blobs/abc")
    put(repo / "refs/main", commit.encode())
    (repo / "snapshots" / commit).mkdir(parents=True)
    (repo / "snapshots" / commit / "m-Q4_0.gguf").symlink_to("../../blobs/abc")
    ((row,), notes) = listed()
    assert (row.name, row.source, notes) == ("org/name-GGUF:Q4_0", "llama.cpp", [])
    assert row.path.resolve() == blob
    assert resolve("org/name-GGUF:Q4_0") == row.path


def test_a_file_that_two_programs_have_is_one_row(home: Path) -> None:
    blob = put(home / ".cache/llama.cpp/a-Q8_0.gguf")
    link = home / ".lmstudio/models/org/a/a-Q8_0.gguf"
    link.parent.mkdir(parents=True)
    link.symlink_to(blob)
    assert [row.source for row in listed()[0]] == ["LM Studio"]


def test_folders_that_the_user_names(home: Path, tmp_path: Path) -> None:
    root = tmp_path / "models"
    for name in ("b-Q8_0.gguf", "a-Q4_0.gguf", "a-Q8_0.gguf", "sub/c.gguf", "notes.txt", ".hidden/d.gguf"):
        put(root / name)
    put(root / "big/m-00001-of-00002.gguf")
    put(root / "big/m-00002-of-00002.gguf", GGUF * 2)
    put(root / "half/m-00001-of-00002.gguf")
    write_llama(root / "folder")
    put(root / "only-config/config.json", b"{}")
    rows = {row.name: row for row in listed(root)[0]}
    found = ["a-Q4_0", "a-Q8_0", "b-Q8_0", "big/m", "folder", "half/m", "sub/c"]
    assert sorted(rows) == found
    assert rows["big/m"].size == 3 * len(GGUF)
    assert rows["half/m"].reason == "missing parts m-00002-of-00002.gguf; download all parts"
    assert rows["folder"].model_type == "llama"
    assert rows["a-Q4_0"].source == str(root)
    assert resolve("sub/c", [root]) == root / "sub/c.gguf"
    assert names(root / "folder") == ["folder"]


def test_a_name_of_the_catalog_in_a_named_folder(home: Path, tmp_path: Path) -> None:
    file = put(tmp_path / "models/x" / QWEN)
    with pytest.raises(NotDownloadedError):
        resolve("qwen3:0.6b")
    assert resolve("qwen3:0.6b", [tmp_path / "models"]) == file


def test_a_listing_does_not_go_deep_or_in_circles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "models"
    folder = root
    for depth in range(MAX_DEPTH + 3):
        put(folder / f"m{depth}.gguf")
        folder = folder / "sub"
    assert [Path(name).name for name in names(root)] == [f"m{depth}" for depth in range(MAX_DEPTH + 1)]
    (root / "again").symlink_to(root)
    (root / "loop").symlink_to(root / "loop")
    assert len(names(root)) == MAX_DEPTH + 1
    monkeypatch.setattr(folders, "MAX_ENTRIES", 4)
    notes: list[str] = []
    assert len(list(models_below(root, "x", notes.append))) < MAX_DEPTH + 1
    assert notes == [f"skipped (more than 4 entries): the rest of {root}"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_unreadable_folders_are_skipped_with_a_note(tmp_path: Path) -> None:
    closed = put(tmp_path / "models/closed/m.gguf").parent
    put(tmp_path / "models/open.gguf")
    closed.chmod(0)
    try:
        rows, notes = listed(tmp_path / "models")
    finally:
        closed.chmod(0o700)
    assert [row.name for row in rows] == ["open"]
    assert notes == [f"skipped (Permission denied): {closed}"]


def test_a_folder_that_cannot_be_listed_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, closed = os.scandir, put(tmp_path / "models/closed/m.gguf").parent
    put(tmp_path / "models/open.gguf")

    def scandir(path: Any) -> Any:
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    rows, notes = listed(tmp_path / "models")
    assert [row.name for row in rows] == ["open"]
    assert notes == [f"skipped (Permission denied): {closed}"]
    assert listed(tmp_path / "nothing")[1] == [f"skipped (No such file or directory): {tmp_path / 'nothing'}"]


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    file = os.fsencode(tmp_path) + b"/models/\xff.gguf"
    (tmp_path / "models").mkdir()
    with open(file, "wb") as stream:
        stream.write(GGUF)
    (row,) = listed(tmp_path / "models")[0]
    assert row.reason == "its path is not UTF-8; rename it"


# ---- Links


def test_a_model_of_links_loads(tmp_path: Path) -> None:
    real = write_llama(tmp_path / "disk/real")
    for name in ("links", "links-to-links"):
        folder = tmp_path / name
        folder.mkdir()
        for file in real.iterdir():
            (folder / file.name).symlink_to((tmp_path / "links" if name != "links" else real) / file.name)
        assert resolve(folder) == real
        assert check(folder)["model_type"] == "llama"
    (tmp_path / "whole").symlink_to(real)
    assert check(tmp_path / "whole")["model_type"] == "llama"
    (tmp_path / "one.gguf").symlink_to(GOLDEN)
    assert check(tmp_path / "one.gguf")["model_type"] == "llama"
    rows = {row.name: row.reason for row in listed(tmp_path)[0]}
    assert rows == dict.fromkeys(("one", "disk/real", "links", "links-to-links"))


def test_split_files_behind_links(tmp_path: Path) -> None:
    real = tmp_path / "disk"
    for part in (1, 2):
        put(real / f"m-0000{part}-of-00002.gguf")
        (tmp_path / f"m-0000{part}-of-00002.gguf").symlink_to(real / f"m-0000{part}-of-00002.gguf")
    assert resolve(tmp_path / "m-00001-of-00002.gguf") == real / "m-00001-of-00002.gguf"


def test_single_links_of_a_model_do_not_leave_its_folder(tmp_path: Path) -> None:
    real = write_llama(tmp_path / "real")
    (tmp_path / "stranger").mkdir()
    for file in real.iterdir():
        if file.name != "config.json":
            (tmp_path / "stranger" / file.name).symlink_to(file)
    (tmp_path / "stranger/config.json").write_bytes((real / "config.json").read_bytes())
    assert resolve(tmp_path / "stranger") == tmp_path / "stranger"
    with pytest.raises(UnsafePathError, match="leads out of the model folder"):
        check(tmp_path / "stranger")
    secret = put(tmp_path / "secret.json", b"{}")  # all are links, but not under their own names
    (tmp_path / "renamed").mkdir()
    for file in real.iterdir():
        (tmp_path / "renamed" / file.name).symlink_to(secret)
    assert resolve(tmp_path / "renamed") == tmp_path / "renamed"


# ---- Names


def test_a_close_miss_names_the_nearest() -> None:
    with pytest.raises(ModelPathError, match=r"model not found .*; did you mean qwen3:0.6b\? "):
        resolve("qwen3:06b")
    with pytest.raises(ModelPathError, match=r"; give a folder"):
        resolve("something-else")
