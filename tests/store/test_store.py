"""The store: what is said is on disk, what is deleted is gone, whatever happens in between."""

import dataclasses
import itertools
import math
import os
import random
import sqlite3
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from chats import answer, branched, record, thought_of
from stores import done, put

from ropechat.conversation import ConversationTree, NodeState, Origin, Role, unscored_step
from ropechat.errors import FileAccessError, HistoryError
from ropechat.sampling import Sampling
from ropechat.store import codec, schema
from ropechat.store.store import Store
from ropechat.trace import Candidate, Stage


def same(one: ConversationTree, other: ConversationTree) -> None:
    assert list(one.nodes) == list(other.nodes)
    assert one.current == other.current
    for id, node in one.nodes.items():
        loaded = other[id]
        assert dataclasses.replace(loaded, final_text=node.final_text) == node
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
    draw, store, tree = random.Random(seed), opened(), ConversationTree()
    text = "".join(
        chr(draw.choice([draw.randrange(0xD800), draw.randrange(0xE000, 0x110000), 0])) for _ in range(3000)
    )
    tree.write(Role.USER, text)
    answer(draw, tree, text)
    put(store, tree)
    same(tree, done(store.load("chat-1")).tree)
    half = ConversationTree()
    half.write(Role.USER, "a\ud800b")
    put(store, half, "chat-2")
    assert done(store.load("chat-2")).tree.path()[0].text == "a�b"


def test_records_as_bytes() -> None:
    draw = random.Random(3)
    steps = [record(draw, f"w{i}é", i + 1) for i in range(64)]
    steps.append(steps[0]._replace(finish_reason="length", row=None, top=(), stages=(), u=None))
    data = codec.encode(steps)
    assert codec.decode(data) == steps
    assert len(data) < 400 * len(steps)
    [back] = codec.decode(codec.encode([unscored_step(7, 3)]))
    assert (back.id, back.rank, back.position) == (7, 0, 3)
    assert math.isnan(back.logprob)
    thought = [*thought_of(draw, "The sun is low.", 4), *steps[:3]]
    assert codec.decode(codec.encode(thought)) == thought
    assert (codec.encode(thought)[0], data[0]) == (codec.WITH_CHANNELS, codec.FORMAT)
    for first in (steps, thought):
        assert first[0].row is not None
        known = [first[0]._replace(row=first[0].row._replace(varentropy=2.5)), *first[1:]]
        assert codec.decode(codec.encode(known)) == known
        assert codec.encode(known)[0] == codec.WITH_VARENTROPY
    for broken in (
        b"",
        b"\x05" + data[1:],
        b"\x04" + data[1:],
        b"\x03" + data[1:],
        data[:-3],
        data[:1] + data[5:],
        b"\x01" + b"x" * 40,
    ):
        with pytest.raises(HistoryError, match="token records"):
            codec.decode(broken)


def test_draws_as_bytes() -> None:
    """Candidates, intervals and numbers of stages; a chunk of format 1 has none."""
    draw = random.Random(4)
    steps = []
    for position in range(1, 9):
        step = record(draw, "w", position)
        candidates = tuple(
            Candidate(id, place, draw.choice([None, "top_p", "mine"]), draw.random() < 0.5, place / 256)
            for place, (id, _) in enumerate((*step.top, (9, -1.0)), 1)
        )
        steps.append(step._replace(candidates=candidates, interval=(0.1, 1 / 3)))
    steps[3] = steps[3]._replace(interval=None)
    assert codec.decode(codec.encode(steps)) == steps
    stages = (
        Stage("xtc", 3, 0.5, 0.25, 0.125),
        Stage("top_n_sigma", 2, 0.5, 0.25, 2.5),
        Stage("mine", 1, 0.5, 0.0),
    )
    stages += (Stage("xtc", 3, 0.5, 0.25),)
    told = [step._replace(stages=(*step.stages, *stages)) for step in steps]
    assert codec.decode(codec.encode(told)) == told
    old = b"".join(codec._record(step).removesuffix(codec._draw(step)) for step in steps)
    found = codec.decode(b"\x01" + zlib.compress(old))
    assert found == [step._replace(candidates=(), interval=None) for step in steps]


