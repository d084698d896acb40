"""Weekly copies of the chats, and where the chats should not lie."""

import os
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from chats import answer, branched
from stores import done, put

from ropechat.conversation import ConversationTree, Role
from ropechat.store import backup
from ropechat.store import filesystem as where
from ropechat.store.store import FILE, Store

DAY = 24 * 3600.0


def copied(store: Store) -> None:
    store.back_up()
    if store._copying is not None:
        store._copying.result()


def test_a_copy_a_week_and_three_are_kept(opened: Callable[[], Store], tmp_path: Path) -> None:
    store, folder = opened(), tmp_path / "data"
    done(store.conversations())
    copied(store)
    assert backup.list_copies(folder) == []  # nothing to be copied
    put(store, branched())
    for age in (30, 20, 10):
        made = folder / time.strftime("weekly-%Y%m%d.db", time.localtime(time.time() - age * DAY))
        made.write_bytes(b"old")
        os.utime(made, (time.time() - age * DAY,) * 2)
    oldest, *kept = backup.list_copies(folder)
    copied(store)
    assert backup.list_copies(folder)[:-1] == kept
    assert not oldest.exists()
    newest = backup.list_copies(folder)[-1]
    assert newest.stat().st_mode & 0o077 == 0
    with closing(sqlite3.connect(newest)) as copy:
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert copy.execute("SELECT title FROM conversation").fetchall() == [("the sky",)]
    before = newest.stat().st_mtime_ns
    copied(store)  # not due
    assert newest.stat().st_mtime_ns == before
    assert [path.name for path in folder.glob(".weekly-*")] == []


def test_what_is_deleted_is_in_no_copy(opened: Callable[[], Store], tmp_path: Path) -> None:
    store, tree = opened(), ConversationTree()
    tree.write(Role.USER, "zebraquux " * 100)
    answer(random.Random(1), tree, "yes")
    put(store, tree)
    (tmp_path / "data" / ".weekly-1.db").write_bytes(b"zebraquux")  # of a program that was killed
    store.back_up()
    assert done(store.delete("chat-1")) is True
    assert not [path for path in (tmp_path / "data").rglob("*.db*") if b"zebraquux" in path.read_bytes()]


def test_a_copy_that_cannot_be_made_harms_nothing(opened: Callable[[], Store], tmp_path: Path) -> None:
    store = opened()
    put(store, branched())
    taken = tmp_path / "data" / time.strftime("weekly-%Y%m%d.db")
    taken.mkdir()
    os.utime(taken, (0, 0))
    copied(store)
    assert store.trouble is None
    assert not list((tmp_path / "data").glob(".weekly-*"))


def test_a_damaged_database_names_the_last_copy(opened: Callable[[], Store], tmp_path: Path) -> None:
    store = opened()
    put(store, branched())
    copied(store)
    store.close()
    path = tmp_path / "data" / FILE
    path.write_bytes(path.read_bytes()[:5000])
    again = opened()
    done(again.conversations())
    assert f"{backup.list_copies(path.parent)[-1].name} is the last weekly copy" in again.notices[0]


MOUNTS = """/dev/vda / ext4 rw 0 0
tmpfs /home tmpfs rw 0 0
server:/x /home/ann nfs4 rw 0 0
//box/share /mnt/my\\040share cifs rw 0 0
/dev/vdb /home/ann/local ext4 rw 0 0
broken
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home/ann/.local/share/ropechat", "nfs4"),
        ("/home/ann", "nfs4"),
        ("/home/anna", ""),
        ("/home/ann/local/x", ""),
        ("/mnt/my share/x", "cifs"),
        ("/srv", ""),
    ],
)
def test_network_filesystems_are_known(folder: str, kind: str) -> None:
    assert where.network_kind(Path(folder), MOUNTS) == kind


def test_chats_on_a_network_are_warned_of(
    opened: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, "network_kind", lambda folder: "nfs4")
    store = opened()
    done(store.conversations())
    assert "on a network filesystem (nfs4)" in store.notices[0]
    assert "ROPECHAT_DATA" in store.notices[0]
