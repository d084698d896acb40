"""Downloads from a stand-in Hub: what is fetched, faults of every kind, none partial under a final name."""

import os
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hub_server import COMMIT, Hub, Repo, git_sha1, serve, sha256, use
from repeats import repeats

from ropechat.errors import DownloadError, ModelNotFoundError, RequestError, RopechatError
from ropechat.models.hub import cached_models as shelf
from ropechat.models.hub import partial, transfer
from ropechat.models.hub import plan as planning
from ropechat.models.hub.cache import cache_folder, repo_folder
from ropechat.models.hub.names import HubName, parse
from ropechat.models.hub.plan import make_plan
from ropechat.models.hub.transfer import DownloadProgress, fetch
from ropechat.models.resolve import resolve

RNG = random.Random(5)
WEIGHTS = RNG.randbytes(300_000)
FILES = {
    "README.md": b"# model",
    "config.json": b'{"vocab_size": 260}',
    "tokenizer.json": RNG.randbytes(20_000),
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"pickle",
    "sub/m-Q8_0.gguf": RNG.randbytes(50_000),
    "m-Q4_0.gguf": RNG.randbytes(40_000),
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(transfer, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr(transfer, "_TICK", 0.01)
    with serve() as hub:
        use(hub, tmp_path, monkeypatch)
        hub.repos["org/name"] = Repo(dict(FILES))
        yield hub


def name_of(text: str) -> HubName:
    name = parse(text)
    assert name is not None
    return name


def get(text: str = "org/name") -> Path:
    return fetch(make_plan(name_of(text)))


def refused(text: str = "org/name") -> str:
    with pytest.raises(ModelNotFoundError) as caught:
        get(text)
    assert caught.value.exit_code == 4
    assert "\n" not in str(caught.value)
    assert "hf_" not in str(caught.value)
    assert "secret" not in str(caught.value)
    return str(caught.value)


def check_final_names(repo: str = "org/name") -> None:
    """Whatever has a final name is whole and right."""
    for blob in (repo_folder(repo) / "blobs").glob("*"):
        if not blob.name.endswith(".incomplete"):
            assert blob.name in (sha256(blob.read_bytes()), git_sha1(blob.read_bytes()))
    for link in (repo_folder(repo) / "snapshots").rglob("*"):
        if link.is_symlink():
            assert link.resolve().parent.name == "blobs"
            assert link.is_file()


def partials(repo: str = "org/name") -> dict[str, int]:
    blobs = repo_folder(repo) / "blobs"
    return {path.name.split(".")[0]: path.stat().st_size for path in blobs.glob("*.incomplete")}


# ---- What is fetched


def test_a_model_with_safetensors(hub: Hub) -> None:
    plan = make_plan(name_of("org/name"))
    assert {file.name for file in plan.files} == {
        "config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"
    }  # fmt: skip
    assert (plan.here, plan.rest, plan.weights) == (0, plan.total, len(WEIGHTS))
    text = "\n".join(plan.lines(None))
    assert "4 files, 320 kB" in text
    assert "free)" in text
    path = fetch(plan)
    assert path == resolve("org/name")
    assert path.name == COMMIT
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    assert not any("pytorch" in request.path or "README" in request.path for request in hub.requests)
    check_final_names()
    before = len(hub.requests)
    again = make_plan(name_of("org/name"))
    assert (again.rest, fetch(again)) == (0, path)
    assert len(hub.requests) == before + 1


def test_a_gguf_by_quantization(hub: Hub) -> None:
    path = get("org/name:q8_0")
    assert path.name == "m-Q8_0.gguf"
    assert path.read_bytes() == FILES["sub/m-Q8_0.gguf"]
    assert resolve("org/name:Q8_0") == path
    assert sum("/resolve/" in request.path for request in hub.requests) == 1
    assert "no GGUF file matches Q2_K; available: Q4_0, Q8_0" in refused("org/name:Q2_K")
    hub.repos["org/ggufs"] = Repo({"m-Q8_0.gguf": b"8", "m-Q4_K_M.gguf": b"4"})
    plan = make_plan(name_of("org/ggufs"))
    assert plan.gguf == "m-Q4_K_M.gguf"
    assert "m-Q4_K_M.gguf" in plan.lines(None)[0]


def test_shards_and_revisions(hub: Hub) -> None:
    other = "feed" + "0" * 36
    index = b'{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'
    hub.repos["org/big"] = Repo(
        {"config.json": b"{}", "model.safetensors.index.json": index, "model-1.safetensors": b"1" * 5000,
         "model-2.safetensors": b"2" * 6000, "model-3.safetensors": b"3"},
        commits={"main": COMMIT, "v2": other},
    )  # fmt: skip
    path = get("org/big@v2")
    assert sorted(file.name for file in path.iterdir()) == [
        "config.json", "model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json"
    ]  # fmt: skip
    assert resolve("org/big@v2") == resolve(f"org/big@{other}") == path
    with pytest.raises(ModelNotFoundError, match="not in the Hub cache"):
        resolve("org/big")
    del hub.repos["org/big"].files["model-2.safetensors"]
    assert "the repository is incomplete (missing model-2.safetensors)" in refused("org/big")


def test_the_library_accepts_the_cache(hub: Hub) -> None:
    from huggingface_hub import scan_cache_dir, snapshot_download

    path = get()
    get("org/name:Q8_0")
    info = scan_cache_dir(cache_folder())
    assert not info.warnings
    (repo,) = info.repos
    assert repo.repo_id == "org/name"
    assert (
        repo.size_on_disk
        == sum((path / name).stat().st_size for name in os.listdir(path) if "." in name) + 50_000
    )
    assert snapshot_download("org/name", cache_dir=cache_folder(), local_files_only=True) == str(path)


def test_pull_from_python(hub: Hub) -> None:
    import ropechat

    assert ropechat.pull("org/name:q8_0") == resolve("org/name:Q8_0")
    with pytest.raises(RequestError, match="must be org/name"):
        ropechat.pull("./org/name")


# ---- Interruptions


@pytest.mark.slow
@repeats(30, 1000)
def test_interrupted_downloads(count: int, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PAUSES", ())
    monkeypatch.setattr(transfer, "_GRACE", 60.0)  # no thread of the last attempt still writes
    rng, broken, resumed, finished = random.Random(11), 0, 0, 0
    files = {name: FILES[name] for name in ("config.json", "tokenizer.json", "model.safetensors")}
    hub.body = lambda file, start, rest: rest if rng.random() < 0.1 else rest[: rng.randrange(len(rest))]
    while broken < count:
        repo = f"org/name{finished}"
        hub.repos[repo] = Repo(files)
        hub.without_length = finished % 2 == 1
        while True:
            before = partials(repo)
            hub.requests.clear()
            try:
                path = get(repo)
                break
            except DownloadError:
                broken += 1
            finally:
                check_final_names(repo)
            for file in files:
                etag = sha256(files[file]) if file == "model.safetensors" else git_sha1(files[file])
                for start in hub.starts(file):
                    assert start == before.get(etag, 0)
                    resumed += start > 0
            assert not (repo_folder(repo) / "refs").exists()
        finished += 1
        assert {file: (path / file).read_bytes() for file in files} == files
        assert not partials(repo)
        assert resolve(repo) == path
    assert resumed > count // 2
    assert finished > 0


def test_a_dropped_line_is_taken_up_again_in_the_same_run(hub: Hub) -> None:
    hub.body = lambda file, start, rest: rest[: max(1, len(rest) // 2)] if len(rest) > 1000 else rest
    path = get()
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    starts = hub.starts("model.safetensors")
    assert starts == sorted(set(starts))
    assert len(starts) > 5


def test_a_server_that_stops_for_good(hub: Hub) -> None:
    hub.body = lambda file, start, rest: rest if len(rest) < 100_000 and file != "model.safetensors" else b""
    assert "320 kB are kept for the next attempt" in refused()
    assert len(hub.starts("model.safetensors")) == 3


def test_a_server_without_ranges(hub: Hub) -> None:
    cuts = iter([100_000, 200_000])
    hub.ignores_ranges = True
    hub.body = lambda file, start, rest: rest[: next(cuts, None)] if file == "model.safetensors" else rest
    assert (get() / "model.safetensors").read_bytes() == WEIGHTS


def test_wrong_bytes_never_get_a_name(hub: Hub) -> None:
    hub.lies["model.safetensors"] = "0" * 64
    words = refused()
    assert "model.safetensors: received wrong bytes twice (sha256" in words
    assert hub.starts("model.safetensors") == [0, 0]
    check_final_names()
    assert not (repo_folder("org/name") / "blobs" / ("0" * 64)).exists()
    hub.lies.clear()
    changed = iter([b"?"])
    hub.body = lambda file, start, rest: (
        next(changed, rest[:1]) + rest[1:] if file == "tokenizer.json" else rest
    )
    assert (get() / "tokenizer.json").read_bytes() == FILES["tokenizer.json"]


def test_a_partial_file_that_is_no_beginning(hub: Hub) -> None:
    for size in (1000, len(WEIGHTS), len(WEIGHTS) + 5):
        blobs = repo_folder("org/name") / "blobs"
        blobs.mkdir(parents=True, exist_ok=True)
        (blobs / f"{sha256(WEIGHTS)}.ropechat.incomplete").write_bytes(b"x" * size)
        assert (get() / "model.safetensors").read_bytes() == WEIGHTS
        shelf.plan_removal(HubName("org/name")).execute()


def test_two_downloads_at_once(hub: Hub) -> None:
    hub.seconds_per_piece = 0.01
    paths: list[Path] = []
    plan = make_plan(name_of("org/name"))
    threads = [threading.Thread(target=lambda: paths.append(fetch(plan))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert paths == [plan.path] * 3
    assert len(hub.starts("model.safetensors")) == 1
    check_final_names()
    assert not partials()


def test_progress_and_stop(hub: Hub) -> None:
    """An exception in `on_progress` is what Ctrl-C is: it comes from the thread that waits."""
    hub.seconds_per_piece = 0.02
    seen: list[int] = []

    def on_progress(progress: DownloadProgress) -> None:
        seen.append(progress.done)
        assert progress.done <= progress.total == make_plan(name_of("org/name")).total
        if progress.received > 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(make_plan(name_of("org/name")), on_progress)
    assert seen == sorted(seen)
    assert partials()[sha256(WEIGHTS)] > 0
    check_final_names()
    hub.seconds_per_piece = 0
    plan = make_plan(name_of("org/name"))
    assert plan.here > 50_000
    fetch(plan)
    assert hub.starts("model.safetensors")[-1] > 0


# ---- Refusals, each with its words


def test_gated_private_missing(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos["org/gated"] = Repo(dict(FILES), gated=True)
    hub.repos["org/private"] = Repo(dict(FILES), private=True)
    words = refused("org/gated")
    assert words.startswith("org/gated: gated: open http://127.0.0.1")
    assert "hf auth login" in words
    assert "or private" in refused("org/private")
    assert "check the spelling" in refused("org/nothing")
    assert "revision 'v9' not found" in refused("org/name@v9")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "gated" in refused("org/gated")
    assert "or private" in refused("org/private")
    monkeypatch.setenv("HF_TOKEN", hub.token)
    get("org/gated")
    get("org/private")
    tokens = {(request.host.split(":")[0], request.token) for request in hub.requests[-12:]}
    assert ("127.0.0.1", f"Bearer {hub.token}") in tokens
    assert ("localhost", None) in tokens
    assert not any(token for host, token in tokens if host == "localhost")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "the token is invalid"),
        (403, "answered 403"),
        (404, "answered 404"),
        (407, "the proxy refused"),
        (429, "too many requests"),
        (503, "answered 503; try again later"),
    ],
)
def test_other_answers(status: int, words: str, hub: Hub) -> None:
    hub.status = status
    assert words in refused()


def test_nobody_answers(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("HF_ENDPOINT", closed)
    assert f"cannot reach {closed} (Connection refused)" in refused()
    monkeypatch.setenv("HF_ENDPOINT", "nonsense")
    assert "HF_ENDPOINT" in refused()


def test_not_a_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"{hub.cdn}/cdn/org/name/blob/README.md?")
    assert "does not answer like a Hub" in refused()


def test_offline(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert refused() == "org/name: HF_HUB_OFFLINE is set, so nothing is downloaded; unset it"
    assert not hub.requests


def test_a_full_disk_is_seen_beforehand(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "free_disk", lambda path: 1000)
    words = refused()
    assert "disk full: 320 kB needed, 1 kB free" in words
    assert not any("/resolve/" in request.path for request in hub.requests)


def test_a_listing_cannot_write_elsewhere(hub: Hub) -> None:
    hub.repos["org/evil"] = Repo({"../../evil-Q4_0.gguf": b"x"})
    assert "nothing is downloaded" in refused("org/evil")
    hub.lies["m-Q4_0.gguf"] = "../../../evil"
    assert "the Hub lists no valid name, size or hash" in refused("org/name:Q4_0")
    hub.repos["org/index"] = Repo(
        {"config.json": b"{}", "model.safetensors.index.json": b'{"weight_map": {"a": "../b.safetensors"}}'}
    )
    with pytest.raises(RopechatError, match="weight_map"):
        get("org/index")


# ---- The shelf


def test_removing(hub: Hub) -> None:
    get()
    get("org/name:Q8_0")
    get("org/name:Q4_0")
    assert [str(one.name) for one in shelf.list_cached()] == ["org/name", "org/name:Q4_0", "org/name:Q8_0"]
    gone = shelf.plan_removal(name_of("org/name:q8_0"))
    assert gone.size == 50_000
    gone.execute()
    assert [str(one.name) for one in shelf.list_cached()] == ["org/name", "org/name:Q4_0"]
    with pytest.raises(ModelNotFoundError):
        shelf.plan_removal(name_of("org/name:Q8_0"))
    assert resolve("org/name:Q4_0").read_bytes() == FILES["m-Q4_0.gguf"]
    shelf.plan_removal(name_of("org/name")).execute()
    assert not shelf.list_cached()
    assert not repo_folder("org/name").exists()


def test_shared_bytes_stay(hub: Hub) -> None:
    hub.repos["org/name"].commits["v2"] = "feed" + "0" * 36
    path = get()
    get("org/name@v2")
    gone = shelf.plan_removal(name_of("org/name@v2"))
    assert gone.size == 0
    gone.execute()
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    assert [str(one.name) for one in shelf.list_cached()] == ["org/name"]


def test_an_unfinished_download_is_listed(hub: Hub) -> None:
    cut = {0: 1000}  # by where a request starts
    hub.body = lambda file, start, rest: rest[: cut.get(start, 0)] if file == "model.safetensors" else rest
    refused()
    (one,) = shelf.list_cached()
    assert one.missing
    assert one.size >= 1000


def test_a_part_is_removed_though_a_program_that_starts_has_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between fork and exec it has the descriptors of this one, and with them the lock."""
    part = tmp_path / "part.incomplete"
    part.write_bytes(b"some")
    monkeypatch.setattr(partial, "partial_path", lambda repo, file: part)
    tries = iter([False, False, True])
    monkeypatch.setattr(partial, "try_lock", lambda descriptor: next(tries))
    plan: Any = SimpleNamespace(files=["one"], name=SimpleNamespace(repo="org/tiny"))
    partial.discard(plan)
    assert not part.exists()
