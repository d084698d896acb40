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
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support"), str(HERE.parents[1])]

from figures import figures  # noqa: E402
from hub_server import Repo, serve  # noqa: E402
from models import write_llama  # noqa: E402
from store_faults import check  # noqa: E402

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
    at: int  # the first is 1; 0: none fails
    how: str
    stays: bool  # later ones fail too

    def codes(self, reached: bool, *others: int) -> tuple[int, ...]:
        """The exit codes that are right: 0, and `others` or the kill where the write was reached.

        How many writes a program makes depends on the clock, so that there may be no `at`-th one.
        """
        if not reached:
            return (0,)
        return (-signal.SIGKILL,) if self.how == "torn" else (0, *others)


class Writes:
    """Programs whose k-th write in a folder fails."""

    def __init__(self, folder: Path, seed: str) -> None:
        self.folder, self.library, self.counted = folder, folder / "fail.so", folder / "count"
        self.found, self.seed = Counter[str](), seed
        source = HERE / "fail_write.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(self.library), str(source)], check=True)

    def cases(self, name: str, count: int, writes: int) -> Iterator[Case]:
        """Random cases; each is a function of the seed, its name and its number."""
        self.found[f"writes of a {name}"] = writes
        for number in range(1, count + 1):
            draw = random.Random(f"{self.seed} {name} {number}")
            how, at = draw.choice(HOWS), draw.randint(1, writes)
            yield Case(name, at, how, how in ("ENOSPC", "EIO") and draw.random() < 0.5)

    def start(
        self, command: list[str], where: Path, case: Case | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        self.counted.unlink(missing_ok=True)
        environment = {
            **os.environ,
            "LD_PRELOAD": str(self.library),
            "FAIL_FOLDER": str(where),
            "FAIL_AT": str(case.at if case else 0),
            "FAIL_HOW": case.how if case else "",
            "FAIL_COUNT": str(self.counted),
            "ROPECHAT_CACHE": "off",
            **more,
        }
        if case and case.stays:
            environment["FAIL_STAYS"] = "1"
        return subprocess.run(
            [sys.executable, *command],
            cwd=HERE.parents[1],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def count(self) -> int:
        """How many writes the last program made, or made until one failed."""
        return int(self.counted.read_text()) if self.counted.exists() else 0

    def fail(self, name: str, case: Case, output: str) -> None:
        """Count a finding, and say how to repeat it."""
        self.found[name] += 1
        print(f"{name}: {case}, seed {self.seed}\n{output[-3000:]}", flush=True)

    def ends(self, case: Case, ended: subprocess.CompletedProcess[str], *others: int) -> None:
        """Count a program, and whether it ended as it must: with 0 or `others`."""
        self.found["runs"] += 1
        right = case.codes(self.count() >= case.at, *others)
        if ended.returncode not in right or "Traceback" in ended.stderr or "panicked" in ended.stderr:
            self.fail("wrong ends", case, f"exit {ended.returncode}: {ended.stderr}")

    def batch(self, count: int) -> None:
        """A batch that fails and goes on."""
        source, plain = self.folder / "in.jsonl", self.folder / "plain" / "out.jsonl"
        source.write_text("".join(json.dumps({"id": n, "prompt": f"What is {n}?"}) + "\n" for n in range(12)))
        words = [str(source), "--quiet", "--seed", "5", "--max-tokens", "6", "--resume", "--window", "4"]
        plain.parent.mkdir()
        self.start(["-c", BATCH, "batch", *words, "-o", str(plain)], plain.parent)
        whole = plain.read_bytes()
        for case in self.cases("batch", count, self.count()):
            work = self.folder / "work"
            work.mkdir()
            out = work / "out.jsonl"
            command = ["-c", BATCH, "batch", *words, "-o", str(out)]
            ended = self.start(command, work, case)
            self.ends(case, ended, 74)
            if ended.returncode:
                if out.exists() and out.read_bytes() != whole:
                    self.fail("half files", case, ended.stderr)
                again = self.start(command, work)
                if again.returncode:
                    self.fail("failed resumes", case, f"{ended.stderr}\n{again.stderr}")
            if not out.exists() or out.read_bytes() != whole:
                self.fail("different outputs", case, ended.stderr)
            shutil.rmtree(work)

    def store(self, count: int) -> None:
        """A session of the chat's database."""
        script, work = str(HERE / "store_faults.py"), self.folder / "chats"

        def session(case: Case | None) -> subprocess.CompletedProcess[str]:
            work.mkdir(mode=0o700)
            return self.start([script, "session", str(work), "6"], work / "conversations", case)

        session(None)
        shutil.rmtree(work)
        for case in self.cases("session", count, self.count()):
            ended = session(case)
            self.ends(case, ended)
            told = work / "acknowledged"
            found = Counter[str]()
            check(work, told.read_text().splitlines() if told.exists() else [], found)
            for name in BAD:
                if found[name]:
                    self.fail(name, case, ended.stderr)
            self.found += Counter({name: found[name] for name in found if name not in BAD})
            shutil.rmtree(work)

    def packs(self, count: int) -> None:
        """Packed weights."""
        model = write_llama(self.folder / "model", hidden_size=64, num_attention_heads=4, head_dim=16)
        cache = self.folder / "cache"

        def load(case: Case | None = None) -> subprocess.CompletedProcess[str]:
            more = {"XDG_CACHE_HOME": str(cache), "ROPECHAT_CACHE": "all"}
            return self.start(["-c", PACK, str(model)], cache, case, **more)

        cache.mkdir()
        digest = load().stdout
        shutil.rmtree(cache)
        for case in self.cases("pack", count, self.count()):
            cache.mkdir()
            ended = load(case)
            self.ends(case, ended)
            again = load()
            if again.stdout != digest:
                self.fail("other numbers", case, f"{ended.stderr}\n{again.stderr}")
            shutil.rmtree(cache)

    def downloads(self, count: int) -> None:
        """A download from a stand-in Hub that fails, and the next attempt."""
        draw = random.Random(self.seed)
        files = {
            "config.json": b'{"vocab_size": 260}',
            "tokenizer.json": draw.randbytes(20_000),
            "model.safetensors": draw.randbytes(3 << 20),
        }
        work = self.folder / "hub"
        with serve() as hub:
            hub.repos["org/name"] = Repo(files)
            more = {"HF_HOME": str(work), "XDG_CACHE_HOME": str(work / "own"), "HF_ENDPOINT": hub.url}

            def pull(case: Case | None = None) -> subprocess.CompletedProcess[str]:
                return self.start(["-c", BATCH, "models", "pull", "org/name"], work, case, **more)

            def got() -> dict[str, bytes]:
                return {path.name: path.read_bytes() for path in work.glob("hub/*/snapshots/*/*")}

            pull()
            shutil.rmtree(work)
            for case in self.cases("download", count, self.count()):
                ended = pull(case)
                self.ends(case, ended, 4, 74)
                if not got().items() <= files.items():
                    self.fail("parts under a final name", case, ended.stderr)
                again = pull()
                if again.returncode or got() != files:
                    self.fail("failed downloads", case, f"{ended.stderr}\n{again.stderr}")
                shutil.rmtree(work)


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
