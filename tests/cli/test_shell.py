"""At the shell: completion by bash itself, manual pages, `ropechat doctor`."""

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_door import Door, environment

from ropechat.cli.completion import SHELLS
from ropechat.cli.group import COMMANDS

BIN = Path(sys.executable).parent


# ---- completion


class Bash:
    """An interactive bash with the completion of ropechat."""

    def __init__(self, folder: Path, **changes: str) -> None:
        self._main, sub = pty.openpty()
        home = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder), "HF_HOME": str(folder / "hub")}
        given = environment(PATH=f"{BIN}:{os.environ['PATH']}", PS1="> ", TERM="dumb", **home, **changes)
        words = ["bash", "--norc", "--noprofile", "-i"]
        self.process = subprocess.Popen(words, stdin=sub, stdout=sub, stderr=sub, env=given, cwd=folder)
        os.close(sub)
        self._said = b""
        self.type('bind "set enable-bracketed-paste off"; bind "set bell-style none"\r')
        self.type('eval "$(ropechat completion bash)"; echo ready\r')
        self.until("ready\r\n")

    def type(self, text: str) -> None:
        os.write(self._main, text.encode())

    def until(self, wanted: str, limit: float = 60.0) -> str:
        """What it says, up to the wanted text."""
        end = time.monotonic() + limit
        while wanted.encode() not in self._said:
            assert select.select([self._main], [], [], max(0.0, end - time.monotonic()))[0], self._said
            self._said += os.read(self._main, 65536)
        text, _, self._said = self._said.partition(wanted.encode())
        return text.decode()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._main)


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("bash") is None or not (BIN / "ropechat").exists(), reason="no bash or program"
)
def test_bash_completes_commands_options_models_and_chats(tmp_path: Path) -> None:
    (tmp_path / "one.gguf").write_bytes(b"GGUF")
    asked = ["run", "--store", "-m", "builtin", "Hello", "--max-tokens", "2", "--quiet"]
    data = {"ROPECHAT_DATA": str(tmp_path / "data")}
    program = str(BIN / "ropechat")
    subprocess.run([program, *asked], env=environment(**data), check=True, capture_output=True)
    listed = subprocess.run(
        [program, "chats", "list", "--json"], env=environment(**data), check=True, capture_output=True
    )
    chat = json.loads(listed.stdout)["id"]
    bash = Bash(tmp_path, **data)
    try:
        for typed, wanted in (
            ("ropechat insp", "ropechat inspect "),
            ("ropechat inspect --look-up-w", "ropechat inspect --look-up-whole "),
            ("ropechat run --dtype bf", "ropechat run --dtype bf16 "),
            ("ropechat run -m smollm2:13", "ropechat run -m smollm2:135m "),
            ("ropechat run -m ./on", "ropechat run -m ./one.gguf "),
            ("ropechat models pull qwen3:0", "ropechat models pull qwen3:0.6b "),
            (f"ropechat chats show {chat[:3]}", f"ropechat chats show {chat} "),
        ):
            bash.type(f"{typed}\t")
            bash.until(wanted)
            bash.type("\x15")  # Ctrl-U
    finally:
        bash.close()


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_a_script(door: Door, shell: str) -> None:
    code, out, err = door("completion", shell)
    assert (code, err) == (0, "")
    assert "_ROPECHAT_COMPLETE" in out
    if shutil.which(shell):
        done = subprocess.run([shell, "-n"], input=out.encode(), capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")


def test_a_shell_must_be_one_that_is_known(door: Door) -> None:
    code, _, err = door("completion", "cmd")
    assert code == 2
    assert "'bash', 'zsh', 'fish'" in err


# ---- manual pages


def test_every_command_has_a_page(door: Door, tmp_path: Path) -> None:
    assert door("man", "--output", tmp_path) == (0, "", "")
    names = {path.name for path in tmp_path.iterdir()}
    assert {"ropechat.1", "ropechat-models-pull.1", *(f"ropechat-{name}.1" for name in COMMANDS)} <= names
    page = (tmp_path / "ropechat-run.1").read_text()
    assert door("man", "run") == (0, page, "")
    assert "ropechat\\-run \\- Answer one question" in page
    assert ".B \\-\\-dry\\-base FLOAT" in page  # also what --help leaves out
    assert "ropechat man" not in door("man", "no")[1]
    assert door("man", "no")[0] == 2


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff")
def test_the_pages_are_valid_roff(door: Door, tmp_path: Path) -> None:
    assert door("man", "--output", tmp_path)[0] == 0
    pages = sorted(map(str, tmp_path.iterdir()))
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", *pages], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    shown = subprocess.run(
        ["groff", "-man", "-Tascii", "-P-cbou", tmp_path / "ropechat-inspect.1"], capture_output=True
    )
    text = shown.stdout.decode()
    assert re.search(r"^ +--look-up-whole$", text, re.MULTILINE)
    assert 'ropechat inspect "The cat sat on the mat."' in text


# ---- doctor


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, folder in (("XDG_CACHE_HOME", "cache"), ("ROPECHAT_DATA", "data"), ("HF_HOME", "hub")):
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.setenv("ROPECHAT_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setattr("ropechat.cli.doctor._engine", lambda: iter(()))  # needs the real engine
    return tmp_path


def findings(door: Door) -> tuple[int, dict[str, dict[str, str]]]:
    code, out, err = door("doctor", "--json")
    assert err == ""
    return code, {row["name"]: row for row in map(json.loads, out.splitlines())}


def test_doctor_says_what_is_good_and_what_to_do(door: Door, home: Path) -> None:
    (home / "config.toml").touch()
    code, found = findings(door)
    assert code == 0
    assert {found[name]["state"] for name in ("chats", "cache", "downloads", "settings file")} == {"good"}
    assert found["models"]["state"] == "note"
    assert "ropechat models pull" in found["models"]["advice"]
    table = door("doctor")[1]
    assert "good   settings file  " in table
    assert f"→ {found['models']['advice']}" in table


def test_what_does_not_work_fails(door: Door, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "config.toml").write_text("theme = 3\n")
    (home / "data").write_text("a file")
    monkeypatch.setenv("ROPECHAT_CACHE", "sometimes")
    code, found = findings(door)
    assert code == 1
    failing = {name for name, row in found.items() if row["state"] == "fails"}
    assert failing == {"chats", "settings file", "caches", "models"}  # found with the settings
    assert "set ROPECHAT_DATA" in found["chats"]["advice"]
    assert "line 1: theme" in found["settings file"]["found"]


@pytest.mark.slow
def test_doctor_of_this_machine_is_fast(tmp_path: Path) -> None:
    """With the real engine: it loads, answers, and measures the memory."""
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "ROPECHAT_CACHE": "auto"}
    words = [sys.executable, "-c", "from ropechat.cli import entry; entry()", "doctor", "--json"]
    done = subprocess.run(words, capture_output=True, env=environment(**home), check=True)
    rows = {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert {rows[name]["state"] for name in ("processor", "engine", "bandwidth", "chats")} == {"good"}
    assert not list((tmp_path / "cache").rglob("*.pack"))
