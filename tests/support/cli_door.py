"""Running the command line on fake_core: in this process, or in one of its own."""

import io
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

LAUNCH = """
import sys
sys.path[:0] = {paths!r}
import fake_core, ropechat.engine
sys.modules["ropechat.engine._core"] = ropechat.engine._core = fake_core
from ropechat.cli import main
code = main(sys.argv[1:])
{after}
sys.exit(code)
"""


def command(arguments: list[str], after: str = "") -> list[str]:
    """The argv of a process that runs the command line; `after` runs at its end."""
    source = LAUNCH.format(paths=[str(HERE), str(HERE.parents[1])], after=after)
    return [sys.executable, "-c", source, *arguments]


def environment(**changes: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("ROPECHAT", "NO_COLOR"))
    }
    return {**kept, "TERM": "xterm", **changes}


def process(arguments: list[str], stdin: bytes = b"", after: str = "", **changes: str) -> Any:
    """Run to the end; stdout and stderr as bytes."""
    return subprocess.run(
        command(arguments, after), input=stdin, capture_output=True, timeout=60, env=environment(**changes)
    )


def on_terminal(
    arguments: list[str], answer: bytes = b"", typed: bytes = b"", **changes: str
) -> tuple[int, str]:
    """Exit code and what a terminal on all three streams gets.

    answer: typed when a question is asked; typed: before the program starts.
    """
    main, sub = pty.openpty()
    os.write(main, typed)
    child = subprocess.Popen(
        command(arguments), stdin=sub, stdout=sub, stderr=sub, env=environment(**{"COLUMNS": "80", **changes})
    )
    os.close(sub)
    data = b""
    while True:
        try:
            piece = os.read(main, 65536)
        except OSError:
            break
        if not piece:
            break
        data += piece
        if answer and data.endswith(b"] "):
            os.write(main, answer)
    os.close(main)
    return child.wait(60), data.decode().replace("\r\n", "\n")


class Door:
    """`door("run", "-m", model, stdin="x")` -> (exit code, stdout, stderr), in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        import fake_core

        import ropechat.engine

        self._monkeypatch = monkeypatch
        self._capfd = capfd
        monkeypatch.setitem(sys.modules, "ropechat.engine._core", fake_core)
        monkeypatch.setattr(ropechat.engine, "_core", fake_core, raising=False)
        monkeypatch.delenv("ROPECHAT_MODEL", raising=False)

    def __call__(self, *arguments: object, stdin: bytes = b"") -> tuple[int, str, str]:
        from ropechat.cli import main

        self._capfd.readouterr()
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main([str(argument) for argument in arguments])
        out, err = self._capfd.readouterr()
        return code, out, err


class CompiledDoor(Door):
    """The command line with the compiled engine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capfd = monkeypatch, capfd
        monkeypatch.setenv("ROPECHAT_CACHE", "off")
        monkeypatch.delenv("ROPECHAT_MODEL", raising=False)