@pytest.mark.slow
def test_streaming_is_flushed_by_time_and_by_number(opened: Callable[[], Store], tmp_path: Path) -> None:
    store, tree, draw = opened(), ConversationTree(), random.Random(1)
    question = tree.write(Role.USER, "q")
    done(store.add_node("c", "q", question))
    node = tree.answer(question.id, "m", Sampling(seed=1))
    recorder = store.record_answer("c", node)

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
    end = time.monotonic() + 60
    while on_disk() < 1001:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert done(store.conversations())[0].running
    done(
        recorder.end(
            NodeState.DONE, "stop", prefix_length=1, prompt_tokens=5, first_after=0.5, ended_after=2.0
        )
    )
    loaded = done(store.load("c")).tree[node.id]
    assert loaded.steps == [*steps, steps[0]]
    counts = (loaded.prefix_length, loaded.prompt_tokens, loaded.ended_after)
    assert (loaded.state, counts) == (NodeState.DONE, (1, 5, 2.0))
    assert not done(store.conversations())[0].running


def test_the_question_is_on_disk_when_its_future_is_done(opened: Callable[[], Store], tmp_path: Path) -> None:
    store, tree = opened(), ConversationTree()
    done(store.add_node("c", "title", tree.write(Role.USER, "asked")))
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
    done(store.set_current("chat-0", leaf.id))
    assert done(store.load("chat-0")).tree.current == leaf.id
    assert done(store.load("chat-1")).id == "chat-1"
    for id, why in (
        ("chat-", "several"),
        ("nowhere", "not found"),
        ("", "not found"),
        ("%", "not found"),
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
    tree = ConversationTree()
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
        tree = branched(10 + number)  # some seeds have the marker in compressed records
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
    assert done(store.purge("chat-1")) is True
    done(store.set_current("chat-1", tree.current))
    same(tree, done(store.load("chat-1")).tree)


# ---- Who may read it


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


@pytest.mark.parametrize("index", [0, 1, 47, 48, 100, 149])
def test_the_beginning_of_a_fork_is_copied(
    opened: Callable[[], Store], monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    store, tree, draw = opened(), ConversationTree(), random.Random(1)
    question = tree.write(Role.USER, "q")
    done(store.add_node("c", "t", question))
    first = tree.answer(question.id, "m", Sampling(seed=1))
    recorder = store.record_answer("c", first)
    for number in range(150):
        tree.add(first.id, record(draw, f"w{number}", number + 1))
        recorder.add(first.steps[-1])
    done(recorder.end(NodeState.DONE, "stop"))
    made: list[int] = []
    encode = codec.encode
    monkeypatch.setattr(codec, "encode", lambda steps: made.append(len(steps)) or encode(steps))
    other = tree.answer(question.id, "m", Sampling(seed=1), Origin(first.id, index, "fork"))
    given = [*first.steps[:index], record(draw, "another", index + 1)]
    recorder = store.record_answer("c", other)
    recorder.begin(given, index)
    recorder.add(record(draw, "and on", index + 2))
    done(recorder.end(NodeState.DONE, "stop", prefix_length=len(given)))
    assert sum(made) <= 48 + 2  # records of whole chunks were not made again
    loaded = done(opened().load("c")).tree[other.id]
    assert loaded.steps[: index + 1] == given
    assert loaded.text == "".join(step.text for step in given) + "and on"


def test_two_programs_write_and_neither_stops_the_other(opened: Callable[[], Store]) -> None:
    one, other, draw = opened(), opened(), random.Random(1)
    trees = [ConversationTree(), ConversationTree()]
    recorders = []
    for store, tree, id in zip((one, other), trees, ("c1", "c2"), strict=True):
        question = tree.write(Role.USER, "q")
        done(store.add_node(id, id, question))
        recorders.append(store.record_answer(id, tree.answer(question.id, "m", Sampling(seed=1))))
    for number, recorder in itertools.product(range(200), recorders):
        recorder.add(record(draw, f"w{number}", number + 1))
    for store in (one, other):
        done(store.conversations())  # comes after what is still being written
    third = opened()  # its start leaves what the others write alone
    assert [summary.running for summary in done(third.conversations())] == [True, True]
    for recorder in recorders:
        done(recorder.end(NodeState.DONE, "stop"))
    for id in ("c1", "c2"):
        assert len(done(third.load(id)).tree.path()[-1].steps) == 200
    assert one.trouble is None
    assert other.trouble is None


def test_a_chat_deleted_by_another_is_said(opened: Callable[[], Store]) -> None:
    one, other, tree = opened(), opened(), branched()
    put(one, tree)
    done(other.delete("chat-1"))
    last = tree.write(Role.USER, "and then?")
    with pytest.raises(FileAccessError, match="deleted by another program"):
        done(one.add_node("chat-1", "t", last))
    assert "deleted by another program" in (one.trouble or "")
    assert "deleted by another program" in (one.trouble_of("chat-1") or "")
    put(one, branched(2), "chat-2")
    assert one.trouble_of("chat-2") is None  # what is lost of one chat says nothing of another
    assert not one.close()


@pytest.mark.parametrize("again", ["deleted", "stored"])
def test_a_loss_is_forgotten_when_nothing_is_lost(opened: Callable[[], Store], again: str) -> None:
    one, other, tree, draw = opened(), opened(), branched(), random.Random(1)
    put(one, tree)
    question = tree.write(Role.USER, "and then?")
    done(one.add_node("chat-1", "t", question))
    recorder = one.record_answer("chat-1", tree.answer(question.id, "m", Sampling(seed=1)))
    done(one.conversations())
    done(other.delete("chat-1"))
    recorder.add(record(draw, "word", 1))  # a token of an answer is of its chat, too
    done(one.conversations())
    assert "deleted by another program" in (one.trouble_of("chat-1") or "")
    if again == "deleted":
        done(one.delete("chat-1"))
    else:
        put(one, tree)
    assert one.trouble is None
    assert one.close()


# ---- Versions


def test_migrations_step_by_step(
    opened: Callable[[], Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(opened(), branched())
    opened().close()
    path = tmp_path / "data" / "conversations.db"
    more = [["ALTER TABLE node ADD COLUMN mood TEXT"], ["UPDATE node SET mood = 'calm'"]]
    now = len(schema.MIGRATIONS)
    with monkeypatch.context() as later:
        later.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, more[0], ["nonsense"]])
        with pytest.raises(sqlite3.OperationalError):
            schema.open_database(path)
        with sqlite3.connect(path) as plain:  # all or nothing
            assert schema.version_of(plain) == now
            assert "mood" not in {row[1] for row in plain.execute("PRAGMA table_info(node)")}
        plain.close()
    with monkeypatch.context() as later:
        later.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, *more])
        connection = schema.open_database(path)
        assert schema.version_of(connection) == now + 2
        assert {row[0] for row in connection.execute("SELECT mood FROM node")} == {"calm"}
        connection.close()
        copy = sqlite3.connect(tmp_path / "data" / f"backup-v{now}.db")
        assert schema.version_of(copy) == now
        assert copy.execute("SELECT count(*) FROM node").fetchone() == (6,)
        copy.close()
        assert (tmp_path / "data" / f"backup-v{now}.db").stat().st_mode & 0o077 == 0


def test_a_file_of_the_first_version_is_read_and_written(
    opened: Callable[[], Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:1])
        old = schema.open_database(tmp_path / "data" / "conversations.db")
        old.execute("INSERT INTO conversation VALUES('c', 't', 1.0, 1.0, 'q')")
        columns = "id, conversation, role, state, text, created"
        old.execute(f"INSERT INTO node({columns}) VALUES('q', 'c', 'user', 'done', 'Hi?', 1.0)")
        old.close()
    store = opened()
    assert done(store.load("c")).tree["q"].text == "Hi?"
    done(store.set_context_start("q", "q"))
    assert done(opened().load("c")).tree["q"].context_start == "q"


def test_a_newer_file_is_left_alone(opened: Callable[[], Store], tmp_path: Path) -> None:
    opened().close()
    path = tmp_path / "data" / "conversations.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    store = opened()
    with pytest.raises(HistoryError, match=r"user_version: must be at most \d \(got 99\);"):
        done(store.conversations())
    assert "user_version" in (store.trouble or "")
    assert not store.close()
    assert path.read_bytes() == before
