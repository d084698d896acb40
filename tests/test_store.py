"""The store: what is said is on disk, what is deleted is gone, whatever happens in between."""

import dataclasses
import itertools
import math
import os
import random
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import crashes
import pytest
from chats import answer, branched, record

from ropechat.conversation import Role
from ropechat.errors import FileAccessError, HistoryError
from ropechat.sampling import Sampling
from ropechat.store import codec, repair, schema, writer
from ropechat.store.owner import Owner, is_alive, others
from ropechat.store.rows import Chat
from ropechat.store.store import Store
from ropechat.tree import State, Tree, typed


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], Store]]:
    """Stores on one folder; closed at the end."""
    made: list[Store] = []

    def open_store() -> Store:
        made.append(Store(tmp_path / "data"))
        return made[-1]

    yield open_store
    for store in made:
        store.close()


def done(future: Any) -> Any:
    return future.result(10)


def put(store: Store, tree: Tree, id: str = "chat-1", title: str = "the sky") -> None:
    done(store.insert(Chat(id, title, tree)))


def same(one: Tree, other: Tree) -> None:
    assert list(one.nodes) == list(other.nodes)
    assert one.current == other.current
    for id, node in one.nodes.items():
        loaded = other[id]
        assert dataclasses.replace(loaded, written=node.written) == node
        assert loaded.text == node.text


# ---- What is kept


def test_a_chat_comes_back_as_it_was(opened: Callable[[], Store]) -> None:
    store, tree = opened(), branched()
    put(store, tree)
    store.close()
    chat = done(opened().load("chat-1"))
    assert (chat.title, chat.damaged) == ("the sky", ())
    same(tree, chat.tree)


@pytest.mark.parametrize("seed", range(5))
def test_any_text_survives(opened: Callable[[], Store], seed: int) -> None:
    draw, store, tree = random.Random(seed), opened(), Tree()
    text = "".join(
        chr(draw.choice([draw.randrange(0xD800), draw.randrange(0xE000, 0x110000), 0])) for _ in range(3000)
    )
    tree.write(Role.USER, text)
    answer(draw, tree, text)
    put(store, tree)
    same(tree, done(store.load("chat-1")).tree)
    half = Tree()
    half.write(Role.USER, "a\ud800b")
    put(store, half, "chat-2")
    assert done(store.load("chat-2")).tree.path()[0].text == "a�b"


def test_records_as_bytes() -> None:
    draw = random.Random(3)
    steps = [record(draw, f"w{i}é", i + 1) for i in range(64)]
    steps.append(dataclasses.replace(steps[0], finish_reason="length", row=None, top=(), stages=(), u=None))
    data = codec.encode(steps)
    assert codec.decode(data) == steps
    assert len(data) < 400 * len(steps)
    [back] = codec.decode(codec.encode([typed(7, 3)]))
    assert (back.id, back.rank, back.position) == (7, 0, 3)
    assert math.isnan(back.logprob)
    for broken in (b"", b"\x02" + data[1:], data[:-3], data[:1] + data[5:], b"\x01" + b"x" * 40):
        with pytest.raises(HistoryError, match="token records"):
            codec.decode(broken)


def test_streaming_is_flushed_by_time_and_by_number(opened: Callable[[], Store], tmp_path: Path) -> None:
    store, tree, draw = opened(), Tree(), random.Random(1)
    question = tree.write(Role.USER, "q")
    done(store.keep("c", "q", question))
    node = tree.answer(question.id, "m", Sampling(seed=1))
    recorder = store.record("c", node)

    def on_disk() -> int:
        with sqlite3.connect(tmp_path / "data" / "conversations.db") as other:
            found = other.execute(
                "SELECT data FROM chunk WHERE node = ? ORDER BY first", (node.id,)
            ).fetchall()
        other.close()
        return sum(len(codec.decode(data)) for (data,) in found)

    steps = [record(draw, f" w{i}", i + 1) for i in range(1000)]
    for step in steps:
        recorder.add(step)
    done(store.conversations())  # whatever was queued before is written
    assert on_disk() == 1000
    recorder.add(steps[0])
    end = time.monotonic() + 5
    while on_disk() < 1001:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert done(store.conversations())[0].running
    done(recorder.end(State.DONE, "stop", given=1, prompt_tokens=5, first_after=0.5, ended_after=2.0))
    loaded = done(store.load("c")).tree[node.id]
    assert loaded.steps == [*steps, steps[0]]
    assert (loaded.state, loaded.given, loaded.prompt_tokens, loaded.ended_after) == (State.DONE, 1, 5, 2.0)
    assert not done(store.conversations())[0].running


