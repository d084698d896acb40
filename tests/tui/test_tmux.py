"""The real program in a real terminal, on a real engine: ask, stop, fork, quit, resume."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes import STORY
from model_folders import byte_tokenizer
from models import write_llama

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux")
ROOT = Path(__file__).parents[2]


class Tmux:
    """A tmux of its own with one window."""

    def __init__(self, folder: Path, size: tuple[int, int]) -> None:
        self._base = ["tmux", "-S", str(folder / "socket"), "-f", "/dev/null"]
        environ = {
            **{name: value for name, value in os.environ.items() if name not in ("TMUX", "NO_COLOR")},
            "PYTHONPATH": str(ROOT),
            "ROPECHAT_DATA": str(folder / "data"),
            "ROPECHAT_CACHE": "off",
            "TERM": "xterm-256color",
        }
        width, height = map(str, size)
        command = [*self._base, "new-session", "-d", "-x", width, "-y", height, "sh"]
        subprocess.run(command, check=True, env=environ)

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run([*self._base, *arguments], capture_output=True, text=True, check=True)
        return done.stdout

    def screen(self) -> str:
        """What is on it."""
        return self("capture-pane", "-p")

    def press(self, *keys: str) -> None:
        """Keys by tmux's names."""
        self("send-keys", *keys)

    def type(self, text: str) -> None:
        """Letters."""
        self("send-keys", "-l", text)

    def until(self, condition: Callable[[str], bool], limit: float = 40.0) -> str:
        """Wait for a screen."""
        end = time.monotonic() + limit
        while not condition(screen := self.screen()):
            assert time.monotonic() < end, screen
            time.sleep(0.05)
        return screen


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    made = Tmux(tmp_path, (100, 30))
    yield made
    made("kill-server")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Slow enough to be stopped, and it never ends by itself."""
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 8, "head_dim": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 65536}
    path = write_llama(tmp_path / "model", vocab_size=260, eos_token_id=None, **sizes, **heads)
    (path / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    (path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    return path


def test_ask_stop_fork_quit_resume(tmux: Tmux, model: Path) -> None:
    code = "import sys; from ropechat.cli import main; sys.exit(main())"
    chat = [sys.executable, "-c", code, "chat", "-m", str(model), "--threads", "1", "--seed", "7"]
    start = shlex.join([*chat, "--max-tokens", "30000", "--context", "32768"])
    tmux.type(start)
    tmux.press("Enter")
    tmux.until(lambda screen: "ready" in screen and "continues your text" in screen)

    tmux.type("Hello there")
    tmux.press("Enter")
    tmux.until(lambda screen: "tok/s" in screen and "esc stop" in screen)
    tmux.press("C-c")  # esc waits for tmux's escape-time
    tmux.until(lambda screen: "stopped" in screen and "⏎ send" in screen)

    tmux.type("/fork 3")
    tmux.press("Enter")
    tmux.until(lambda screen: "preview" in screen)
    tmux.press("Down", "Enter")
    tmux.until(lambda screen: "2/2" in screen)
    tmux.press("C-c")
    tmux.until(lambda screen: "stopped" in screen and "⏎ send" in screen)

    tmux.press("C-q")
    tmux.until(lambda screen: "Hello there" not in screen)
    assert tmux("display-message", "-p", "#{alternate_on} #{mouse_any_flag} #{cursor_flag}").split() == list(
        "001"
    )
    tmux.type("echo code $?")
    tmux.press("Enter")
    tmux.until(lambda screen: "code 0" in screen)

    tmux.type(f"clear; {start} --continue")
    tmux.press("Enter")
    loaded = "continues your text"
    tmux.until(lambda screen: "Hello there" in screen and "2/2" in screen and loaded in screen)
    tmux.press("C-q")


def test_copying_reaches_the_terminal(tmux: Tmux) -> None:
    tmux("set-option", "-s", "set-clipboard", "on")
    demo = Path(__file__).with_name("demo.py")
    tmux.type(shlex.join([sys.executable, str(demo), "--rate", "0", "--load", "0", "--prefill", "0"]))
    tmux.press("Enter")
    tmux.until(lambda screen: "ready" in screen)
    tmux.type("Tell me")
    tmux.press("Enter")
    tmux.until(lambda screen: "acorn caps" in screen and "⏎ send" in screen)
    tmux.type("/copy")
    tmux.press("Enter")
    tmux.until(lambda screen: "copied" in screen)
    assert tmux("show-buffer") == STORY
    tmux.press("C-q")
