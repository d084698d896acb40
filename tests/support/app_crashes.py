"""Kill -9 of the whole chat on a pseudo-terminal, at random moments, with the built-in model.

    python tests/support/app_crashes.py N            N kills, a line of results

As in `crashes`, the program says what it does, here in a file: its session and its recorders are listened to.
What it had said is looked for in a copy of its folder; the next one then opens the newest chat by itself, and
must show what the copy holds.
"""

import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from crashes import FAULTS, JOBS, Claims  # noqa: E402
from figures import figures  # noqa: E402
from program import OWN_TERMINAL, Program  # noqa: E402

from ropechat.conversation import Node, Role  # noqa: E402
from ropechat.store.store import Store  # noqa: E402

CODE = f"{OWN_TERMINAL}sys.path.insert(0, {str(Path(__file__).parent)!r}); "
CODE += "import app_crashes; app_crashes.chat()"
OPTIONS = ["chat", "--threads", "1", "--max-tokens", "200"]
DEEDS = (b"\x03", b"/regen\r", b"/continue\r", b"/new\r", b"/prose\r")
ALL_FAULTS = (*FAULTS, "chats not shown again")


def chat() -> None:
    """The program: says on the file $SAYS what it was asked and made, and what it showed at the start."""
    from ropechat.chat import events as ev
    from ropechat.chat.session import Session
    from ropechat.cli import main
    from ropechat.store.store import AnswerWriter
    from ropechat.tui.features.history import HistoryFeature

    file = os.open(os.environ["SAYS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    counts = Counter[str]()
    apply, add, end = Session.apply, AnswerWriter.add, AnswerWriter.end
    open_chat, remove = HistoryFeature._open_chat, Store.remove

    def say(line: str) -> None:
        os.write(file, f"{line}\n".encode())

    def applied(self: Session, event: ev.EngineEvent) -> bool:
        taken, turn = apply(self, event), self.last
        if isinstance(event, ev.ModelLoaded):
            say("!loaded")
        if taken and turn is not None and isinstance(event, ev.Started):
            say(f"asked {turn.asked}")
        for step in event.steps if taken and isinstance(event, ev.PrefixAccepted) else ():
            say(f"made {self.last.node} {time.time()} {step.id}")
        if taken and turn is not None and isinstance(event, ev.TokenGenerated):
            say(f"made {turn.node} {time.time() - time.monotonic() + event.at} {event.step.id}")
        return taken

    def added(self: AnswerWriter, step: Any) -> None:
        counts[self._id] += 1
        add(self, step)

    def ended(self: AnswerWriter, *arguments: Any, **facts: Any) -> Any:
        done, count = end(self, *arguments, **facts), counts[self._id]
        done.add_done_callback(lambda done: done.exception() or say(f"ended {self._id} {count}"))
        return done

    def removed(self: Store, nodes: Sequence[str]) -> Any:
        say(f"removed {' '.join(nodes)}")  # a continuation that added nothing
        return remove(self, nodes)

    async def opened(self: HistoryFeature, *arguments: Any) -> None:
        await open_chat(self, *arguments)
        for node in self.session.tree.path():
            say(f"!shown {node.id} {len(node.steps)}")
        say("!opened")

    Session.apply, AnswerWriter.add, AnswerWriter.end = applied, added, ended  # type: ignore[method-assign]
    HistoryFeature._open_chat, Store.remove = opened, removed  # type: ignore[method-assign]
    sys.exit(main())


class Victim:
    """One chat, and what it said."""

    def __init__(self, folder: Path, draw: random.Random, resumes: bool) -> None:
        self._file, self._draw = folder / "said", draw
        self._file.unlink(missing_ok=True)
        self.seen = b""
        environ = {"ROPECHAT_DATA": str(folder / "data"), "SAYS": str(self._file), "ROPECHAT_CACHE": "off"}
        self._program = Program([*OPTIONS, *(["--continue"] if resumes else [])], CODE, **environ)
        self._resumes = resumes

    def live(self, seconds: float, question: bytes) -> bool:
        """Chat for so long from the moment on in which it can; whether this question was shown before."""
        end = time.monotonic() + 60
        awaited = {"!loaded", "!opened"} if self._resumes else {"!loaded"}
        while not awaited <= set(self.said().split("\n")):
            assert time.monotonic() < end, self.seen[-2000:]
            self.seen += self._program.drain(0.02)
        while question not in self.seen and time.monotonic() < end:
            self.seen += self._program.drain(0.02)
        is_shown = question in self.seen
        if not is_shown:
            print(f"{question!r} is not in {self.seen[-4000:]!r}", file=sys.stderr)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for key in f"Tell me more {self._draw.random()}":  # a paste would be one event
                self._program.press(key.encode())
            self._program.press(b"\r")
            self.seen += self._program.drain(min(left, self._draw.uniform(0.02, 0.4)))
            if time.monotonic() < end and self._draw.random() < 0.7:
                self._program.press(self._draw.choice(DEEDS))
                self.seen += self._program.drain(min(left, self._draw.uniform(0.02, 0.5)))
        return is_shown

    def starts(self, seconds: float) -> None:
        """Let it come as far as it does."""
        self.seen += self._program.drain(seconds)

    def kill(self) -> float:
        """When it died."""
        self._program.child.send_signal(signal.SIGKILL)
        died = time.time()
        self._program.child.wait()
        os.close(self._program.master)
        return died

    def said(self) -> str:
        """Its lines."""
        return self._file.read_text() if self._file.exists() else ""


def newest(data: Path) -> list[Node]:
    """The branch that is shown of the newest chat."""
    store = Store(data)
    found = store.conversations(1).result(60)
    nodes = store.load(found[0].id).result(60).tree.path() if found else []
    store.close()
    return nodes


def kills(folder: Path, count: int, draw: random.Random, longest: float) -> Counter[str]:
    """Kill `count` chats on one folder, and count what went wrong."""
    claims, found = Claims(), Counter[str]()
    kept: list[Node] = []
    for number in range(count):
        victim = Victim(folder, draw, resumes=bool(kept))
        asked = [node.final_text for node in kept if node.role is Role.USER]
        if draw.random() < 0.1 and number:
            victim.starts(draw.uniform(0.0, 1.5))
        else:
            last = asked[-1].split()[-1].encode() if asked else b""
            found["chats not shown again"] += not victim.live(draw.uniform(0.0, longest), last)
        died = victim.kill()
        lines = victim.said().splitlines(keepends=True)
        if "!opened\n" in lines:
            shown = [line.split()[1:] for line in lines if line.startswith("!shown")]
            found["chats not shown again"] += shown != [[node.id, str(len(node.steps))] for node in kept]
        claims.take([line for line in lines if not line.startswith("!")], died)
        copy = folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        if (data := folder / "data" / "conversations").exists():
            shutil.copytree(data, copy)
            claims.check(copy, found)
            kept = newest(copy)
    found["questions"], found["answers"] = len(claims.asked), len(claims.made)
    found["tokens"] = sum(map(len, claims.made.values()))
    return found


def some_kills(count: int) -> Counter[str]:
    """So many kills on a folder of their own."""
    with tempfile.TemporaryDirectory() as folder:
        return kills(Path(folder), count, random.Random(), longest=3.0)


def main() -> int:
    """Kill, and report as it goes on; the last line has all."""
    total, begun, count, done = Counter[str](), time.time(), int(sys.argv[1]), 0
    parts = [min(10, count - n) for n in range(0, count, 10)]
    with multiprocessing.Pool(JOBS) as pool:
        for part, found in zip(parts, pool.imap(some_kills, parts), strict=True):
            most = max(total["tokens missing at most"], found["tokens missing at most"])
            total, done = total + found, done + part
            total["tokens missing at most"] = most
            print(f"{done} kills in {time.time() - begun:.0f} s: {figures(total, ALL_FAULTS)}", flush=True)
    return sum(total[name] for name in ALL_FAULTS)


if __name__ == "__main__":
    sys.exit(bool(main()))
