"""The real program in a real terminal, on the built-in model: ask, stop, fork, quit, resume."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import STORY
from terminal import Tmux

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux")


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    made = Tmux(tmp_path, (100, 60))
    yield made
    made("kill-server")


def place(screen: str) -> int:
    """Which of how many answers is shown, if it is the last of several; 0 while none is beside it."""
    found = re.search(r"‹ (\d+)/\1 ›", screen)
    return int(found[1]) if found else 0


def stop_one(tmux: Tmux) -> int:
    """Stop an answer before it ends by itself, be it the tenth; its place among its siblings."""
    for attempt in range(1, 11):
        tmux.until(lambda screen: "esc stop" in screen or "bits/token" in screen)
        tmux.press("C-c")  # esc waits for tmux's escape-time
        screen = tmux.until(
            lambda screen: "⏎ send" in screen and ("bits/token" in screen or "No answer" in screen)
        )
        if "stopped" in screen and "bits/token" in screen:
            return place(screen)
        tmux.type("/regen")
        tmux.press("Enter")
        tmux.until(lambda screen, before=attempt: place(screen) > before)  # type: ignore[misc]
    raise AssertionError(screen)


@pytest.mark.slow
def test_ask_stop_fork_quit_resume(tmux: Tmux) -> None:
    """On the built-in model, whatever it says: so hot that it hardly ever comes to an end."""
    code = "import sys; from ropechat.cli import main; sys.exit(main())"
    chat = [sys.executable, "-c", code, "chat", "--threads", "1", "--temperature", "5"]
    start = shlex.join([*chat, "--top-k", "0", "--top-p", "1", "--max-tokens", "30000"])
    tmux.type(start)
    tmux.press("Enter")
    tmux.until(lambda screen: "● ready" in screen and "built-in model" in screen)

    tmux.type("Hello there")
    tmux.press("Enter")
    stopped = stop_one(tmux)

    tmux.type("/fork 1")
    tmux.press("Enter")
    tmux.until(lambda screen: "preview" in screen)
    tmux.press("Down", "Enter")
    tmux.until(lambda screen: place(screen) > stopped)
    tmux.press("C-c")
    last = place(tmux.until(lambda screen: "⏎ send" in screen and "bits/token" in screen))

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
    tmux.until(lambda screen: "Hello there" in screen and place(screen) == last and "●" in screen)
    tmux.press("C-q")


@pytest.mark.slow
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
