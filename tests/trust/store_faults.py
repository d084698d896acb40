"""Faults of the chat database, with the store itself:

    python tests/trust/store_faults.py power N        power is lost at N moments of a recorded session
    python tests/trust/store_faults.py operations N   N kills each in migration, deletion and weekly copy
    python tests/trust/store_faults.py shared N       four programs write N chats into one database
    python tests/trust/store_faults.py damage N       N databases: flipped bytes, cut, empty, other, newer

*power*: a library written in C, compiled here and loaded with LD_PRELOAD, records every write, sync, cut
and removal. At each
moment the files are what was synced, and of what was written since then anything may be there, sectors of
512 bytes each: nothing,
all, the beginning, or any part. What the session was told to be on disk must be there, and the database be
sound.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parents[1])]

from chats import branched  # noqa: E402
from figures import figures  # noqa: E402

from ropechat.conversation import ConversationTree, NodeState, Role  # noqa: E402
from ropechat.errors import FileAccessError, RopechatError  # noqa: E402
from ropechat.sampling import Sampling  # noqa: E402
from ropechat.store import backup, schema  # noqa: E402
from ropechat.store.queries import Chat  # noqa: E402
from ropechat.store.store import FILE, Store  # noqa: E402
from ropechat.trace import Step  # noqa: E402

SECTOR = 512


def steps(count: int) -> list[Step]:
    """Tokens of an answer."""
    return [step for step in branched(3).path()[-1].steps for _ in range(count)][:count]


def sound(path: Path) -> bool:
    """Whether SQLite finds nothing wrong."""
    with contextlib.closing(schema.connect(path)) as connection:
        return bool(connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok")


# ---- power


def session(folder: Path, chats: int = 40) -> None:
    """Chat, and note in the file `acknowledged` what is said to be on disk."""
    draw, store = random.Random(1), Store(folder)
    told = os.open(folder / "acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    answer = steps(120)

    def acknowledge(done: Future[Any], line: str) -> None:
        """Wait, and note it; what the disk refused is tried again until it is there."""
        with contextlib.suppress(FileAccessError):
            done.result(30)
            os.write(told, f"{line}\n".encode())

    for number in range(chats):
        tree, chat = ConversationTree(), f"chat{number:03}"
        for _ in range(draw.randint(1, 3)):
            question = tree.write(Role.USER, "q" * draw.randint(1, 3000))
            acknowledge(store.add_node(chat, "title", question), f"question {chat} {question.id}")
            node = tree.answer(question.id, "m", Sampling())
            recorder, count = store.record_answer(chat, node), draw.randint(0, len(answer))
            for step in answer[:count]:
                recorder.add(step)
                if draw.random() < 0.02:
                    time.sleep(0.21)  # what is queued is written
            acknowledge(recorder.end(NodeState.DONE, "stop"), f"answer {chat} {node.id} {count}")
        if draw.random() < 0.2:
            acknowledge(store.rename(chat, "another title"), f"title {chat}")
        if draw.random() < 0.1:
            os.write(told, f"deleting {chat}\n".encode())
            acknowledge(store.delete(chat), f"deleted {chat}")
    store.close(30)


Operation = tuple[str, str, int, bytes]  # kind, name, offset, data


def operations(log: Path) -> Iterator[Operation]:
    """The records of record_writes.c."""
    data, at = log.read_bytes(), 0
    while at < len(data):
        kind, (named, offset, length) = chr(data[at]), struct.unpack_from("<3Q", data, at + 1)
        at += 25
        name = data[at : at + named].decode()
        at += named
        content = data[at : at + length] if kind in "WR" else b""
        at += len(content)
        yield kind, name, offset, content


class Disk:
    """What is surely on the disk, and what was written since the last sync of each file."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.waiting: dict[str, list[Operation]] = {}

    def take(self, one: Operation) -> None:
        """Go on by an operation."""
        kind, name, _, data = one
        if kind == "S":
            for waiting in self.waiting.pop(name, ()):
                apply(self.files.setdefault(name, bytearray()), waiting)
        elif kind == "U":
            self.files.pop(name, None)
            self.waiting.pop(name, None)
        elif kind == "R":
            to = data.decode()
            self.files[to] = self.files.pop(name, bytearray())
            self.waiting[to] = self.waiting.pop(name, [])
        else:
            self.waiting.setdefault(name, []).append(one)

    def lose(self, folder: Path, draw: random.Random) -> None:
        """Write the files as they may be after power was lost."""
        folder.mkdir()
        for name in {*self.files, *self.waiting} - {"acknowledged"}:
            file = bytearray(self.files.get(name, b""))
            waiting = self.waiting.get(name, [])
            match draw.randrange(4):
                case 0:
                    waiting = []
                case 1:
                    waiting = waiting[: draw.randrange(len(waiting) + 1)]
                case 2:
                    waiting = [part for one in waiting for part in sectors(one) if draw.random() < 0.5]
            for one in waiting:
                apply(file, one)
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(file)


