"""Faults in a batch run, then --resume: nothing may be lost, doubled or different.

    python tests/support/batch_faults.py kill N      kill -9 at N random moments
    python tests/support/batch_faults.py full N      a disk that is full at N places (RLIMIT_FSIZE)
    python tests/support/batch_faults.py signal N    N each of SIGINT, SIGTERM, SIGHUP: how long until the end

The run is the built-in model's, at temperature 0.8. A line of results is printed.
"""

import hashlib
import json
import multiprocessing
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from figures import figures  # noqa: E402
from thinking_models import OPENED, THINK, thinking_model  # noqa: E402

ROWS, WINDOW = 60, 8
JOBS, KILLS = 4, 25  # folders at a time; kills in each
BAD = (
    *("rows lost", "rows doubled", "different outputs", "failed resumes", "tracebacks", "half files"),
    *("errors without a hint", "wrong exit codes"),
)
WORDS = ("What is RoPE?", "What is a token?", "Tell me a story.", "Hello", "How warm is the sun?")


class Faults:
    """A folder with an input, the output of a run without a fault, and runs with faults.

    thinks: the model writes a thought before each answer.
    """

    def __init__(self, folder: Path, draw: random.Random, *, thinks: bool = False) -> None:
        self.folder, self.draw, self.found = folder, draw, Counter[str]()
        tokens = 24 if thinks else 12
        self.options = ["--temperature", "0.8", "--max-tokens", str(tokens), "--parallel", str(WINDOW)]
        if thinks:
            model = thinking_model(folder / "thinker", OPENED, THINK)
            self.options += ["--model", str(model), "--think", "12", "--logprobs", "0"]
        self.source = folder / "in.jsonl"
        lines = [{"id": f"r{i}", "prompt": f"{draw.choice(WORDS)} {i}"} for i in range(ROWS)]
        self.source.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.out, self.journal = folder / "out.jsonl", folder / "out.jsonl.journal"
        child = self.start(folder / "plain.jsonl")
        err = child.communicate()[1].decode()
        assert child.returncode == 0, err
        self.plain = (folder / "plain.jsonl").read_bytes()

    def start(self, out: Path, limit: int | None = None) -> "subprocess.Popen[bytes]":
        words = ["batch", str(self.source), "-o", str(out), "--resume", "--quiet", "--seed", "5"]
        words += self.options
        code = "import sys; from ropechat.cli import main; sys.exit(main(sys.argv[1:]))"
        limits = None
        if limit is not None:
            limits = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))  # noqa: E731
        return subprocess.Popen(
            [sys.executable, "-c", code, *words], stderr=subprocess.PIPE, preexec_fn=limits
        )

    def records(self) -> list[str]:
        """The whole records of the journal, by id."""
        if not self.journal.exists():
            return []
        whole = self.journal.read_bytes().split(b"\n")[1:-1]
        return [json.loads(line)["id"] for line in whole]

    def lines(self) -> int:
        """Lines of the journal: the header and the records."""
        return self.journal.read_bytes().count(b"\n") if self.journal.exists() else 0

    def check_journal(self, before: set[str]) -> set[str]:
        """Compare the journal with what was in it before the last run."""
        now = self.records()
        self.found["rows lost"] += len(before - {*now})
        self.found["rows doubled"] += len(now) - len({*now})
        return {*now}

    def finish(self, before: set[str]) -> None:
        """Run to the end, and compare the output."""
        child = self.start(self.out)
        err = child.communicate()[1].decode()
        self.found["failed resumes"] += child.returncode != 0
        if child.returncode:
            print(err)
            return
        self.check_journal(before)
        same = hashlib.sha256(self.out.read_bytes()).digest() == hashlib.sha256(self.plain).digest()
        self.found["resumes to the end"] += 1
        self.found["different outputs"] += not same
        for path in (self.out, self.journal):
            path.unlink()

    def kill(self, count: int) -> None:
        """kill -9 `count` runs, each file up to five times, a moment after so many records."""
        while count > 0:
            before: set[str] = set()
            for _ in range(min(count, self.draw.randint(1, 5))):
                child = self.start(self.out)
                wanted = self.draw.randint(len(before), ROWS + 1)
                while child.poll() is None and self.lines() < wanted:
                    time.sleep(0.001)
                time.sleep(self.draw.uniform(0, 0.02))
                child.send_signal(signal.SIGKILL)
                child.communicate()
                count -= 1
                self.found["kills"] += child.returncode == -signal.SIGKILL
                self.found["after the end"] += child.returncode == 0
                before = self.check_journal(before)
                self.found["of them after the first row"] += 0 < len(before) < ROWS
            self.finish(before)

    def full(self, count: int) -> None:
        """Let the disk be full at places from the first byte to the end of the output."""
        size = len(self.plain) + 120 * ROWS
        for number in range(count):
            child = self.start(self.out, limit=size * number // count + self.draw.randrange(100))
            err = child.communicate()[1]
            self.found[f"with exit {child.returncode}"] += 1
            self.found["tracebacks"] += b"Traceback" in err
            if child.returncode:
                self.found["half files"] += self.out.exists()
                self.found["errors without a hint"] += b"--resume" not in err and self.journal.exists()
            self.finish(self.check_journal(set()))

    def signals(self, count: int) -> None:
        """Send each ending signal at random moments of the computation."""
        signal.signal(signal.SIGINT, signal.default_int_handler)  # of a shell's background job it is ignored
        slowest = 0.0
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
            for _ in range(count):
                child = self.start(self.out)
                wanted = self.draw.randint(2, ROWS // 2)  # lines of the journal
                while child.poll() is None and self.lines() < wanted:
                    time.sleep(0.001)
                begun = time.monotonic()
                child.send_signal(number)
                child.communicate()
                self.found["after the end"] += child.returncode == 0
                if child.returncode:
                    slowest = max(slowest, time.monotonic() - begun)
                    self.found[f"with exit {child.returncode}"] += 1
                    self.found["wrong exit codes"] += child.returncode != code
                self.check_journal(set())
                for path in (self.out, self.journal):
                    path.unlink(missing_ok=True)
        self.found["ms for the slowest"] = round(1000 * slowest)


def some_kills(part: tuple[int, int]) -> Counter[str]:
    """So many kills in a folder of their own. part: their number, the seed."""
    with tempfile.TemporaryDirectory() as folder:
        faults = Faults(Path(folder), random.Random(part[1]))
        faults.kill(part[0])
    return faults.found


def main() -> int:
    what, count, seed = sys.argv[1], int(sys.argv[2]), random.randrange(10**6)
    begun, found = time.time(), Counter[str]()
    if what == "kill":
        with multiprocessing.Pool(JOBS) as pool:
            parts = [(min(KILLS, count - n), seed + n) for n in range(0, count, KILLS)]
            for part in pool.imap_unordered(some_kills, parts):
                found += part
    else:
        with tempfile.TemporaryDirectory() as folder:
            faults = Faults(Path(folder), random.Random(seed))
            {"full": faults.full, "signal": faults.signals}[what](count)
            found = faults.found
    print(f"{what} {count}, seed {seed}, {time.time() - begun:.0f} s: {figures(found, BAD)}")
    return sum(found[name] for name in BAD)


if __name__ == "__main__":
    sys.exit(bool(main()))
