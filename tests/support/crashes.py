"""Kill -9 at random moments: a program that chats is killed, then what it had said is looked for on disk.

    python tests/support/crashes.py run N            N kills, a line of results

The program is a session and its inference thread, without a screen. It says on stdout `asked ID` once the
model began to read a question, `made ID SECONDS TOKEN` for each token, and `ended ID N` once the end of an
answer is on disk. Whatever was made longer ago than 250 ms, or more than 64 tokens ago, must be there.
"""

import contextlib
import multiprocessing
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from fakes import STORY, FakeEngine  # noqa: E402
from figures import figures  # noqa: E402

from ropechat.chat import events as ev  # noqa: E402
from ropechat.chat.answer import Turn  # noqa: E402
from ropechat.chat.inference import Inference  # noqa: E402
from ropechat.chat.recorder import ConversationRecorder  # noqa: E402
from ropechat.chat.session import Session  # noqa: E402
from ropechat.conversation import NodeState  # noqa: E402
from ropechat.sampling import Sampling  # noqa: E402
from ropechat.store.store import FILE, Store  # noqa: E402

SECONDS, TOKENS = 0.25, 64  # what may be lost
JOBS = 4  # folders at a time: a program mostly waits


def say(line: str) -> None:
    """A line that is out before anything else happens."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def write(folder: Path) -> None:
    """Chat until killed. Each answer has a random speed and length of its own."""
    draw, engine, thread, store = (
        random.Random(),
        FakeEngine(STORY * 3, thought=STORY),
        Inference(),
        Store(folder),
    )
    session = Session("fake", Sampling(max_tokens=9999), recorder=ConversationRecorder(store))
    engine.context = 10**6
    thread.start()
    thread.submit(ev.Load(lambda: engine))
    while True:
        session.clear()
        for _ in range(draw.randint(1, 3)):
            engine.rate = draw.choice([0.0, 1000.0, 200.0, 40.0])
            session.sampling = Sampling(max_tokens=draw.randint(1, 300))
            follow(session, thread, session.ask("q" * draw.randint(1, 4000)))
        if draw.random() < 0.1:
            say(f"deleted {' '.join(session.tree.nodes)}")
            store.delete(session.recorder.id).result()


def follow(session: Session, thread: Inference, turn: Turn) -> None:
    """Have an answer written, and say what happens."""
    assert turn.request is not None
    assert session.recorder.store is not None
    thread.submit(turn.request)
    while turn.answer.live:
        time.sleep(0.001)
        for event in thread.drain():
            session.apply(event)
            if isinstance(event, ev.Started):
                say(f"asked {turn.asked}")
            for step in event.steps if isinstance(event, ev.PrefixAccepted) else ():
                say(f"made {turn.node} {time.time()} {step.id}")
            if isinstance(event, ev.TokenGenerated):
                say(f"made {turn.node} {time.time() - time.monotonic() + event.at} {event.step.id}")
    session.recorder.store.conversations().result()
    say(f"ended {turn.node} {len(turn.answer.node.steps)}")


def kill_one(folder: Path, seconds: float) -> tuple[list[str], float]:
    """Run the program for some seconds; what it said, and when it died.

    It is a fork of this process, which has imported all: ten times as cheap as a start of Python.
    """
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors:
        program = os.fork()
        if program == 0:
            try:
                os.dup2(said.fileno(), 1)
                os.dup2(errors.fileno(), 2)
                sys.stdout = os.fdopen(1, "w")
                write(folder)
            except BaseException:
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(1)
        time.sleep(seconds)
        os.kill(program, signal.SIGKILL)
        died = time.time()
        os.waitpid(program, 0)
        said.seek(0)
        errors.seek(0)
        assert not (text := errors.read()), text.decode()
        return said.read().decode().splitlines(keepends=True), died


class Claims:
    """What the programs said, over all kills so far: questions asked, tokens made and when, answers ended."""

    def __init__(self) -> None:
        self.asked: set[str] = set()
        self.ended: dict[str, int] = {}
        self.made: dict[str, list[float]] = {}
        self.tokens: dict[str, list[int]] = {}
        self.died: dict[str, float] = {}

    def take(self, lines: list[str], died: float) -> None:
        """Add what one program said; its last line may be cut."""
        for line in lines:
            if not line.endswith("\n"):
                continue
            what, *rest = line.split()
            if what == "asked":
                self.asked.add(rest[0])
            elif what == "made":
                self.made.setdefault(rest[0], []).append(float(rest[1]))
                self.tokens.setdefault(rest[0], []).append(int(rest[2]))
                self.died[rest[0]] = died
            elif what == "ended":
                self.ended[rest[0]] = int(rest[1])
            else:
                self.asked -= set(rest)
                for id in rest:
                    self.ended.pop(id, None)
                    self.made.pop(id, None)

    def check(self, folder: Path, found: Counter[str]) -> None:
        """Look for all of it in the folder."""
        begun = time.perf_counter()
        store = Store(folder)
        chats = [store.load(summary.id).result(60) for summary in store.conversations().result(60)]
        found["slow starts"] += time.perf_counter() - begun > 5.0
        found["repairs"] += bool(store.notices)
        nodes = {id: node for chat in chats for id, node in chat.tree.nodes.items()}
        found["damaged records"] += sum(bool(chat.damaged) for chat in chats)
        found["questions lost"] += len(self.asked - nodes.keys())
        for id, times in self.made.items():
            have = len(nodes[id].steps) if id in nodes else 0
            missing = len(times) - have
            late = missing > 0 and self.died[id] - times[have] > SECONDS
            found["tokens lost"] += late and missing > TOKENS
            found["answers lost"] += id in self.ended and have < self.ended[id]
            found["tokens missing at most"] = max(found["tokens missing at most"], missing)
        for node in nodes.values():
            found["answers without an end"] += node.state is NodeState.STREAMING
            both = zip(node.steps, self.tokens.get(node.id, []), strict=False)
            texts = [
                "".join(step.text for step in node.steps),
                "".join(step.reasoning for step in node.steps),
            ]
            whole = not node.steps or [node.final_text, node.final_reasoning] == texts
            found["torn answers"] += not whole or any(step.id != said for step, said in both)
        store.close()
        with contextlib.closing(sqlite3.connect(folder / FILE)) as connection:
            found["unsound databases"] += connection.execute("PRAGMA integrity_check").fetchone()[0] != "ok"


def kills(folder: Path, count: int, draw: random.Random, longest: float) -> Counter[str]:
    """Kill `count` programs on one folder, and count what went wrong."""
    claims, found = Claims(), Counter[str]()
    for _ in range(count):
        lines, died = kill_one(folder, draw.uniform(0.0, longest))
        claims.take(lines, died)
        claims.check(folder, found)
    found["questions"], found["answers"] = len(claims.asked), len(claims.made)
    found["tokens"] = sum(map(len, claims.made.values()))
    return found


def some_kills(count: int) -> Counter[str]:
    """So many kills on a folder of their own."""
    with tempfile.TemporaryDirectory() as folder:
        return kills(Path(folder), count, random.Random(), longest=1.5)


def main() -> int:
    """Kill and report."""
    total, begun = Counter[str](), time.time()
    count = int(sys.argv[2])
    with multiprocessing.get_context("fork").Pool(JOBS, maxtasksperchild=1) as pool:
        for found in pool.imap_unordered(some_kills, [min(20, count - n) for n in range(0, count, 20)]):
            most = max(total["tokens missing at most"], found["tokens missing at most"])
            total += found
            total["tokens missing at most"] = most
    print(f"{sys.argv[2]} kills in {time.time() - begun:.0f} s: {figures(total, FAULTS)}")
    return sum(total[name] for name in FAULTS)


FAULTS = (
    "repairs",
    "damaged records",
    "questions lost",
    "answers lost",
    "tokens lost",
    "answers without an end",
    "torn answers",
    "unsound databases",
)

if __name__ == "__main__":
    sys.exit(bool(main()))