def test_the_question_is_on_disk_when_its_future_is_done(opened: Callable[[], Store], tmp_path: Path) -> None:
    store, tree = opened(), Tree()
    done(store.keep("c", "title", tree.write(Role.USER, "asked")))
    other = sqlite3.connect(tmp_path / "data" / "conversations.db")
    assert other.execute("SELECT text FROM node").fetchall() == [("asked",)]
    other.close()


# ---- Lists, search, changes


def test_list_rename_point(opened: Callable[[], Store]) -> None:
    store = opened()
    for number in range(3):
        tree = branched(number)
        put(store, tree, f"chat-{number}", f"title {number}")
    assert [summary.id for summary in done(store.conversations())] == ["chat-2", "chat-1", "chat-0"]
    done(store.rename("chat-0", "  new\nname "))
    assert done(store.conversations(1))[0].nodes == 6
    assert done(store.load("chat-0")).title == "new name"
    leaf = done(store.load("chat-0")).tree.leaves()[0]
    done(store.point("chat-0", leaf.id))
    assert done(store.load("chat-0")).tree.current == leaf.id
    assert done(store.load("chat-1")).id == "chat-1"
    for id, why in (
        ("chat-", "several"),
        ("nowhere", "there is none"),
        ("", "there is none"),
        ("%", "there is none"),
    ):
        with pytest.raises(HistoryError, match=why):
            done(store.load(id))


QUERIES = [
    "rayleigh",
    "SCATTERING",
    "sky blue",
    "blue sky why",
    "你好",
    "ir",
    "way air",
    "title 1",
    "x'\"y",
    "\0",
    "nothing here",
]


@pytest.mark.parametrize("with_index", [True, False])
def test_search(opened: Callable[[], Store], monkeypatch: pytest.MonkeyPatch, with_index: bool) -> None:
    if not with_index:
        monkeypatch.setattr("ropechat.store.store.ensure_search", lambda connection: False)
    store = opened()
    put(store, branched(), "chat-1", "title 1")
    tree = Tree()
    tree.write(Role.USER, "Größe and STRASSE")
    put(store, tree, "chat-2", "two")
    found = [[summary.id for summary in done(store.search(query))] for query in QUERIES]
    one, both = ["chat-1"], ["chat-1", "chat-2"]
    assert [sorted(ids) for ids in found] == [one, one, one, one, one, one, one, one, [], both, []]
    assert done(store.search("strasse GRÖßE"))[0].id == "chat-2"
    assert "scattering" in done(store.search("scattering"))[0].snippet
    assert done(store.search("light", limit=0)) == []


def test_an_index_made_later_knows_everything(
    opened: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setattr("ropechat.store.store.ensure_search", lambda connection: False)
        store = opened()
        put(store, branched())
        store.close()
    store = opened()
    assert done(store.search("scattering"))
    assert (
        done(
            store._writer.ask(
                lambda c: c.execute("SELECT count(*) FROM node WHERE indexed = 0").fetchone()[0]
            )
        )
        == 0
    )


def grep(folder: Path, marker: bytes) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and marker in path.read_bytes().lower()]


def test_what_is_deleted_is_gone(opened: Callable[[], Store], tmp_path: Path) -> None:
    store, draw = opened(), random.Random(1)
    for number in range(4):
        tree = branched(number)
        tree.write(Role.USER, "zebraquux secret " * 500 if number == 1 else "harmless " * 500)
        answer(draw, tree, "zebraquux again" if number == 1 else "yes")
        put(store, tree, f"chat-{number}", "zebraquux title" if number == 1 else "other")
    (tmp_path / "data" / "backup-v0.db").write_bytes(b"zebraquux")
    assert grep(tmp_path / "data", b"zebraquux")
    assert done(store.delete("chat-1")) is True
    assert grep(tmp_path / "data", b"zebraquux") == []
    assert grep(tmp_path / "data", b"quu") == []
    assert len(done(store.conversations())) == 3
    assert not done(store.search("zebraquux"))
    assert len(done(store.search("rayleigh"))) == 3


