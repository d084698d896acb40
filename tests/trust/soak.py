"""What grows: memory, descriptors, threads and files of a long batch, and of a scripted chat.

    python tests/trust/soak.py batch PROMPTS   a batch of so many different prompts with the built-in model
    python tests/trust/soak.py chat MINUTES    chats of ten questions on a pseudo-terminal, and new answers

The memory of a batch may grow by 1 KB a prompt after the first 500. An open chat holds its answers with
their alternatives, so that it grows; chats that were left must not: the least memory of each chat may grow by
1 KB a question after the first 500. The log of the database (WAL) has 64 MB at most. Descriptors may vary by
4, threads not at all.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parents[1])]

WORDS = ["what", "is", "a", "token", "why", "does", "the", "key", "turn", "by", "angle", "rope", "water"]
WAL_BYTES = 64 << 20
QUESTIONS = 10  # of a chat
PREFIX_BYTES = 4 << 20
"""Keys and values that are kept of prompts and of chats that were left: less than the usual 64 MB, which 500
questions or 900 prompts fill."""
FIRST = 500
"""Prompts or questions after which the slope is measured."""
PROGRAM = f"import sys; sys.path.insert(0, {str(HERE)!r}); import soak; soak.program()"


def state(pid: int) -> tuple[int, int, int]:
    """Resident KiB, descriptors and threads of a process."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]), len(os.listdir(f"/proc/{pid}/fd")), int(fields["Threads"])


def slope(points: list[tuple[float, float]]) -> float:
    """Of the straight line with the least squared distance."""
    n = len(points)
    x_mean, y_mean = (sum(values) / n for values in zip(*points, strict=True))
    square = sum((x - x_mean) ** 2 for x, _ in points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / square if square else 0.0


def batch(count: int, folder: Path) -> int:
    """Run it, and look at the process whenever its journal has grown."""
    draw = random.Random(3)
    source, out = folder / "in.jsonl", folder / "out.jsonl"
    with source.open("w") as file:
        for number in range(count):
            text = " ".join(draw.choices(WORDS, k=draw.randint(3, 40)))
            file.write(json.dumps({"id": number, "prompt": text, "max_tokens": draw.randint(1, 24)}) + "\n")
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "batch", str(source), "-o", str(out), "--quiet"], cwd=HERE.parents[1]
    )
    journal, states = out.with_name("out.jsonl.journal"), list[tuple[int, tuple[int, int, int]]]()
    done = at = 0
    while child.poll() is None:
        if journal.exists():
            with journal.open("rb") as file:
                file.seek(at)
                data = file.read()
            done, at = done + data.count(b"\n"), at + len(data)
            try:
                states.append((done, state(child.pid)))
            except (OSError, KeyError):
                break
        time.sleep(0.2)
    code = child.wait()
    late = [one for one in states if min(FIRST, count // 3) <= one[0] < count]  # then results are written
    tenths = {done * 10 // count: f"{done:,} prompts: {found[0]:,} KiB" for done, found in states}
    print("; ".join(tenths.values()))
    grows = slope([(done, found[0] * 1024) for done, found in late])
    descriptors, threads = ([found[which] for _, found in late] for which in (1, 2))
    print(
        f"soak batch {count}: {grows:.0f} bytes a prompt, {late[0][1][0]} to {late[-1][1][0]} KiB, "
        f"{min(descriptors)} to {max(descriptors)} descriptors, {min(threads)} to {max(threads)} threads"
    )
    flat = grows <= 1024 and max(descriptors) - min(descriptors) <= 4 and max(threads) == min(threads)
    return int(code != 0 or not flat)


def program() -> None:
    """ropechat, with few keys and values of what was computed before."""
    from ropechat.cli import main
    from ropechat.engine.native import ModelLoad

    begin = ModelLoad.__init__

    def begun(self: ModelLoad, folder: Path, **options: Any) -> None:
        begin(self, folder, **{**options, "prefix_bytes": PREFIX_BYTES})

    ModelLoad.__init__ = begun  # type: ignore[method-assign]
    sys.exit(main())


def chat(minutes: float, folder: Path) -> int:
    """Type at random, and look at the process every second or so."""
    from program import OWN_TERMINAL, Program

    draw, data = random.Random(4), folder / "data"
    arguments = ["chat", "--threads", "2", "--max-tokens", "60"]
    screen = Program(
        arguments, OWN_TERMINAL + PROGRAM, size=(40, 120), ROPECHAT_DATA=str(data), ROPECHAT_CACHE="off"
    )
    screen.until(b"ready", 120)
    states, asked = list[tuple[int, tuple[int, int, int]]](), 0
    end = time.monotonic() + 60 * minutes
    deeds = (b"/regen\r", b"/continue\r", b"\x1b", b"/prose\r")
    while time.monotonic() < end:
        if draw.random() < 0.6:
            screen.press(" ".join(draw.choices(WORDS, k=draw.randint(2, 12))).encode() + b"\r")
            asked += 1
            if asked % QUESTIONS == 0:
                screen.drain(draw.uniform(0.5, 2.0))
                screen.press(b"/new\r")
        else:
            screen.press(draw.choice(deeds))
        screen.drain(draw.uniform(0.2, 1.0))
        states.append((asked, state(screen.child.pid)))
    files = {path.suffix or path.name: path.stat().st_size for path in data.rglob("conversations.db*")}
    wal = next((size for name, size in files.items() if "wal" in name), 0)
    late = [one for one in states if one[0] >= min(FIRST, asked // 3)]
    least = dict[int, int]()  # KiB by the first question of a chat
    for number, (memory, *_) in late:
        first = number // QUESTIONS * QUESTIONS
        least[first] = min(memory, least.get(first, memory))
    grows = slope([(first, 1024 * memory) for first, memory in least.items()])
    tenths = {first * 10 // asked: f"{first:,} questions: {memory:,} KiB" for first, memory in least.items()}
    print("; ".join(tenths.values()))
    descriptors, threads = ([found[which] for _, found in late] for which in (1, 2))
    print(
        f"soak chat {minutes:g}: {grows:.0f} bytes a question of {asked:,}, {asked // QUESTIONS + 1} chats, "
        f"{min(least.values())} to {max(least.values())} KiB at least in each after the first {late[0][0]} "
        f"questions, {min(descriptors)} to {max(descriptors)} descriptors, {min(threads)} to {max(threads)} "
        f"threads, database {sum(files.values()) - wal} bytes, WAL {wal} bytes"
    )
    screen.quit()
    flat = grows <= 1024 and max(descriptors) - min(descriptors) <= 4 and max(threads) == min(threads)
    return int(wal > WAL_BYTES or not (flat or minutes < 5))


def main() -> int:
    what, size = sys.argv[1], float(sys.argv[2])
    with tempfile.TemporaryDirectory() as name:
        return batch(int(size), Path(name)) if what == "batch" else chat(size, Path(name))


if __name__ == "__main__":
    sys.exit(main())
