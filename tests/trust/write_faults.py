"""Every write may fail: python tests/trust/write_faults.py N [--only batch] [--seed SEED]

A library written in C, compiled here and loaded with LD_PRELOAD, lets the k-th write, sync or cut of a file
fail: a full disk, an input/output error, an interruption, a write of half the bytes, and half the bytes
with the end of the process. N runs each, with a random k, of a batch, a chat's database, packed weights,
and a download. A batch then goes on with --resume and must have the bytes of an unharmed run; the database
must be sound and hold what was said to be on disk; a second load must compute the same numbers; a download
must have no part under a final name, and be whole after the next attempt. A finding is printed with the seed
that repeats it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support"), str(HERE.parents[1])]

from figures import figures  # noqa: E402
from hub_server import Repo, serve  # noqa: E402
from models import write_llama  # noqa: E402
from store_faults import check  # noqa: E402

JOBS = 4  # programs at a time
HANGS_S = 300
HOWS = ("ENOSPC", "EIO", "EINTR", "short", "torn")
BATCH = "import sys; from ropechat.cli import main; sys.exit(main(sys.argv[1:]))"
PACK = """
import hashlib, sys
from pathlib import Path
from ropechat import Engine
engine = Engine.load(sys.argv[1], dtype="q8_0", threads=1)
print(hashlib.sha256(engine.logits(list(range(20))).tobytes()).hexdigest())
engine.finish_pack(60)
engine.close()
"""


class Case(NamedTuple):
    """A write that fails."""

    name: str
    at: int  # the first is 1
    how: str
    stays: bool  # later ones fail too

    def codes(self, reached: bool, *others: int) -> tuple[int, ...]:
        """The exit codes that are right: 0, and `others` or the kill where the write was reached.

        How many writes a program makes depends on the clock, so that there may be no `at`-th one.
        """
        if not reached:
            return (0,)
        return (-signal.SIGKILL,) if self.how == "torn" else (0, *others)


class Ended(NamedTuple):
    """A program that ran."""

    code: int
    stdout: str
    stderr: str
    writes: int  # that it made, or made until one failed


class Writes:
    """Programs whose k-th write in a folder fails."""

    def __init__(self, folder: Path, seed: str) -> None:
        self.folder, self.library = folder, folder / "fail.so"
        self.found, self.seed = Counter[str](), seed
        self.lock, self.numbers = threading.Lock(), itertools.count()
        source = HERE / "fail_write.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(self.library), str(source)], check=True)

    def each(self, name: str, count: int, unharmed: Ended, once: Callable[[Path, Case], None]) -> None:
        """Run random cases, each in a folder of its own; the seed, the name and a number make a case."""
        if unharmed.code or not unharmed.writes:
            sys.exit(f"{name} without a fault: {unharmed}")
        self.found[f"writes of a {name}"] = unharmed.writes

        def one(number: int) -> None:
            draw = random.Random(f"{self.seed} {name} {number}")
            how, at = draw.choice(HOWS), draw.randint(1, unharmed.writes)
            case = Case(name, at, how, how in ("ENOSPC", "EIO") and draw.random() < 0.5)
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                once(Path(folder), case)

        with ThreadPoolExecutor(JOBS) as pool:
            for _ in pool.map(one, range(count)):
                pass

    def start(self, command: list[str], where: Path, case: Case | None = None, **more: str) -> Ended:
        """Run a program to its end; the writes in the folder `where` count."""
        counted = self.folder / f"count{next(self.numbers)}"
        environment = {
            **os.environ,
            "LD_PRELOAD": str(self.library),
            "FAIL_FOLDER": str(where),
            "FAIL_AT": str(case.at if case else 0),
            "FAIL_HOW": case.how if case else "",
            "FAIL_COUNT": str(counted),
            "ROPECHAT_CACHE": "off",
            **more,
        }
        if case and case.stays:
            environment["FAIL_STAYS"] = "1"
        try:
            ended = subprocess.run(
                [sys.executable, *command],
                cwd=HERE.parents[1],
                env=environment,
                capture_output=True,
                text=True,
                timeout=HANGS_S,
            )
        except subprocess.TimeoutExpired:
            return Ended(-signal.SIGALRM, "", f"it hangs: it ran for {HANGS_S} s", 0)
        writes = int(counted.read_text()) if counted.exists() else 0
        return Ended(ended.returncode, ended.stdout, ended.stderr, writes)

    def count(self, name: str) -> None:
        with self.lock:
            self.found[name] += 1

    def fail(self, name: str, case: Case, *outputs: Ended) -> None:
        """Count a finding, and say how to repeat it."""
        self.count(name)
        lines = [f"exit {one.code}: {one.stderr[-3000:]}" for one in outputs]
        print(f"{name}: {case}, seed {self.seed}", *lines, sep="\n", flush=True)

    def ends(self, case: Case, ended: Ended, *others: int) -> None:
        """Count a program, and whether it ended as it must: with 0 or `others`."""
        self.count("runs")
        right = case.codes(ended.writes >= case.at, *others)
        if ended.code not in right or "Traceback" in ended.stderr or "panicked" in ended.stderr:
            self.fail("wrong ends", case, ended)

    def batch(self, count: int) -> None:
        """A batch that fails and goes on."""
        source, plain = self.folder / "in.jsonl", self.folder / "plain" / "out.jsonl"
        source.write_text("".join(json.dumps({"id": n, "prompt": f"What is {n}?"}) + "\n" for n in range(12)))
        words = [str(source), "--quiet", "--seed", "5", "--max-tokens", "6", "--resume", "--window", "4"]

        def run(out: Path, case: Case | None = None) -> Ended:
            return self.start(["-c", BATCH, "batch", *words, "-o", str(out)], out.parent, case)

        def once(folder: Path, case: Case) -> None:
            out = folder / "out.jsonl"
            ended = run(out, case)
            self.ends(case, ended, 74)
            if ended.code:
                if out.exists() and out.read_bytes() != plain.read_bytes():
                    self.fail("half files", case, ended)
                again = run(out)
                if again.code:
                    self.fail("failed resumes", case, ended, again)
            if not out.exists() or out.read_bytes() != plain.read_bytes():
                self.fail("different outputs", case, ended)

        plain.parent.mkdir()
        self.each("batch", count, run(plain), once)

    def store(self, count: int) -> None:
        """A session of the chat's database."""
        script = str(HERE / "store_faults.py")

        def session(folder: Path, case: Case | None = None) -> Ended:
            folder.mkdir(mode=0o700)
            return self.start([script, "session", str(folder), "6"], folder / "conversations", case)

        def once(folder: Path, case: Case) -> None:
            work = folder / "chats"
            ended = session(work, case)
            self.ends(case, ended)
            told, found = work / "acknowledged", Counter[str]()
            check(work, told.read_text().splitlines() if told.exists() else [], found)
            for name, times in found.items():
                if name in BAD and times:
                    self.fail(name, case, ended)

        self.each("session", count, session(self.folder / "session"), once)

    def packs(self, count: int) -> None:
        """Packed weights."""
        model = write_llama(self.folder / "model", hidden_size=64, num_attention_heads=4, head_dim=16)

        def load(cache: Path, case: Case | None = None) -> Ended:
            more = {"XDG_CACHE_HOME": str(cache), "ROPECHAT_CACHE": "all"}
            return self.start(["-c", PACK, str(model)], cache, case, **more)

        def once(folder: Path, case: Case) -> None:
            ended = load(folder, case)
            self.ends(case, ended)
            again = load(folder)
            if again.stdout != unharmed.stdout:
                self.fail("other numbers", case, ended, again)

        cache = self.folder / "cache"
        cache.mkdir()
        unharmed = load(cache)
        self.each("pack", count, unharmed, once)

    def downloads(self, count: int) -> None:
        """A download from a stand-in Hub that fails, and the next attempt."""
        draw = random.Random(self.seed)
        files = {
            "config.json": b'{"vocab_size": 260}',
            "tokenizer.json": draw.randbytes(20_000),
            "model.safetensors": draw.randbytes(3 << 20),
        }
        with serve() as hub:
            hub.repos["org/name"] = Repo(files)

            def pull(folder: Path, case: Case | None = None) -> Ended:
                own = {"HF_HOME": str(folder), "XDG_CACHE_HOME": str(folder / "own"), "HF_ENDPOINT": hub.url}
                return self.start(["-c", BATCH, "models", "pull", "org/name"], folder, case, **own)

            def got(folder: Path) -> dict[str, bytes]:
                return {path.name: path.read_bytes() for path in folder.glob("hub/*/snapshots/*/*")}

            def once(folder: Path, case: Case) -> None:
                ended = pull(folder, case)
                self.ends(case, ended, 4, 74)
                if not got(folder).items() <= files.items():
                    self.fail("parts under a final name", case, ended)
                again = pull(folder)
                if again.code or got(folder) != files:
                    self.fail("failed downloads", case, ended, again)

            self.each("download", count, pull(self.folder / "hub"), once)


BAD = (
    *("parts under a final name", "failed downloads"),
    *("wrong ends", "half files", "failed resumes", "different outputs", "other numbers"),
    *("databases not opened", "repairs", "unsound databases", "deleted chats that are back"),
    *("questions lost", "answers lost", "titles lost"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("count", type=int, help="runs of each program")
    parser.add_argument("--seed", default=str(random.SystemRandom().getrandbits(32)))
    parser.add_argument("--only", choices=("batch", "store", "packs", "downloads"))
    args = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        writes = Writes(Path(name), args.seed)
        for run in (writes.batch, writes.store, writes.packs, writes.downloads):
            if args.only in (None, run.__name__):
                run(args.count)
    print(f"writes {args.count}, {time.monotonic() - begun:.0f} s: {figures(writes.found, BAD)}")
    return int(any(writes.found[name] for name in BAD))


if __name__ == "__main__":
    sys.exit(main())
