"""Every write may fail: python tests/trust/write_faults.py N

A library written in C, compiled here and loaded with LD_PRELOAD, lets the k-th write, sync or cut of a file
fail: a full disk, an input/output error, an interruption, a write of half the bytes, and half the bytes
with the end of the process. N runs each, with a random k, of a batch, a chat's database, packed weights,
and a download. A batch then goes on with --resume and must have the bytes of an unharmed run; the database
must be sound and hold what was said to be on disk; a second load must compute the same numbers; a download
must have no part under a final name, and be whole after the next attempt.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support"), str(HERE.parents[1])]

from figures import figures  # noqa: E402

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


class Writes:
    """Programs whose k-th write in a folder fails."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.library, self.count = folder, folder / "fail.so", folder / "count"
        self.found, self.draw = Counter[str](), random.Random()
        source = HERE / "fail_write.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(self.library), str(source)], check=True)

    def start(
        self, command: list[str], where: Path, at: int, how: str, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        changes = {
            "LD_PRELOAD": str(self.library),
            "FAIL_FOLDER": str(where),
            "FAIL_AT": str(at),
            "FAIL_HOW": how,
        }
        environment = {
            **os.environ,
            "ROPECHAT_CACHE": "off",
            "FAIL_COUNT": str(self.count),
            **changes,
            **more,
        }
        if self.draw.random() < 0.5 and how in ("ENOSPC", "EIO"):
            environment["FAIL_STAYS"] = "1"
        return subprocess.run(
            [sys.executable, *command],
            cwd=HERE.parents[1],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def note(
        self, what: str, how: str, ended: subprocess.CompletedProcess[str], codes: tuple[int, ...]
    ) -> None:
        """Count how a program ended."""
        wrong = ended.returncode not in codes or "Traceback" in ended.stderr or "panicked" in ended.stderr
        self.found["runs"] += 1
        self.found["wrong ends"] += wrong
        if wrong:
            print(what, how, ended.returncode, ended.stderr[-1500:])

    def batch(self, count: int) -> None:
        """A batch that fails and goes on."""
        source, plain = self.folder / "in.jsonl", self.folder / "plain" / "out.jsonl"
        source.write_text("".join(json.dumps({"id": n, "prompt": f"What is {n}?"}) + "\n" for n in range(12)))
        words = [str(source), "--quiet", "--seed", "5", "--max-tokens", "6", "--resume", "--window", "4"]
        plain.parent.mkdir()
        self.start(["-c", BATCH, "batch", *words, "-o", str(plain)], plain.parent, 0, "")
        whole, writes = plain.read_bytes(), int(self.count.read_text())
        self.found["writes of a batch"] = writes
        for _ in range(count):
            work = self.folder / "work"
            work.mkdir()
            command, how = (
                ["-c", BATCH, "batch", *words, "-o", str(work / "out.jsonl")],
                self.draw.choice(HOWS),
            )
            ended = self.start(command, work, self.draw.randint(1, writes), how)
            self.note("batch", how, ended, {"torn": (-9,)}.get(how, (0, 74)))
            if ended.returncode:
                self.found["half files"] += (work / "out.jsonl").exists() and (
                    work / "out.jsonl"
                ).read_bytes() != whole
                again = self.start(command, work, 0, "")
                self.found["failed resumes"] += again.returncode != 0
            out = work / "out.jsonl"
            self.found["different outputs"] += not out.exists() or out.read_bytes() != whole
            shutil.rmtree(work)

    def store(self, count: int) -> None:
        """A session of the chat's database."""
        from store_faults import check

        script, work = str(HERE / "store_faults.py"), self.folder / "chats"
        writes = 0
        for number in range(count + 1):
            work.mkdir(mode=0o700)
            how = self.draw.choice(HOWS) if number else ""
            ended = self.start(
                [script, "session", str(work), "6"],
                work / "conversations",
                self.draw.randint(1, writes) if number else 0,
                how,
            )
            writes = writes or int(self.count.read_text())
            self.note("store", how, ended, (0, -9) if how == "torn" else (0,))
            told = (
                (work / "acknowledged").read_text().splitlines() if (work / "acknowledged").exists() else []
            )
            found = Counter[str]()
            check(work, told, found)
            self.found += found
            shutil.rmtree(work)
        self.found["writes of a session"] = writes

    def packs(self, count: int) -> None:
        """Packed weights."""
        from models import write_llama

        model = write_llama(self.folder / "model", hidden_size=64, num_attention_heads=4, head_dim=16)
        digest, writes = "", 0
        for number in range(count + 1):
            cache = self.folder / "cache"
            cache.mkdir()
            how = self.draw.choice(HOWS) if number else ""
            at = self.draw.randint(1, max(1, writes)) if number else 0
            more = {"XDG_CACHE_HOME": str(cache), "ROPECHAT_CACHE": "all"}
            ended = self.start(["-c", PACK, str(model)], cache, at, how, **more)
            writes = writes or int(self.count.read_text())
            self.note("packs", how, ended, (0, -9) if how == "torn" else (0,))
            again = self.start(["-c", PACK, str(model)], cache, 0, "", **more)
            digest = digest or ended.stdout
            self.found["other numbers"] += again.stdout != digest
            shutil.rmtree(cache)
        self.found["writes of a pack"] = writes

    def downloads(self, count: int) -> None:
        """A download from a stand-in Hub that fails, and the next attempt."""
        from hub_server import Repo, serve

        files = {
            "config.json": b'{"vocab_size": 260}',
            "tokenizer.json": self.draw.randbytes(20_000),
            "model.safetensors": self.draw.randbytes(3 << 20),
        }
        words, writes = ["-c", BATCH, "models", "pull", "org/name"], 0
        with serve() as hub:
            hub.repos["org/name"] = Repo(files)
            for number in range(count + 1):
                work = self.folder / "hub"
                how = self.draw.choice(HOWS) if number else ""
                at = self.draw.randint(1, writes) if number else 0
                more = {"HF_HOME": str(work), "XDG_CACHE_HOME": str(work / "own"), "HF_ENDPOINT": hub.url}
                ended = self.start(words, work, at, how, **more)
                writes = writes or int(self.count.read_text())
                self.note("downloads", how, ended, {"torn": (-9,)}.get(how, (0, 4, 74)))
                self.found["parts under a final name"] += any(
                    path.read_bytes() != files[path.name] for path in work.glob("hub/*/snapshots/*/*")
                )
                again = self.start(words, work, 0, "", **more)
                got = {path.name: path.read_bytes() for path in work.glob("hub/*/snapshots/*/*")}
                self.found["failed downloads"] += again.returncode != 0 or got != files
                shutil.rmtree(work)
        self.found["writes of a download"] = writes


BAD = (
    *("parts under a final name", "failed downloads"),
    *("wrong ends", "half files", "failed resumes", "different outputs", "other numbers"),
    *("databases not opened", "repairs", "unsound databases", "deleted chats that are back"),
    *("questions lost", "answers lost", "titles lost"),
)


def main() -> int:
    count, begun = int(sys.argv[1]), time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        writes = Writes(Path(name))
        for run in (writes.batch, writes.store, writes.packs, writes.downloads):
            run(count)
    print(f"writes {count}, {time.monotonic() - begun:.0f} s: {figures(writes.found, BAD)}")
    return int(any(writes.found[name] for name in BAD))


if __name__ == "__main__":
    sys.exit(main())
