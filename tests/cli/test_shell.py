"""At the shell: completion by the shells themselves, manual pages, `ropechat doctor`."""

import contextlib
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from cli_door import Door, environment
from shown import sessions

from ropechat.cli.completion import SHELLS
from ropechat.cli.group import COMMANDS

BIN = Path(sys.executable).parent


# ---- completion


LINE = "line.txt"
SET_UP = {  # how each shell begins; Ctrl-T writes the line that is being typed into a file, Ctrl-U empties it
    "bash": (
        "bash --norc --noprofile -i",
        'eval "$(ropechat completion bash)"',
        f"""bind -x '"\\C-t": printf "%s" "$READLINE_LINE" > {LINE}'""",
    ),
    "zsh": (
        "zsh -f -i",
        "autoload -Uz compinit && compinit -u -D",
        'eval "$(ropechat completion zsh)"',
        f'show() {{ print -rn -- "$BUFFER" > {LINE} }}; zle -N show; bindkey "^T" show',
        'bindkey "^U" kill-whole-line',
    ),
    "fish": (
        "fish --no-config -i",
        "ropechat completion fish | source",
        f'bind \\ct "commandline > {LINE}"; bind \\cu "commandline \'\'"',
    ),
}


class Shell:
    """An interactive shell with the completion of ropechat, on a pseudo-terminal."""

    def __init__(self, name: str, folder: Path, **changes: str) -> None:
        self._main, sub = pty.openpty()
        termios.tcsetwinsize(sub, (40, 150))
        self._line = folder / LINE
        home = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder), "HF_HOME": str(folder / "hub")}
        given = environment(PATH=f"{BIN}:{os.environ['PATH']}", TERM="xterm", **home, **changes)
        begin, *lines = SET_UP[name]
        opened = ["sh", "-c", f"exec {begin} < {os.ttyname(sub)}"]  # a leader of a session gets what it opens
        self.process = subprocess.Popen(
            opened, stdin=sub, stdout=sub, stderr=sub, env=given, cwd=folder, start_new_session=True
        )
        os.close(sub)
        self._type("".join(f"{line}\n" for line in (*lines, "touch ready.txt")))
        self._wait(folder / "ready.txt")
        self.said = b""
        """What it wrote since."""

    def _type(self, text: str) -> None:
        os.write(self._main, text.encode())

    def _wait(self, path: Path, limit: float = 60.0) -> None:
        """Read what it writes until a file is there."""
        self.said, end = b"", time.monotonic() + limit
        while not path.exists():
            assert time.monotonic() < end, self.said
            if select.select([self._main], [], [], 0.02)[0]:
                self.said += os.read(self._main, 65536)

    def complete(self, typed: str) -> str:
        """The line after Tab, without the space at its end."""
        self._line.unlink(missing_ok=True)
        self._type(f"\x15{typed}\t\x14")
        self._wait(self._line)
        time.sleep(0.05)  # it was created, then written
        return self._line.read_text().rstrip()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._main)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHELLS)
def test_a_shell_completes_commands_options_models_and_chats(name: str, tmp_path: Path) -> None:
    if shutil.which(name) is None or not (BIN / "ropechat").exists():
        pytest.skip(f"no {name}, or ropechat is not installed beside this Python")
    (tmp_path / "one.gguf").write_bytes(b"GGUF")
    data = {"ROPECHAT_DATA": str(tmp_path / "data")}

    def ropechat(*words: str) -> str:
        done = subprocess.run(
            [str(BIN / "ropechat"), *words], env=environment(**data), check=True, capture_output=True
        )
        return done.stdout.decode()

    for question in ("Why, my friend?", "Hello"):
        ropechat("run", "--store", "-m", "builtin", question, "--max-tokens", "2", "--quiet")
    chats = [json.loads(line)["id"] for line in ropechat("chats", "list", "--json").splitlines()]
    shell = Shell(name, tmp_path, **data)
    try:
        for typed, wanted in (
            ("ropechat insp", "ropechat inspect"),
            ("ropechat inspect --look-up-w", "ropechat inspect --look-up-whole"),
            ("ropechat run --dtype bf", "ropechat run --dtype bf16"),
            ("ropechat run --dtype=bf", "ropechat run --dtype=bf16"),
            ("ropechat run -m smollm2:13", "ropechat run -m smollm2:135m"),
            ("ropechat run --model=smollm2:13", "ropechat run --model=smollm2:135m"),
            ("ropechat -m ./on", "ropechat -m ./one.gguf"),  # of the chat, which is not named
            ("ropechat run --json-schema ./on", "ropechat run --json-schema ./one.gguf"),
            ("ropechat run --json-schema=./on", "ropechat run --json-schema=./one.gguf"),
            ("ropechat run --model=./on", "ropechat run --model=./one.gguf"),
            (f"ropechat chats show {chats[0][:7]}", f"ropechat chats show {chats[0]}"),
        ):
            assert shell.complete(typed) == wanted
        alike = next(i for i, (a, b) in enumerate(zip(*chats, strict=True)) if a != b)
        shell.complete(f"ropechat chats show {chats[0][:alike]}")  # zsh lists where it can add nothing
        assert name == "bash" or b"Why, my friend?" in shell.said  # bash shows no descriptions
    finally:
        shell.close()


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
def test_doctor_of_this_machine(tmp_path: Path) -> None:
    """With the real engine, on a terminal: it loads, answers, and measures, as docs/shell.md shows."""
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "ROPECHAT_CACHE": "auto"}
    words = [sys.executable, "-c", "from ropechat.cli import entry; entry()", "doctor", "--json"]
    main, sub = pty.openpty()
    child = subprocess.Popen(words, stdin=sub, stdout=sub, env=environment(LANG="C.UTF-8", **home))
    os.close(sub)
    printed = b""
    with contextlib.suppress(OSError):  # its end
        while piece := os.read(main, 65536):
            printed += piece
    os.close(main)
    assert child.wait() == 0
    rows = {row["name"]: row for row in map(json.loads, printed.splitlines())}
    assert {rows[name]["state"] for name in ("processor", "engine", "bandwidth", "chats")} == {"good"}
    assert not list((tmp_path / "cache").rglob("*.pack"))
    ((_, shown),) = sessions(Path(__file__).parents[2] / "docs" / "shell.md")
    named = [line[7:22].strip() for line in shown if re.match("good|note|fails", line)]
    assert named == [name for name in rows if name in named]