def test_a_branch_is_deleted_alone(opened: Callable[[], Store]) -> None:
    store, tree = opened(), branched()
    put(store, tree)
    gone = tree.remove(tree.path()[2].id)
    done(store.remove(gone))
    assert done(store.sweep()) is True
    done(store.point("chat-1", tree.current))
    same(tree, done(store.load("chat-1")).tree)


# ---- Who may read it


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_nobody_else_may_read(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = Store(tmp_path / "data")
        put(store, branched())
        modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "data").rglob("*")}
        store.close()
    finally:
        os.umask(before)
    assert {"conversations.db", "conversations.db-wal", "conversations.db-shm", "running"} <= modes.keys()
    assert all(mode & 0o077 == 0 for mode in modes.values()), modes
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


# ---- Two at once


def test_two_programs_write_and_neither_stops_the_other(opened: Callable[[], Store]) -> None:
    one, other, draw = opened(), opened(), random.Random(1)
    trees = [Tree(), Tree()]
    recorders = []
    for store, tree, id in zip((one, other), trees, ("c1", "c2"), strict=True):
        question = tree.write(Role.USER, "q")
        done(store.keep(id, id, question))
        recorders.append(store.record(id, tree.answer(question.id, "m", Sampling(seed=1))))
    for number, recorder in itertools.product(range(200), recorders):
        recorder.add(record(draw, f"w{number}", number + 1))
    third = opened()  # its start leaves what the others write alone
    assert [summary.running for summary in done(third.conversations())] == [True, True]
    for recorder in recorders:
        done(recorder.end(State.DONE, "stop"))
    for id in ("c1", "c2"):
        assert len(done(third.load(id)).tree.path()[-1].steps) == 200
    assert one.trouble is None
    assert other.trouble is None


def test_an_owner_lives_as_long_as_its_lock(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    assert is_alive(tmp_path, owner.name)
    assert not others(tmp_path, owner.name)
    assert others(tmp_path, "me")
    code = (
        "from pathlib import Path; from ropechat.store.owner import Owner; "
        f"owner = Owner(Path({str(tmp_path)!r})); print(owner.name)"
    )
    name = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert (tmp_path / name).exists()
    assert not is_alive(tmp_path, name)
    assert not (tmp_path / name).exists()
    owner.release()
    assert not others(tmp_path, "me")


def test_a_chat_deleted_by_another_is_said(opened: Callable[[], Store]) -> None:
    one, other, tree = opened(), opened(), branched()
    put(one, tree)
    done(other.delete("chat-1"))
    last = tree.write(Role.USER, "and then?")
    with pytest.raises(FileAccessError, match="deleted elsewhere"):
        done(one.keep("chat-1", "t", last))
    assert "deleted elsewhere" in (one.trouble or "")


# ---- Versions


def test_migrations_step_by_step(
    opened: Callable[[], Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(opened(), branched())
    opened().close()
    path = tmp_path / "data" / "conversations.db"
    more = [["ALTER TABLE node ADD COLUMN mood TEXT"], ["UPDATE node SET mood = 'calm'"]]
    with monkeypatch.context() as later:
        later.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, *more])
        later.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS[:2], ["nonsense"]])
        with pytest.raises(sqlite3.OperationalError):
            schema.open_database(path)
        with sqlite3.connect(path) as plain:  # all or nothing
            assert schema.version_of(plain) == 1
            assert "mood" not in {row[1] for row in plain.execute("PRAGMA table_info(node)")}
        plain.close()
    with monkeypatch.context() as later:
        later.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, *more])
        connection = schema.open_database(path)
        assert schema.version_of(connection) == 3
        assert {row[0] for row in connection.execute("SELECT mood FROM node")} == {"calm"}
        connection.close()
        copy = sqlite3.connect(tmp_path / "data" / "backup-v1.db")
        assert schema.version_of(copy) == 1
        assert copy.execute("SELECT count(*) FROM node").fetchone() == (6,)
        copy.close()
        assert (tmp_path / "data" / "backup-v1.db").stat().st_mode & 0o077 == 0


