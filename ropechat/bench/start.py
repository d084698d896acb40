"""A process of its own that makes one token: how long until it comes, how much memory it took."""

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
    """seconds: from the process's creation to its first token. peak_bytes: None where it is not told."""

    seconds: float
    peak_bytes: int | None


def start_once(options: Sequence[str]) -> Start | str:
    """Run `ropechat run` with these options for one token; a text says why there is none.

    Call it while this process is small: on Linux a child's peak begins at what its parent held.
    """
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", _LAUNCH, "run", *options, *_ONE_TOKEN],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        try:
            process.stdout.read(1)  # or its end, when the token is silent
            seconds = time.perf_counter() - begin
            words = process.stderr.read().decode("utf-8", "replace").strip()
            peak = _wait(process)
        except BaseException:
            process.kill()
            process.wait()
            raise
    if process.returncode != 0:
        return words.rpartition("\n")[2] or f"exit code {process.returncode}"
    return Start(seconds, peak)


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    """Wait for the end; the largest resident size in bytes."""
    if sys.platform == "win32":
        process.wait()
        return None
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
