"""The real program on a pseudo-terminal: what it writes, and what is typed."""

from __future__ import annotations

import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from fcntl import ioctl
from pathlib import Path

ROOT = Path(__file__).parents[2]
SIZE = (40, 120)  # rows, columns
OWN_TERMINAL = "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
MAIN = OWN_TERMINAL + "from ropechat.cli import main; sys.exit(main())"


class Program:
    """`ropechat` with some arguments; code: what Python is to run instead."""

    def __init__(
        self, arguments: Sequence[str], code: str = MAIN, size: tuple[int, int] = SIZE, **environ: str
    ) -> None:
        self.master, slave = pty.openpty()
        self.attributes = termios.tcgetattr(self.master)  # before the program has changed them
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        env = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONPATH": str(ROOT)}
        for name in ("NO_COLOR", "SSH_CONNECTION"):
            env.pop(name, None)
        self.child = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**env, **environ},
            start_new_session=True,
        )
        os.close(slave)

    def until(self, text: bytes, limit: float) -> float:
        """Seconds until a text is written; raises SystemExit when it is not."""
        begun, tail = time.perf_counter(), b""
        while True:
            left = begun + limit - time.perf_counter()
            if left <= 0 or not (data := self._read(left)):
                raise SystemExit(f"{text!r} did not come within {limit} s: {tail!r}")
            if text in tail + data:
                return time.perf_counter() - begun
            tail = (tail + data)[-500:]

    def drain(self, seconds: float) -> bytes:
        """What is written within a while."""
        end, seen = time.perf_counter() + seconds, b""
        while (left := end - time.perf_counter()) > 0:
            seen += self._read(left) or b""
            if self.child.poll() is not None:
                break
        return seen

    def _read(self, seconds: float) -> bytes:
        """Some output; b"" when none came, or the program ended."""
        try:
            return os.read(self.master, 1 << 20) if select.select([self.master], [], [], seconds)[0] else b""
        except OSError:
            return b""

    def press(self, keys: bytes) -> None:
        """Type."""
        os.write(self.master, keys)

    def quit(self) -> None:
        """ctrl+q; raises SystemExit when that is no orderly end."""
        self.press(b"\x11")
        said = self.drain(10)
        if self.child.wait(60):
            raise SystemExit(f"the chat ended with {self.child.returncode}: {said[-500:]!r}")
        os.close(self.master)