def test_a_newer_file_is_left_alone(opened: Callable[[], Store], tmp_path: Path) -> None:
    opened().close()
    path = tmp_path / "data" / "conversations.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    store = opened()
    with pytest.raises(HistoryError, match=r"user_version: 99; this ropechat knows up to 1"):
        done(store.conversations())
    assert "user_version" in (store.trouble or "")
    assert not store.close()
    assert path.read_bytes() == before


# ---- Trouble with the disk


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


def test_a_full_disk_loses_nothing(opened: Callable[[], Store], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Full] = []

    def open_full(path: Path) -> Any:
        made.append(Full(schema.open_database(path)))
        return made[-1]

    monkeypatch.setattr("ropechat.store.store.open_database", open_full)
    monkeypatch.setattr(writer, "RETRY_SECONDS", 0.05)
    store, tree, draw = opened(), Tree(), random.Random(1)
    done(store.keep("c", "t", tree.write(Role.USER, "first")))
    made[0].full = True
    question = tree.write(Role.USER, "second")
    with pytest.raises(FileAccessError, match="full; not on disk yet"):
        done(store.keep("c", "t", question))
    node = tree.answer(question.id, "m", Sampling(seed=1))
    recorder = store.record("c", node)
    steps = [record(draw, f"w{i}", i + 1) for i in range(100)]
    for step in steps:
        recorder.add(step)
    with pytest.raises(FileAccessError):
        done(recorder.end(State.DONE, "stop"))
    assert store.trouble == "database or disk is full"
    assert len(done(store.load("c")).tree) == 1  # reading goes on
    made[0].full = False
    end = time.monotonic() + 5
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
    tree.path()[-1].steps[0] = dataclasses.replace(tree.path()[-1].steps[0], id=-1)
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


def test_damage_waits_for_the_other_program(opened: Callable[[], Store], tmp_path: Path) -> None:
    put(opened(), branched())
    holder = Owner(tmp_path / "data" / "running")
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


def test_a_sound_file_is_not_touched_by_the_check(tmp_path: Path) -> None:
    assert repair.checked(lambda: sqlite3.connect(":memory:")).execute("SELECT 1").fetchone() == (1,)
    with pytest.raises(sqlite3.OperationalError):  # not damage: not to be put aside
        repair.checked(lambda: sqlite3.connect(tmp_path / "no" / "folder"))


def test_where_nothing_can_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "data")
    with pytest.raises(FileAccessError, match="no conversation can be kept"):
        done(store.conversations())
    assert store.trouble
    assert not store.close(0.5)


# ---- Killed


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL of POSIX")
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """20 kills; `python tests/crashes.py run N` does more."""
    found = crashes.kills(tmp_path / "data", 20, random.Random(), longest=0.6)
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
from ropechat.tree import State, Tree
writer.RETRY_SECONDS = 0.05
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store, tree, draw = Store(Path(sys.argv[1])), Tree(), random.Random(1)
store.keep("c", "t", tree.write(Role.USER, "before")).result(10)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
for number in range(20):
    question = tree.write(Role.USER, "q" * 20_000)
    store.keep("c", "t", question)
    node = tree.answer(question.id, "m", Sampling(seed=1))
    recorder = store.record("c", node)
    for index in range(100):
        tree.add(node.id, record(draw, f"w{index}", index + 1))
        recorder.add(node.steps[-1])
    tree.end(node.id, State.DONE, "stop")
    recorder.end(State.DONE, "stop")
end = time.monotonic() + 20
while not store.trouble and time.monotonic() < end:
    time.sleep(0.01)
print("trouble:", store.trouble)
assert len(store.load("c").result(10).tree) < len(tree)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
while store.trouble and time.monotonic() < end:
    time.sleep(0.01)
kept = store.load("c").result(10).tree
assert [node.text for node in kept.path()] == [node.text for node in tree.path()]
assert store.close(10)
print("all there")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """The system itself refuses to write; once it does not, all is there."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        timeout=60,
    )
    assert done.stdout.splitlines()[-1:] == ["all there"], done.stdout + done.stderr
    assert done.stdout.startswith("trouble: ")
    assert "None" not in done.stdout
