"""Kill -9 while the keys and values of chats are written: then every answer must still be right.

    python tests/support/kv_crashes.py write FOLDER SEED   the program: chats that are asked, left and kept
    python tests/support/kv_crashes.py run N               N kills, a line of results

The program writes each chat after each answer, so that most kills come in the middle of a file.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from figures import figures  # noqa: E402
from live_chat import Program, expected  # noqa: E402

from ropechat.chat import events as ev  # noqa: E402
from ropechat.engine.engine import Engine  # noqa: E402
from ropechat.sampling import Sampling  # noqa: E402
from ropechat.store.store import Store  # noqa: E402
from ropechat.util.kv_files import kv_folder  # noqa: E402

WORDS = ["the", "cat", "sat", "on", "a", "red", "mat", "and", "saw", "one", "big", "dog", "run", "home"]


def start(folder: Path, draw: random.Random) -> Program:
    """The program on the store in a folder, with its cache there."""
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    sampling = Sampling(temperature=draw.choice([0, 0.8]), max_tokens=3, seed=draw.randrange(99))
    return Program("builtin", Store(folder / "data"), sampling, kv_bytes=10**9)


def write(folder: Path, seed: int) -> None:
    """Ask, leave and open chats until killed."""
    draw = random.Random(seed)
    one = start(folder, draw)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        one.answer(one.session.ask(" ".join(draw.choices(WORDS, k=draw.randint(50, 200)))))
        if draw.random() < 0.3:
            one.new()
        else:
            one.chat.save_kv()


def check(folder: Path, draw: random.Random, plain: Engine, found: Counter[str]) -> None:
    """Open each chat, and compare its next answer with that of an engine that reads everything."""
    found["unfinished files"] += sum(path.suffix == ".part" for path in kv_folder().glob("*"))
    one = start(folder, draw)
    store = one.session.recorder.store
    assert store is not None
    for summary in store.conversations().result(60):
        one.open(summary.id)
        request, steps = one.answer(one.session.ask("And then?"))
        found["answers"] += 1
        found["wrong answers"] += steps != expected(plain, request)
        found["answers from kept keys"] += one.cached > 40
    found["damaged files"] += sum(isinstance(event, ev.Notice) for event in one.seen)
    one.close()
    store.close()
    found["unfinished files left"] += sum(path.suffix == ".part" for path in kv_folder().glob("*"))


def kills(count: int, draw: random.Random, longest: float = 0.5) -> Counter[str]:
    """Kill `count` programs, each in a folder of its own, and count what went wrong."""
    found = Counter[str]()
    plain = Engine.load("builtin", context=2048, cache="off", prefix_bytes=0)
    for _ in range(count):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "write", folder, str(draw.randrange(2**32))]
            program = subprocess.Popen(command, stdout=subprocess.PIPE)
            assert program.stdout is not None
            assert program.stdout.readline() == b"ready\n"
            time.sleep(draw.uniform(0.05, longest))
            program.send_signal(signal.SIGKILL)
            program.wait()
            program.stdout.close()
            os.environ["XDG_CACHE_HOME"] = str(Path(folder) / "cache")
            check(Path(folder), draw, plain, found)
    return found


FAULTS = ("wrong answers", "damaged files", "unfinished files left")


def main() -> int:
    """Write, or kill and report."""
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]), int(sys.argv[3]))
    begun, seed = time.time(), random.randrange(2**32)
    found = kills(int(sys.argv[2]), random.Random(seed))
    print(f"{sys.argv[2]} kills in {time.time() - begun:.0f} s, seed {seed}: {figures(found, FAULTS)}")
    return sum(found[name] for name in FAULTS)


if __name__ == "__main__":
    sys.exit(bool(main()))