def sectors(one: Operation) -> Iterator[Operation]:
    """A write as writes of sectors."""
    kind, name, offset, data = one
    if kind != "W":
        yield one
    for at in range(0, len(data), SECTOR):
        yield kind, name, offset + at, data[at : at + SECTOR]


def apply(file: bytearray, one: Operation) -> None:
    """Change a file's content."""
    kind, _, offset, data = one
    if kind == "T":
        del file[offset:]
        file.extend(bytes(offset - len(file)))
    else:
        file.extend(bytes(max(0, offset - len(file))))
        file[offset : offset + len(data)] = data


def power(count: int, folder: Path, found: Counter[str]) -> None:
    """Record a session, then lose power at `count` of its operations."""
    library, log, data = folder / "record.so", folder / "log", folder / "data"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "record_writes.c")], check=True
    )
    data.mkdir(mode=0o700)
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "RECORD_FOLDER": str(data),
        "RECORD_LOG": str(log),
    }
    subprocess.run([sys.executable, __file__, "session", str(data)], env=environment, check=True)
    recorded, draw = list(operations(log)), random.Random(2)
    found["operations"], found["syncs"] = len(recorded), sum(one[0] == "S" for one in recorded)
    cuts = {draw.randrange(len(recorded)) for _ in range(count)} | {len(recorded) - 1}
    disk, told = Disk(), b""
    for number, one in enumerate(recorded):
        if one[1] == "acknowledged":
            told += one[3]
        else:
            disk.take(one)
        if number in cuts:
            found["cut points"] += 1
            after = folder / "after"
            disk.lose(after, draw)
            check(after, told.decode().splitlines(), found)
            shutil.rmtree(after)


def check(folder: Path, told: list[str], found: Counter[str]) -> None:
    """Open the database and look for what was said to be on disk."""
    store = Store(folder)
    try:
        chats = [store.load(summary.id).result(30) for summary in store.conversations().result(30)]
    except RopechatError as error:
        print(error)
        found["databases not opened"] += 1
        return
    finally:
        store.close(30)
    found["repairs"] += any("damaged" in notice for notice in store.notices)
    found["unsound databases"] += not sound(folder / FILE)
    gone = {line.split()[1] for line in told if line.startswith("delet")}
    nodes = {node.id: node for chat in chats for node in chat.tree.nodes.values()}
    titles = {chat.id: chat.title for chat in chats}
    for line in told:
        kind, chat, *rest = line.split()
        if kind == "deleted":
            found["deleted chats that are back"] += chat in titles
        elif chat not in gone:
            found["questions lost"] += kind == "question" and rest[0] not in nodes
            if kind == "answer":
                found["answers lost"] += rest[0] not in nodes or len(nodes[rest[0]].steps) != int(rest[1])
            found["titles lost"] += kind == "title" and titles.get(chat) != "another title"


# ---- kills in operations


def furnish(folder: Path, version: int = 0) -> None:
    """A database of 60 chats; of an earlier version, if one is given."""
    if version:
        folder.mkdir(mode=0o700)
        with contextlib.closing(sqlite3.connect(folder / FILE)) as connection:
            for statement in (one for part in schema.MIGRATIONS[:version] for one in part):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {version}")
            for number in range(60):
                connection.execute(
                    "INSERT INTO conversation(id, title, created, changed) VALUES(?, 't', 1, 1)",
                    (f"c{number}",),
                )
                connection.execute(
                    "INSERT INTO node(id, conversation, role, state, text, created) "
                    "VALUES(?, ?, 'user', 'done', ?, 1)",
                    (f"n{number}", f"c{number}", "x" * 20_000),
                )
            connection.commit()
        return
    store = Store(folder)
    for number in range(60):
        store.insert(Chat(f"c{number}", "t", branched(number)))
    store.conversations().result(60)
    store.close(60)


def operate(what: str, folder: Path) -> None:
    """Say `ready`, and do it."""
    if what == "migration":
        print("ready", flush=True)
        Store(folder).conversations().result(60)
    elif what == "copying":
        print("ready", flush=True)
        backup.make_copy(folder / FILE)
    else:
        store = Store(folder)
        store.conversations().result(60)
        print("ready", flush=True)
        store.delete("c7").result(60)
    print("done", flush=True)


