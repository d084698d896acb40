"""Processes that fork, or end, after an engine was used:

    python tests/trust/processes.py fork N    N forks; the child uses its parent's engine and a new one
    python tests/trust/processes.py exits N   N ends of each kind while threads compute

A child of a fork must have its parent's answer or a named error, within 20 s. An end must take a second,
without a core dump, a
panic or a fatal error of Python.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support")]

from figures import figures  # noqa: E402

FORK = """
import os, sys, signal
from ropechat import Engine, Sampling
from ropechat.conversation import Message, Role
from ropechat.errors import RopechatError
def say(engine):
    asked = [Message(Role.USER, "What is a token?")]
    return "".join(step.text for step in engine.reply(asked, Sampling(temperature=0, max_tokens=12)))
engine = Engine.load("builtin", threads=2)
whole = say(engine)
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    code = 0
    for make in (lambda: engine, lambda: Engine.load("builtin", threads=2)):
        try:
            code |= 0 if say(make()) == whole else 1
        except RopechatError as error:
            print(error)
            code |= 8
    os._exit(code)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert say(engine) == whole
print("child", status)
"""

BEGIN = """
import atexit, os, sys, threading, time
from ropechat import Engine, Sampling
engine = Engine.load("builtin", threads=2)
def compute():
    while True:
        engine.logits(list(range(40)) * 8)
def compute_and_say():
    print("ready", flush=True)
    compute()
"""
THREAD = "threading.Thread(target=compute_and_say, daemon=True).start(); time.sleep(DELAY); "
ENDS = {
    "sys.exit": f"{BEGIN}{THREAD}sys.exit(3)",
    "os._exit": f"{BEGIN}{THREAD}os._exit(3)",
    "exception": f"{BEGIN}{THREAD}raise SystemExit(3)",
    "atexit": f"{BEGIN}atexit.register(lambda: engine.logits([1, 2, 3])); {THREAD}sys.exit(3)",
    "close": f"{BEGIN}{THREAD}engine.close(); sys.exit(3)",
    "SIGTERM": f"{BEGIN}compute_and_say()",
}


def fork(count: int, found: Counter[str]) -> None:
    """Fork, and say what came of it."""
    for _ in range(count):
        ended = subprocess.run(
            [sys.executable, "-c", FORK], cwd=ROOT, capture_output=True, text=True, timeout=120
        )
        if ended.returncode:
            found["parents failed"] += 1
            print(ended.stderr)
            continue
        code = int(ended.stdout.split()[-1])
        found[
            {0: "with the parent's answer", 8: "with a named error"}.get(
                code, "hangs" if code == -signal.SIGALRM else "wrong answers"
            )
        ] += 1


def exits(count: int, found: Counter[str]) -> None:
    """End in every way, at random moments of a computation."""
    draw, slowest = random.Random(), 0.0
    for number in range(count):
        name = [*ENDS][number % len(ENDS)]
        code = ENDS[name].replace("DELAY", f"{draw.uniform(0, 0.2):.3f}")
        child = subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(draw.uniform(0, 0.2))
        begun = time.monotonic()
        if name == "SIGTERM":
            child.send_signal(signal.SIGTERM)
        try:
            errors = child.communicate(timeout=30)[1].decode()
        except subprocess.TimeoutExpired:
            child.kill()
            errors = child.communicate()[1].decode()
            found["hangs"] += 1
        slowest = max(slowest, time.monotonic() - begun)
        wanted = -signal.SIGTERM if name == "SIGTERM" else 3
        right = child.returncode == wanted and "Fatal" not in errors and "panicked" not in errors
        found["ends"] += right
        if not right:
            found["wrong ends"] += 1
            print(name, child.returncode, errors[-500:])
    found["ms for the slowest"] = round(1000 * slowest)


BAD = {"fork": ("parents failed", "hangs", "wrong answers"), "exits": ("wrong ends", "hangs")}


def main() -> int:
    what, count = sys.argv[1], int(sys.argv[2])
    os.environ["ROPECHAT_CACHE"] = "off"
    found = Counter[str]()
    {"fork": fork, "exits": exits}[what](count, found)
    print(f"{what} {count}: {figures(found, BAD[what])}")
    return int(any(found[name] for name in BAD[what]))


if __name__ == "__main__":
    sys.exit(main())
