"""Settings: what is read, what is refused and where, and what goes before what."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from cli_door import Door
from model_folders import CHATML, byte_folder

from ropechat.errors import SettingsError
from ropechat.settings.file import UserSettings, read_settings
from ropechat.settings.spec import BY_NAME, SETTINGS, TINTS, WHEN_FULL, Setting


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    monkeypatch.setenv("ROPECHAT_CONFIG", str(path))
    return path


GOOD = """# mine
model = "org/name"
store = false
threads = 3

[sampling]
temperature = 1
top_k = 7

[keys]
"chat.new" = ["f12", "f10"]
view.find = "f11"
"""


def test_what_a_file_says(file: Path) -> None:
    file.write_text(GOOD)
    found = read_settings()
    assert found.values == {
        "model": "org/name",
        "store": False,
        "threads": 3,
        "sampling.temperature": 1,
        "sampling.top_k": 7,
    }
    assert found.keys == {"chat.new": ("f12", "f10"), "view.find": ("f11",)}
    assert found.lines["sampling.top_k"] == 8
    assert found.lines["keys.chat.new"] == 11
    assert "top_k" not in found.options(sampling=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model = 3", "line 1: model: must be a non-empty string (got 3)"),
        ('\nthreads = "2"', "line 2: threads: must be an integer of at least 1 (got '2')"),
        ("threads = true", "line 1: threads: must be an integer of at least 1 (got True)"),
        ("dtype = 'int4'", "line 1: dtype: must be one of auto, f32"),
        ("store = 1", "line 1: store: must be true or false (got 1)"),
        (
            "[sampling]\n\ntemperature = 200",
            "line 3: sampling.temperature: must be a number from 0 to 100 (got 200)",
        ),
        ("sampling.top_p = nan", "line 1: sampling.top_p: must be a number above 0 to 1 (got nan)"),
        ("modle = 'x'", "line 1: modle: unknown setting; did you mean model?"),
        ("sampling = 3", "line 1: sampling: unknown setting"),
        ("[keys]\nchat.new = 3", "line 2: keys.chat.new: must be a key or a list of keys (got 3)"),
        ("a = \n", "not valid TOML: Invalid value (at line 1, column 5)"),
        ("x = [" + "[" * 5000, "not valid TOML"),
        (".".join(["a"] * 1500) + " = 1", "tables are nested too deeply"),
        ("[" + ".".join(["keys"] * 1500) + "]\n", "tables are nested too deeply"),
    ],
)
def test_what_is_refused(text: str, message: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(SettingsError) as error:
        read_settings()
    assert str(error.value).startswith(f"{file}: {message}")
    assert "\n" not in str(error.value)


def test_files_that_are_none(file: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="file not found") as error:
        read_settings()
    assert str(error.value).startswith(f"ROPECHAT_CONFIG: {file}: file not found; create it")
    assert str(error.value).endswith("or unset ROPECHAT_CONFIG")
    with pytest.raises(SettingsError, match="file not found") as error:
        read_settings(file)
    assert "ROPECHAT_CONFIG" not in str(error.value)
    file.write_bytes(b"model = 'x'\n# \xff\n")
    with pytest.raises(SettingsError, match="line 2: must be UTF-8"):
        read_settings()
    file.write_bytes(b"#" * (2 << 20))
    with pytest.raises(SettingsError, match="must be at most"):
        read_settings()
    with pytest.raises(SettingsError, match="must be a regular TOML file"):
        read_settings(tmp_path)


def test_without_a_file_all_is_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROPECHAT_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    found = read_settings()
    assert not found.values
    assert {origin for _, _, origin in found.effective({})} == {"default"}


def test_without_a_home_folder(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user id without an entry in the list of users."""
    for variable in ("HOME", "XDG_CONFIG_HOME", "ROPECHAT_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda id: {}[id])
    code, _, err = door("run", "hi")
    assert (code, err) == (74, "error: home folder: this user has none; set HOME or XDG_CONFIG_HOME\n")
    monkeypatch.setenv("HOME", "/nowhere")
    assert door("run", "-m", "~nobody-of-this-name/x", "hi")[0] in (2, 4)


def test_the_environment_goes_before_the_file(file: Path) -> None:
    file.write_text(GOOD)
    environ = {"ROPECHAT_TOP_K": "9", "ROPECHAT_STORE": "on", "ROPECHAT_DTYPE": "q8_0"}
    found = {one.name: (value, at) for one, value, at in read_settings().effective(environ)}
    assert found["sampling.top_k"] == (9, "ROPECHAT_TOP_K")
    assert found["store"] == (True, "ROPECHAT_STORE")
    assert found["dtype"] == ("q8_0", "ROPECHAT_DTYPE")
    assert found["sampling.temperature"] == (1, f"{file}: line 7")
    with pytest.raises(
        SettingsError, match=r"ROPECHAT_TOP_K: must be an integer from 0 to 2147483647 \(got 'x'\)"
    ):
        read_settings().effective({"ROPECHAT_TOP_K": "x"})


def test_every_setting_is_an_option_with_its_variable() -> None:
    from ropechat.cli.chat import chat

    options = {option.name: option for option in chat.params if isinstance(option, click.Option)}
    for setting in SETTINGS:
        if setting.name == "model_folders":
            continue  # it is for every command, and a flag would only repeat -m
        assert options[setting.option].envvar == setting.variable, setting.name
        if setting.default is not None and setting.name != "model":
            assert options[setting.option].default == setting.default, setting.name


TEXTS = [
    *(
        "t",
        "T",
        "f",
        "y",
        "n",
        "TRUE",
        "on",
        "off",
        "yes",
        "no",
        "1",
        "0",
        "2",
        " 1 ",
        "01",
        "1e3",
        "1.5",
        "-1",
    ),
    *("nan", "inf", "x", "auto", "AUTO", "dark", "ask", "q8_0", "q9", " ", "none", "0x10", str(2**62 + 1)),
]


@pytest.mark.parametrize(
    "setting", [one for one in SETTINGS if one.name != "model_folders"], ids=lambda one: one.option
)
def test_an_option_reads_its_variable_as_config_show_does(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ropechat.cli.chat import chat

    none = UserSettings(Path(), {}, {}, {})
    given: dict[str, Any] = {"help_option_names": ["-h", "--help"]}  # click remembers those of the first call

    def shown() -> object:
        return next(value for one, value, _ in none.effective() if one is setting)

    def used() -> object:
        with chat.make_context("chat", [], **given) as made:
            return made.params[setting.option]

    def outcome(read: Callable[[], object]) -> object:
        try:
            return read()
        except (SettingsError, click.ClickException) as error:
            return str(error)

    found = []
    for text in TEXTS:
        monkeypatch.setenv(setting.variable, text)
        found.append(outcome(used))
        assert found[-1] == outcome(shown), text
    assert len({str(one) for one in found}) > 1


def test_folders_with_models(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ropechat.cli.common import model_folders

    file.write_text('model_folders = ["~/models", "/mnt/more models"]\n')
    assert model_folders() == [Path("~/models").expanduser(), Path("/mnt/more models")]
    monkeypatch.setenv("ROPECHAT_MODEL_FOLDERS", f"/one{os.pathsep}{os.pathsep}/two")
    assert model_folders() == [Path("/one"), Path("/two")]
    for text in ("model_folders = '/one'", "model_folders = [1]", "model_folders = ['']"):
        file.write_text(text)
        with pytest.raises(SettingsError, match="line 1: model_folders: must be a list of non-empty strings"):
            read_settings()


def test_switches_take_what_click_takes() -> None:
    for text in ("1", "0", "true", "FALSE", "t", "f", "yes", "no", "y", "n", "on", " off "):
        assert BY_NAME["mouse"].reads(text) is click.BOOL.convert(text, None, None)


def test_choices_are_those_of_the_chat() -> None:
    from ropechat.chat.context import OverflowPolicy
    from ropechat.tui.render.tint import NAMES

    assert TINTS == NAMES
    assert tuple(OverflowPolicy) == WHEN_FULL


# --- the command line ---


def tokens(door: Door, *arguments: object) -> int:
    code, out, err = door("run", "--json", "--raw", "--quiet", "--temperature", 0, *arguments, "x")
    assert code == 0, err
    count: int = json.loads(out)["usage"]["completion_tokens"]
    return count


def test_flag_before_environment_before_file_before_default(
    door: Door, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = byte_folder(tmp_path / "model")
    file.write_text(f"model = {str(model)!r}\n[sampling]\nmax_tokens = 2\n")
    assert tokens(door) == 2
    monkeypatch.setenv("ROPECHAT_MAX_TOKENS", "3")
    assert tokens(door) == 3
    assert tokens(door, "--max-tokens", "4") == 4


@pytest.mark.parametrize("command", ["run", "chat", "inspect", "batch"])
def test_a_broken_file_stops_what_uses_it(command: str, door: Door, file: Path) -> None:
    file.write_text("\ntop_k = 3\n")
    code, out, err = door(command, "x")
    assert (code, out) == (2, "")
    assert err == f"error: {file}: line 2: top_k: unknown setting; did you mean sampling.top_k?\n"
    assert door(command, "--help")[0] == 0
    assert door("config", "path")[0] == 0


def test_inspect_counts_candidates_not_what_is_drawn_from(door: Door, file: Path, tmp_path: Path) -> None:
    model = byte_folder(tmp_path / "model")
    file.write_text("[sampling]\ntop_k = 1\n")
    code, out, err = door("inspect", "-m", model, "--format", "jsonl", "ab")
    assert code == 0, err
    assert len(json.loads(out.splitlines()[-2])["top"]) == 20


def test_config_show_path_check(door: Door, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(GOOD)
    monkeypatch.setenv("ROPECHAT_TOP_P", "0.5")
    assert door("config", "path") == (0, f"{file}\n", "")
    code, out, _ = door("config", "show", "--json")
    rows: dict[str, Any] = {row["name"]: row for row in map(json.loads, out.splitlines())}
    assert code == 0
    assert rows["sampling.top_k"] == {"name": "sampling.top_k", "value": 7, "origin": f"{file}: line 8"}
    assert rows["sampling.top_p"]["origin"] == "ROPECHAT_TOP_P"
    assert rows["theme"]["origin"] == "default"
    assert rows["keys.chat.new"]["value"] == ["f12", "f10"]
    assert door("config", "check") == (0, f"{file}: valid\n", "")
    assert "temperature" in door("config", "show")[1]


def test_a_missing_file_that_is_named_is_a_note(door: Door, file: Path) -> None:
    said = f"ROPECHAT_CONFIG: {file}: file not found; create it (it may be empty) or unset ROPECHAT_CONFIG"
    for command in (["run", "-m", "builtin", "--max-tokens", 1, "a"], ["template"]):
        code, out, err = door(*command)
        assert (code, bool(out)) == (0, True), err
        assert err.count(f"note: {said}; until then all defaults count\n") == 1
    for words in (["--help"], ["--version"], ["run", "--help"], ["config", "path"], ["chats", "list"]):
        code, _, err = door(*words)
        assert (code, "file not found" in err) == (0, False)
    code, out, err = door("config", "show")
    assert (code, err) == (0, f"warning: {said}\n")
    assert "temperature" in out


def test_every_command_takes_the_model_of_the_file(door: Door, file: Path, tmp_path: Path) -> None:
    file.write_text(f"model = {str(tmp_path / 'none')!r}\n")
    for words in (["template"], ["run", "x"], ["bench", "--quick"], ["inspect", "x"], ["rope"]):
        code, out, err = door(*words)
        assert (code, out) == (2, "")
        assert f"{tmp_path / 'none'}: " in err
    file.write_text(
        f"model = {str(byte_folder(tmp_path / 'model', tokenizer_config={'chat_template': CHATML}))!r}\n"
    )
    assert door("template", "--user", "hi")[1].startswith("<|im_start|>user\nhi")


def test_config_check_reads_stdin(door: Door, file: Path) -> None:
    file.write_text("nonsense")  # another one is asked about
    assert door("config", "check", "-", stdin=GOOD.encode()) == (0, "stdin: valid\n", "")
    code, out, err = door("config", "check", "-", stdin=b"\nthreads = 0\n")
    assert (code, out) == (2, "")
    assert err.startswith("error: stdin: line 2: threads: ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('"chat.nwe" = "f12"', "keys.chat.nwe: unknown command; perhaps chat.new"),
        ('"chat.new" = "escape"', "keys.chat.new: esc is also a key of chat.stop"),
        ('"chat.new" = "ctrl+i"', "keys.chat.new: ctrl+i: terminals send the same code for tab"),
        ('"chat.new" = "hyperspace"', "keys.chat.new: hyperspace: unknown key"),
        ('"chat.new" = "n"', "keys.chat.new: n: types text"),
    ],
)
@pytest.mark.parametrize("command", ["check", "show"])
def test_keys_that_cannot_be(command: str, line: str, message: str, door: Door, file: Path) -> None:
    file.write_text(f"[keys]\n{line}\n")
    code, out, err = door("config", command)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {file}: line 2: {message}")