def kills(count: int, folder: Path, found: Counter[str]) -> None:
    """Kill each operation `count` times, at moments between its start and its end."""
    draw = random.Random()
    for what in ("migration", "deletion", "copying"):
        whole, work, longest = folder / f"{what}-whole", folder / "work", 0.0
        furnish(whole, 2 if what == "migration" else 0)
        for number in range(count + 1):
            shutil.copytree(whole, work)
            child = subprocess.Popen(
                [sys.executable, __file__, "operate", what, str(work)], stdout=subprocess.PIPE
            )
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            begun = time.monotonic()
            if number:  # the first one tells how long it takes
                time.sleep(draw.uniform(0, longest))
                child.send_signal(signal.SIGKILL)
            ended = child.communicate()[0] == b"done\n"
            longest = longest or time.monotonic() - begun
            found[f"kills in {what}"] += not ended
            for copy in (*work.glob("weekly-*.db"), *work.glob("backup-v*.db")):
                # The copy before a migration is made anew by the next start: only that one may be unfinished.
                good = (copy.name.startswith("backup") and not copy.stat().st_size) or sound(copy)
                found["unsound copies"] += not good and copy.name.startswith("weekly")
            store = Store(work)
            left = len(store.conversations().result(60))
            store.close(60)
            found["chats lost"] += left not in ((59, 60) if what == "deletion" else (60,))
            found["unsound databases"] += not sound(work / FILE)
            found["repairs"] += any("damaged" in notice for notice in store.notices)
            shutil.rmtree(work)


# ---- four programs, damage


def write_many(folder: Path, name: str, count: int) -> None:
    """Chats of one question, one after the other."""
    store = Store(folder)
    for number in range(count):
        tree = ConversationTree()
        store.add_node(f"{name}-{number}", "t", tree.write(Role.USER, f"{name} {number}")).result(120)
    if not store.close(60):
        sys.exit(f"{name}: {store.trouble}")


def shared(count: int, folder: Path, found: Counter[str]) -> None:
    """Four programs at once."""
    data, part = folder / "data", count // 4
    command = [sys.executable, __file__, "write", str(data)]
    children = [subprocess.Popen([*command, name, str(part)], stderr=subprocess.PIPE) for name in "abcd"]
    for child in children:
        errors = child.communicate()[1]
        found["errors"] += child.returncode != 0
        if child.returncode:
            print(errors.decode())
    store = Store(data)
    found["chats"] = len(store.conversations().result(600))
    found["chats lost"] = 4 * part - found["chats"]
    store.close(60)
    found["unsound databases"] += not sound(data / FILE)


def damage(count: int, folder: Path, found: Counter[str]) -> None:
    """Open databases that something has happened to."""
    whole, work, draw = folder / "whole", folder / "work", random.Random()
    furnish(whole)
    data = (whole / FILE).read_bytes()
    for number in range(count):
        changed = bytearray(data)
        kind = ("bytes", "cut", "page", "empty", "text", "newer")[number % 6]
        if kind == "bytes":
            for _ in range(draw.randint(1, 100)):
                changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        elif kind == "cut":
            del changed[4096 * draw.randrange(len(changed) // 4096) :]
        elif kind == "page":
            at = 4096 * draw.randrange(len(changed) // 4096)
            changed[at : at + 4096] = draw.randbytes(4096)
        elif kind == "empty":
            changed.clear()
        elif kind == "text":
            changed[:] = b"a letter\n" * 1000
        else:
            changed[60:64] = (99).to_bytes(4, "big")
        shutil.copytree(whole, work)
        (work / FILE).write_bytes(changed)
        for tail in ("-wal", "-shm"):
            (work / f"{FILE}{tail}").unlink(missing_ok=True)
        store = Store(work)
        try:
            saved = store.conversations().result(60)
            for summary in saved:
                store.load(summary.id).result(60)
            found["opened"] += 1
            if copies := list(work.glob("damaged-*.db")):
                found["of them repaired, the original beside them"] += 1
                found["originals changed"] += copies[0].read_bytes() != changed
        except RopechatError:
            found["refused"] += 1
            found["files refused and changed"] += (work / FILE).read_bytes() != changed
        except BaseException as error:
            found["crashes"] += 1
            print(kind, repr(error))
        store.close(60)
        shutil.rmtree(work)


OPENED = ("databases not opened", "repairs", "unsound databases", "deleted chats that are back")
"""What must not be found when a database is opened again."""
LOST = ("questions lost", "answers lost", "titles lost")
BAD = {
    "power": (*OPENED, *LOST),
    "operations": ("repairs", "unsound databases", "unsound copies", "chats lost"),
    "shared": ("errors", "chats lost", "unsound databases"),
    "damage": ("originals changed", "files refused and changed", "crashes"),
}


def main() -> int:
    what, *rest = sys.argv[1:]
    if what == "session":
        session(Path(rest[0]), *map(int, rest[1:]))
    elif what == "operate":
        operate(rest[0], Path(rest[1]))
    elif what == "write":
        write_many(Path(rest[0]), rest[1], int(rest[2]))
    else:
        found, begun = Counter[str](), time.monotonic()
        with tempfile.TemporaryDirectory() as name:
            run = {"power": power, "operations": kills, "shared": shared, "damage": damage}[what]
            run(int(rest[0]), Path(name), found)
        bad = BAD[what]
        print(f"{what} {rest[0]}, {time.monotonic() - begun:.0f} s: {figures(found, bad)}")
        return int(any(found[name] for name in bad))
    return 0


if __name__ == "__main__":
    sys.exit(main())
