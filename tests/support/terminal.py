"""A real terminal: tmux, with one window."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

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

    def until(self, condition: Callable[[str], bool], limit: float = 60) -> str:
        """Wait for a screen."""
        end = time.monotonic() + limit
        while not condition(screen := self.screen()):
            assert time.monotonic() < end, screen
            time.sleep(0.05)
        return screen
