"""The store in trouble: full disks, damaged files, kill -9."""

import contextlib
import errno
import fcntl
import itertools
import math
import os
import random
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crashes
import pytest
from chats import branched, record
from repeats import repeats
from stores import done, put

from ropechat.chat.export import format_chat
from ropechat.conversation import ConversationTree, NodeState, Role
from ropechat.errors import FileAccessError, HistoryError
from ropechat.sampling import Sampling
from ropechat.store import repair, schema, writer
from ropechat.store.process_lock import ProcessLock, has_others, is_running
from ropechat.store.store import Store
from ropechat.tui import close_patiently


class Full:
    """A connection that refuses to begin a change while `full` is set."""

    def __init__(self, inner: sqlite3.Connection) -> None:
        self.inner, self.full = inner, False

    def execute(self, statement: str, *rest: Any) -> Any:
        if self.full and statement.startswith("BEGIN"):
            raise sqlite3.OperationalError("database or disk is full")
        return self.inner.execute(statement, *rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Slow(Full):
    """A connection whose statements of one kind wait."""

    def __init__(self, inner: sqlite3.Connection, kind: str, goes_on: threading.Event) -> None:
        super().__init__(inner)
        self.kind, self.goes_on = kind, goes_on

    def execute(self, statement: str, *rest: Any) -> Any:
        if statement.startswith(self.kind):
            self.goes_on.wait(60)
        return self.inner.execute(statement, *rest)


@pytest.mark.parametrize("kind", ["PRAGMA wal_checkpoint", "COMMIT"])
def test_a_slow_disk_at_the_end(
    kind: str,
    opened: Callable[[], Store],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is on disk is not waited for; what is not is, and the user is told."""
    goes_on = threading.Event()
    monkeypatch.setattr(
        "ropechat.store.store.open_database", lambda path: Slow(schema.open_database(path), kind, goes_on)
    )
    store = opened()
    queued = store.add_node("c", "t", ConversationTree().write(Role.USER, "first"))
    if kind == "COMMIT":
        assert not store.close(0.2)
        assert not queued.done()

        def tell(text: str, file: object) -> None:
            told.append((text, file))
            goes_on.set()

        told = list[tuple[str, object]]()
        monkeypatch.setattr("ropechat.tui.print", tell, raising=False)
        assert close_patiently(store, 0.05)
        [(text, file)] = told
        assert "the disk is slow" in text
        assert file is sys.stderr
    else:
        done(queued)
        assert store.close(30)  # the checkpoint takes 60 s
        goes_on.set()
    assert len(done(opened().load("c")).tree) == 1


def test_a_full_disk_loses_nothing(opened: Callable[[], Store], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Full] = []

    def open_full(path: Path) -> Any:
        made.append(Full(schema.open_database(path)))
        return made[-1]

    monkeypatch.setattr("ropechat.store.store.open_database", open_full)
    monkeypatch.setattr(writer, "RETRY_SECONDS", 0.05)
    store, tree, draw = opened(), ConversationTree(), random.Random(1)
    done(store.add_node("c", "t", tree.write(Role.USER, "first")))
    made[0].full = True
    question = tree.write(Role.USER, "second")
    with pytest.raises(FileAccessError, match="full; not on disk yet"):
        done(store.add_node("c", "t", question))
    node = tree.answer(question.id, "m", Sampling(seed=1))
    recorder = store.record_answer("c", node)
    steps = [record(draw, f"w{i}", i + 1) for i in range(100)]
    for step in steps:
        recorder.add(step)
    with pytest.raises(FileAccessError):
        done(recorder.end(NodeState.DONE, "stop"))
    assert store.trouble == "database or disk is full"
    assert len(done(store.load("c")).tree) == 1  # reading goes on
    made[0].full = False
    end = time.monotonic() + 60
    while store.trouble:
        assert time.monotonic() < end
        time.sleep(0.01)
    loaded = done(store.load("c")).tree
    assert [n.text for n in loaded.path()] == ["first", "second", "".join(step.text for step in steps)]
    made[0].full = True
    done_or_not = store.rename("c", "never")
    assert not store.close()
    assert done_or_not.exception(1) is not None


def test_a_start_waits_for_another_program(opened: Callable[[], Store], tmp_path: Path) -> None:
    put(opened(), branched())
    opened().close()
    holder = schema.connect(tmp_path / "data" / "conversations.db")
    holder.execute("BEGIN IMMEDIATE")
    tries = []

    def busy(path: Path) -> sqlite3.Connection:
        tries.append(path)
        if len(tries) == 3:
            holder.execute("ROLLBACK")
            holder.close()
        connection = schema.open_database(path)
        connection.execute("PRAGMA busy_timeout = 10")
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ropechat.store.store.open_database", busy)
        store = opened()
        assert len(done(store.conversations())) == 1
    assert len(tries) == 3
    assert store.trouble is None


def test_a_question_that_nobody_waits_for(opened: Callable[[], Store]) -> None:
    store = opened()
    futures = [store.conversations() for _ in range(50)]
    assert any(future.cancel() for future in futures)
    put(store, branched())
    assert len(done(store.conversations())) == 1


def test_a_change_that_cannot_be_made_is_said(opened: Callable[[], Store]) -> None:
    store, tree = opened(), branched()
    tree.path()[-1].steps[0] = tree.path()[-1].steps[0]._replace(id=-1)
    with pytest.raises(struct.error):
        put(store, tree)
    assert "a bug in ropechat: error" in (store.trouble or "")
    assert done(store.conversations()) == []  # all or nothing
    assert not store.close()


# ---- Damage


def damaged(path: Path, how: str, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if how == "text":
        path.write_text("this is no database, it is a letter\n" * 400)
    elif how == "cut":
        path.write_bytes(data[: len(data) * 2 // 3])
    elif how == "page":
        page = len(data) // 4096 // 2
        data[page * 4096 : (page + 1) * 4096] = draw.randbytes(4096)
        path.write_bytes(data)
    else:
        for _ in range(60):
            data[draw.randrange(4096, len(data))] ^= 0xFF
        path.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["text", "cut", "page", "bytes"])
def test_damage_is_put_aside_and_the_rest_saved(
    opened: Callable[[], Store], tmp_path: Path, how: str
) -> None:
    store, draw = opened(), random.Random(7)
    for number in range(40):
        put(store, branched(number), f"chat-{number:02}", f"title {number}")
    store.close()
    path = tmp_path / "data" / "conversations.db"
    damaged(path, how, draw)
    before = path.read_bytes()
    store = opened()
    saved = done(store.conversations())
    if how == "bytes" and not store.notices:
        pytest.skip("the bytes hit nothing that quick_check looks at")
    assert "was damaged" in store.notices[0]
    [copy] = list(path.parent.glob("damaged-*.db"))
    assert copy.read_bytes() == before
    assert len(saved) >= {"text": 0, "cut": 5, "page": 20, "bytes": 5}[how]
    for summary in saved:
        done(store.load(summary.id))
    put(store, branched(99), "new")
    assert done(store._writer.ask(lambda c: c.execute("PRAGMA integrity_check").fetchone()[0])) == "ok"
    assert store.close()
    assert not opened().notices


PAGE = 4096


def leaves(data: bytearray, root: int) -> list[int]:
    """Where the leaf pages of a table begin, in order (https://www.sqlite.org/fileformat2.html#b_tree_pages)."""
    at = (root - 1) * PAGE
    assert data[at] == 5  # an interior page of a table
    cells = [int.from_bytes(data[at + 12 + 2 * i :][:2], "big") for i in range(data[at + 4])]
    found = [int.from_bytes(data[at + cell :][:4], "big") for cell in cells]
    found.append(int.from_bytes(data[at + 8 :][:4], "big"))
    return [(page - 1) * PAGE for page in found]


def renumber_last(data: bytearray, leaf: int, number: int) -> None:
    """Give the last row of a leaf page another rowid below 16,384."""
    count = int.from_bytes(data[leaf + 3 :][:2], "big")
    at = leaf + int.from_bytes(data[leaf + 8 + 2 * (count - 1) :][:2], "big")
    while data[at] & 0x80:  # the size of the row
        at += 1
    assert data[at + 1] & 0x80  # two bytes, which stay two
    data[at + 1 : at + 3] = bytes([number >> 7 | 0x80, number & 0x7F])


def test_rows_that_damage_put_out_of_order_are_read_once(opened: Callable[[], Store], tmp_path: Path) -> None:
    """Between unreadable pages the last row has an early number, from which the search went on for ever."""
    store = opened()
    for number in range(80):
        put(store, branched(number), f"chat-{number}")
    root = done(
        store._writer.ask(
            lambda c: c.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'node'").fetchone()[0]
        )
    )
    nodes = done(store._writer.ask(lambda c: c.execute("SELECT count(*) FROM node").fetchone()[0]))
    assert store.close()
    path = tmp_path / "data" / "conversations.db"
    data = bytearray(path.read_bytes())
    found = leaves(data, root)
    assert len(found) > 8
    lost = [len(found) // 2, len(found) // 2 + 3]
    in_lost = sum(int.from_bytes(data[found[leaf] + 3 :][:2], "big") for leaf in lost)
    for leaf in lost:
        data[found[leaf]] = 0  # no kind of page
    renumber_last(data, found[lost[1] - 1], 2)
    path.write_bytes(data)
    for tail in ("-wal", "-shm"):
        path.with_name(path.name + tail).unlink(missing_ok=True)
    store = opened()
    chats = [done(store.load(summary.id)) for summary in done(store.conversations())]
    assert "was damaged" in store.notices[0]
    assert sum(len(chat.tree.nodes) for chat in chats) == nodes - in_lost - 1  # that row, before damage


class Prefixed:
    """A connection whose queries have a table of their own."""

    def __init__(self, connection: sqlite3.Connection, head: str) -> None:
        self.connection, self.head = connection, head

    def execute(self, query: str) -> sqlite3.Cursor:
        return self.connection.execute(f"{self.head} {query.replace('NOT INDEXED', '')}")


def test_rows_that_come_again_and_again_end() -> None:
    """As those of a page that leads back to itself."""
    connection = sqlite3.connect(":memory:")
    endless = "WITH RECURSIVE n(rowid) AS (SELECT 0 UNION ALL SELECT (rowid + 1) % 50 FROM n)"
    with contextlib.closing(connection):
        connection.row_factory = sqlite3.Row
        rows = repair._until_damage(Prefixed(connection, endless), "n", "")  # type: ignore[arg-type]
        assert {row["_row"] for row in rows} == {*range(50)}


def test_a_wrong_byte_costs_one_character(opened: Callable[[], Store], tmp_path: Path) -> None:
    store, tree = opened(), ConversationTree()
    put(store, tree)
    question = tree.write(Role.USER, "scattered light")
    done(store.add_node("chat-1", "t", question))
    assert store.close()
    path = tmp_path / "data" / "conversations.db"
    data = path.read_bytes()
    assert data.count(b"scattered light") >= 1
    path.write_bytes(data.replace(b"scattered light", b"scattered \xffight"))
    store = opened()
    assert done(store.load("chat-1")).tree[question.id].text == "scattered \ufffdight"


def test_damage_waits_for_the_other_program(opened: Callable[[], Store], tmp_path: Path) -> None:
    put(opened(), branched())
    holder = ProcessLock(tmp_path / "data" / "running")
    for file in (tmp_path / "data").glob("conversations.db*"):
        file.unlink()
    (tmp_path / "data" / "conversations.db").write_text("no database\n" * 100)
    with pytest.raises(HistoryError, match="in use by another"):
        done(opened().conversations())
    holder.release()


def test_an_unreadable_chunk_keeps_the_text(opened: Callable[[], Store]) -> None:
    store, tree = opened(), branched()
    put(store, tree)
    last = tree.path()[-1]
    store._writer.submit(lambda c: c.execute("UPDATE chunk SET data = x'0101' WHERE node = ?", (last.id,)))
    chat = done(store.load("chat-1"))
    assert chat.tree[last.id].text == last.text
    assert chat.tree[last.id].steps == []
    assert len(chat.damaged) == 1


def test_an_answer_that_streams_keeps_the_tokens_before_a_damaged_chunk(opened: Callable[[], Store]) -> None:
    one, tree, draw = opened(), ConversationTree(), random.Random(3)
    question = tree.write(Role.USER, "q")
    done(one.add_node("c1", "t", question))
    node = tree.answer(question.id, "m", Sampling(seed=1))
    recorder = one.record_answer("c1", node)
    words = [record(draw, f"w{number} ", number + 1) for number in range(2 * writer.FLUSH_TOKENS)]
    for word in words:
        recorder.add(word)
    damage = "UPDATE chunk SET data = x'0101' WHERE node = ? AND first = (SELECT max(first) FROM chunk)"
    done(one._writer.submit(lambda c: c.execute(damage, (node.id,))))
    last = done(one._writer.ask(lambda c: c.execute("SELECT max(first) FROM chunk").fetchone()[0]))
    assert last > 0
    found = done(opened().load("c1"))  # as another program sees it, and finds it if this one is killed
    assert found.tree[node.id].steps == words[:last]
    assert found.tree[node.id].text == "".join(word.text for word in words[:last])
    assert len(found.damaged) == 1


def test_a_sound_file_is_not_touched_by_the_check(tmp_path: Path) -> None:
    assert repair.open_checked(lambda: sqlite3.connect(":memory:")).execute("SELECT 1").fetchone() == (1,)
    with pytest.raises(sqlite3.OperationalError):  # not damage: not to be put aside
        repair.open_checked(lambda: sqlite3.connect(tmp_path / "no" / "folder"))


def test_where_nothing_can_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "data")
    with pytest.raises(FileAccessError, match="Not a directory; chats are read and stored there: make the"):
        done(store.conversations())
    assert store.trouble
    assert not store.close(0.5)


TYPES: list[tuple[str, object]] = [
    *[
        (f"node.{name}", value)
        for name in ("text", "model", "error", "sampling", "finish_reason", "origin")
        for value in (7, b"\x00\x01")
    ],
    *[
        (f"node.{name}", value)
        for name in ("created", "given", "prompt_tokens", "origin_index", "first_after")
        for value in ("soon", b"\x00", 1e300, math.inf)
    ],
    *[("node.role", "king"), ("node.state", 5)],
    *[("chunk.data", "text"), ("chunk.data", 5), ("chunk.first", "x")],
    *[(f"conversation.{name}", value) for name in ("title", "current", "sampling") for value in (7, b"\x01")],
    *[(f"conversation.{name}", value) for name in ("created", "changed") for value in ("soon", math.inf)],
    *[(f"draft.{name}", value) for name in ("data", "owner", "changed") for value in (7, b"\x01")],
]


@pytest.mark.slow
@pytest.mark.parametrize(("place", "value"), TYPES)
def test_a_value_of_another_type_is_read_or_named(
    opened: Callable[[], Store], place: str, value: object
) -> None:
    """SQLite stores any type in any column: no such file may look like a bug."""
    store = opened()
    put(store, branched())
    store.keep_draft("chat-1", "typed")
    table, column = place.split(".")
    changed = f"UPDATE {table} SET {column} = ?"
    store._writer.submit(lambda c: c.execute("PRAGMA ignore_check_constraints = ON"), alone=True)
    done(store._writer.submit(lambda c: c.execute(changed, (value,))))
    done(store.questions(5))
    assert isinstance(done(store.draft("chat-1")), str)
    found = [*done(store.conversations()), *done(store.search("the", 5))]
    assert all(isinstance(one.title, str) and isinstance(one.changed, float) for one in found)
    if column in ("role", "state"):
        with pytest.raises(HistoryError, match=column):
            done(store.load("chat-1"))
        return
    chat = done(store.load("chat-1"))
    assert "Infinity" not in "".join(format_chat(chat, form) for form in ("md", "json"))
    assert format_chat(chat, "html")
    assert store.close()
    assert done(opened().conversations())


# ---- Killed


@pytest.mark.slow
@repeats(5, 1000)
def test_killed_at_random_moments(count: int, tmp_path: Path) -> None:
    found = crashes.kills(tmp_path / "data", count, random.Random(), longest=0.6)
    assert {name: found[name] for name in crashes.FAULTS} == dict.fromkeys(crashes.FAULTS, 0), found
    assert found["questions"] > 0


FULL_DISK = """
import random, resource, signal, sys, time
from pathlib import Path
from chats import record
from ropechat.conversation import Role
from ropechat.errors import FileAccessError
from ropechat.sampling import Sampling
from ropechat.store import writer
from ropechat.store.store import Store
from ropechat.conversation import NodeState, ConversationTree
writer.RETRY_SECONDS = 0.05
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store, tree, draw = Store(Path(sys.argv[1])), ConversationTree(), random.Random(1)
store.add_node("c", "t", tree.write(Role.USER, "before")).result(60)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
for number in range(20):
    question = tree.write(Role.USER, "q" * 20_000)
    store.add_node("c", "t", question)
    node = tree.answer(question.id, "m", Sampling(seed=1))
    recorder = store.record_answer("c", node)
    for index in range(100):
        tree.add(node.id, record(draw, f"w{index}", index + 1))
        recorder.add(node.steps[-1])
    tree.end(node.id, NodeState.DONE, "stop")
    recorder.end(NodeState.DONE, "stop")
end = time.monotonic() + 60
while not store.trouble and time.monotonic() < end:
    time.sleep(0.01)
print("trouble:", store.trouble)
assert len(store.load("c").result(60).tree) < len(tree)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
while store.trouble and time.monotonic() < end:
    time.sleep(0.01)
kept = store.load("c").result(60).tree
assert [node.text for node in kept.path()] == [node.text for node in tree.path()]
assert store.close(10)
print("all there")
"""


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """The system itself refuses to write; once it does not, all is there."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1] / "support"), *sys.path])},
        timeout=60,
    )
    assert done.stdout.splitlines()[-1:] == ["all there"], done.stdout + done.stderr
    assert done.stdout.startswith("trouble: ")
    assert "None" not in done.stdout


# ---- Which program writes


def test_an_answer_that_ends_while_another_program_starts_stays_as_it_ended(
    opened: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, tree, draw = opened(), ConversationTree(), random.Random(1)
    question = tree.write(Role.USER, "q")
    done(one.add_node("c1", "t", question))
    recorder = one.record_answer("c1", tree.answer(question.id, "m", Sampling(seed=1)))
    recorder.add(record(draw, "word", 1))
    done(one.conversations())

    def ends_and_goes(folder: Path, name: str) -> bool:
        done(recorder.end(NodeState.DONE, "stop"))
        return False

    monkeypatch.setattr("ropechat.store.store.is_running", ends_and_goes)
    found = done(opened().load("c1")).tree.path()[-1]
    assert (found.state, found.finish_reason, found.text) == (NodeState.DONE, "stop", "word")


def test_the_file_of_a_dead_owner_goes_while_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dead").touch()
    unlink, locked = Path.unlink, []

    def looked_at(path: Path) -> None:
        locked.append(is_running(path.parent, path.name))
        unlink(path)

    monkeypatch.setattr(Path, "unlink", looked_at)
    assert not is_running(tmp_path, "dead")
    assert locked == [True]


def test_an_owner_lives_as_long_as_its_lock(tmp_path: Path) -> None:
    owner = ProcessLock(tmp_path)
    assert is_running(tmp_path, owner.name)
    assert not has_others(tmp_path, owner.name)
    assert has_others(tmp_path, "me")
    code = (
        "from pathlib import Path; from ropechat.store.process_lock import ProcessLock; "
        f"owner = ProcessLock(Path({str(tmp_path)!r})); print(owner.name)"
    )
    name = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert (tmp_path / name).exists()
    assert not is_running(tmp_path, name)
    assert not (tmp_path / name).exists()
    owner.release()
    assert not has_others(tmp_path, "me")


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP])
def test_a_folder_whose_files_cannot_be_locked(
    opened: Callable[[], Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    tries = itertools.count()

    def refused(*_: object) -> None:
        if next(tries) == 100:
            raise AssertionError("tried again and again, each time with a new file")
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refused)
    store = opened()
    put(store, branched())
    assert len(done(store.conversations())) == 1
    [notice] = store.notices
    assert f"files cannot be locked ({os.strerror(number)})" in notice
    assert list((tmp_path / "data" / "running").iterdir()) == []
    assert store.close()


def test_a_start_removes_the_locks_of_killed_programs(opened: Callable[[], Store], tmp_path: Path) -> None:
    put(opened(), branched())
    folder = tmp_path / "data" / "running"
    [own] = folder.iterdir()
    for name in ("0123456789abcdef", "fedcba9876543210", "not-a-lock"):
        (folder / name).touch()
    other = opened()
    done(other.conversations())
    assert {own.name, "not-a-lock"} < {path.name for path in folder.iterdir()}
    assert len(list(folder.iterdir())) == 3  # with the lock of the second store


def test_a_lock_whose_file_was_removed_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, locked = fcntl.flock, []

    def too_late(number: int, operation: int) -> None:
        if not locked:
            [path] = tmp_path.iterdir()
            path.unlink()
        locked.append(number)
        flock(number, operation)

    monkeypatch.setattr("fcntl.flock", too_late)
    owner = ProcessLock(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [owner.name]
    owner.release()
    assert not list(tmp_path.iterdir())
