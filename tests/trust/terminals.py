"""The chat, and the reader, where the surroundings are odd: python tests/trust/terminals.py N

N programs, two of three are chats, on pseudo-terminals of random sizes, with TERM=dumb, LANG=C, odd time
zones, clocks that jump (a library loaded with LD_PRELOAD moves the clock by years in both directions), and
storms of 50 resizes, every second one to a few cells or rows, and of keys, at any moment from the start of
the program on. Each must end in order.
"""

from __future__ import annotations

import fcntl
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parents[1])]

from figures import figures  # noqa: E402
from program import MAIN, Program  # noqa: E402

CLOCK = r"""
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *now) {
    static unsigned calls;
    long done = syscall(SYS_clock_gettime, id, now);
    if (id == CLOCK_REALTIME && calls++ % 7 < 3) now->tv_sec += calls % 2 ? 400000000 : -1900000000;
    return done;
}
"""
KEYS = (  # palette, help, a chosen token, its alternatives, continuations, lists; some twice at once
    *(b"\x10", b"\r", b"\r\r", b"\x1b", b"\x1b\x1b", b"\t", b"\x1bOP", b"\x1bOS"),
    *(b"a", b"F", b"n", b"2", b"=", b"c", b"f", b"g", b"v", b"/", b"XYZ\r"),
    *(b"\x1b[A", b"\x1b[B", b"\x1b[D", b"\x1b[5~", b"\x1b[6~"),
)
STACKS = r"""
import asyncio, faulthandler, os, signal
def tasks(*_):
    for task in asyncio.all_tasks():
        awaited, waits = task.get_coro(), []
        while frame := getattr(awaited, "cr_frame", None):
            waits.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
            awaited = awaited.cr_await
        if not any("._get_message" in wait or "Timer." in wait for wait in waits):
            print(task.get_name(), *waits, file=stacks, flush=True)
stacks = open(os.environ["STACKS"], "w")
faulthandler.enable(stacks)
signal.signal(signal.SIGUSR1, tasks)
"""  # where a program that hangs is: its tasks but those that wait for a message or a while, and its threads
PROGRAMS = (
    *[["chat", "--threads", "1", "--max-tokens", "20"]] * 2,
    ["inspect", "-m", "builtin", "-i", str(HERE.parents[1] / "README.md")],
)
ESCAPES = re.compile(rb"(?:\x1b\[[0-9;?<>=]*[a-zA-Z]|\s)+")
SURROUNDINGS: tuple[dict[str, str], ...] = (
    {"LANG": "C", "LC_ALL": "C"},
    {"TERM": "dumb"},
    {"TZ": "Pacific/Kiritimati"},
    {"TZ": "nonsense/\x01"},
    {"TERM": ""},
    {"NO_COLOR": "1"},
    {"COLUMNS": "0", "LINES": "x"},
    {},
)


def resize(screen: Program, rows: int, columns: int) -> None:
    """Set the size; the system signals it."""
    fcntl.ioctl(screen.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def once(draw: random.Random, folder: Path, clock: Path, found: Counter[str]) -> None:
    """One program."""
    around = dict(draw.choice(SURROUNDINGS))
    if draw.random() < 0.4:
        around["LD_PRELOAD"] = str(clock)
        found["of them with a clock that jumps"] += 1
    plain = around.get("TERM") in ("dumb", "")  # then the chat has no screen
    size = draw.choice([(5, 20), (24, 80), (1, 1), (60, 250), (10, 30)])
    around["ROPECHAT_DATA"], around["STACKS"] = str(folder), f"{folder}.stacks"  # stderr is the chat's
    screen = Program(draw.choice(PROGRAMS), STACKS + MAIN, size, **around)
    seen = screen.drain(draw.choice([0.2, 0.7, 1.5, 4]))
    for number in range(draw.choice([0, 50])):
        rows, columns = ((60, 200), (8, 12))[number % 2]
        resize(screen, draw.randint(1, rows), draw.randint(1, columns))
        if not plain:
            screen.press(draw.choice(KEYS))
        seen += screen.drain(draw.choice([0.002, 0.02, 0.06]))
        found["resizes"] += 1
    screen.press(b"What is a token?\r")
    seen += screen.drain(3)
    begun = time.monotonic()
    screen.press(b"\x04\x11" if plain else b"\x11")
    while screen.child.poll() is None and time.monotonic() - begun < 30:
        seen += screen.drain(0.2)
    ended = screen.child.poll()
    if ended is None:
        for number in (signal.SIGUSR1, signal.SIGABRT, signal.SIGKILL):
            screen.child.send_signal(number)
            screen.drain(3)
        print(Path(around["STACKS"]).read_text())
    os.close(screen.master)
    bad = ended not in (0, 2) or b"Traceback" in seen or b"a bug in ropechat" in seen or b"panicked" in seen
    found["exceptions or hangs"] += bad
    found[f"with exit {ended}"] += 1
    if bad:
        print(around, size, ended, ESCAPES.sub(b" ", seen)[-3000:].decode(errors="replace"))


BAD = ("exceptions or hangs",)


def main() -> int:
    count, found, draw = int(sys.argv[1]), Counter[str](), random.Random()
    with tempfile.TemporaryDirectory() as name:
        clock = Path(name) / "clock.so"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(clock)], input=CLOCK.encode(), check=True
        )
        for number in range(count):
            once(draw, Path(name) / f"data{number}", clock, found)
    print(f"terminals {count}: {figures(found, BAD)}")
    return int(any(found[name] for name in BAD))


if __name__ == "__main__":
    sys.exit(main())
