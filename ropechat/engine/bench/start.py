"""Measuring a new process that generates one token: time to first token and peak memory.

Run as a script, this is a small intermediate process: on Linux the peak memory of a process includes its
parent's at creation, and the measuring process has models loaded.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

_LAUNCH = "import sys; from ropechat.cli import main; sys.exit(main())"
_ONE_TOKEN = ("--raw", "--quiet", "--max-tokens", "1", "--temperature", "0", "Once upon a time")


@dataclass(frozen=True)
class Start:
    """seconds: from the process's creation to its first token. peak_bytes: the largest resident size."""

    seconds: float
    peak_bytes: int


def run_command(options: Sequence[str]) -> list[str]:
    """The argv of `ropechat run` with these options, for one token."""
    return [sys.executable, "-c", _LAUNCH, "run", *options, *_ONE_TOKEN]


def start_process(argv: Sequence[str]) -> Start | str:
    """Run a process that writes one token; return the error as a string if it fails."""
    between = [sys.executable, "-S", __file__, *argv]
    done = subprocess.run(between, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        return done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
    return Start(*json.loads(done.stdout))


def _measure(argv: Sequence[str]) -> None:
    begin = time.perf_counter()
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        try:
            process.stdout.read(1)  # or the end, if the token has no text
            seconds = time.perf_counter() - begin
            process.stdout.read()
            peak = _wait(process)
        except BaseException:
            process.kill()
            process.wait()
            raise
    if process.returncode != 0:
        sys.exit(abs(process.returncode))
    print(json.dumps([seconds, peak]))


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the process to end; return its peak resident size in bytes."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    _measure(sys.argv[1:])
