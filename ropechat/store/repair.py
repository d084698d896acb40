"""Repair of damaged databases: detection at start, and copying readable rows to a new file."""

import contextlib
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ropechat.errors import FileAccessError
from ropechat.store.files import private_file
from ropechat.store.schema import TABLES, connect, open_database

_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_LARGEST = 2**62
_REPEATS = 100  # rows in a row that were read before: more than a page has of damaged numbers


class DamagedDatabaseError(Exception):
    """The database file is damaged."""


def _is_damage(error: sqlite3.Error) -> bool:
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _DAMAGE


def open_checked(open: Callable[[], sqlite3.Connection]) -> sqlite3.Connection:
    """Open a connection and check its database. Raises DamagedDatabaseError."""
    try:
        connection = open()
        try:
            answer = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        except BaseException:
            connection.close()
            raise
    except sqlite3.DatabaseError as error:
        if not _is_damage(error):
            raise
        raise DamagedDatabaseError(str(error)) from None
    if answer != "ok":
        connection.close()
        raise DamagedDatabaseError(answer)
    return connection


def rescue(path: Path) -> str:
    """Keep a copy of a damaged database and replace it by one with the readable rows; return a message.

    If interrupted, either the damaged file or the new one is in place. Raises FileAccessError.
    """
    copy = path.with_name(f"damaged-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.db")
    fresh = path.with_name(f"rescued-{os.getpid()}.db")
    try:
        for tail in ("", "-wal"):
            if (source := Path(f"{path}{tail}")).exists():
                private_file(Path(f"{copy}{tail}"))
                shutil.copyfile(source, f"{copy}{tail}")
        saved = _save(copy, fresh)
        for tail in ("-wal", "-shm"):
            Path(f"{path}{tail}").unlink(missing_ok=True)
        os.replace(fresh, path)
    except OSError as error:
        raise FileAccessError(f"{path}: damaged and not repairable: {error.strerror or error}") from None
    counts = f"{saved['conversation']} conversations with {saved['node']} messages were recovered"
    return f"{path.name} was damaged: {counts}; the damaged file was saved as {copy.name}"


def _save(source: Path, target: Path) -> dict[str, int]:
    """Copy readable rows to a new database; return the number of rows by table."""
    saved = dict.fromkeys(TABLES, 0)
    target.unlink(missing_ok=True)
    old, new = connect(source), open_database(target)
    old.row_factory = sqlite3.Row
    old.execute("PRAGMA writable_schema = ON")  # allows reading a truncated file
    with contextlib.closing(old), contextlib.closing(new):
        new.execute("PRAGMA foreign_keys = OFF")
        new.execute("BEGIN")
        for table in TABLES:
            known = {row[1] for row in new.execute(f"PRAGMA table_info({table})")}
            for row in _readable(old, table):
                saved[table] += _insert(new, table, {name: row[name] for name in known & set(row.keys())})
        _tie(new)
        new.execute("COMMIT")
        new.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        new.execute(
            "PRAGMA journal_mode = DELETE"
        )  # leaves one file, which can be renamed; opening it turns WAL on
    return saved


def _insert(connection: sqlite3.Connection, table: str, values: dict[str, object]) -> int:
    names = ", ".join(values)
    marks = ", ".join("?" * len(values))
    try:
        connection.execute(f"INSERT INTO {table}({names}) VALUES({marks})", tuple(values.values()))
    except sqlite3.Error:  # a row that violates a constraint
        if "number" in values:  # a damaged one may be another row's
            return _insert(connection, table, {name: values[name] for name in values if name != "number"})
        return 0
    return 1


def _tie(connection: sqlite3.Connection) -> None:
    """Restore references: nodes get a conversation; chunks without a node are deleted."""
    connection.execute("UPDATE node SET indexed = 0")
    connection.execute(
        "INSERT INTO conversation(id, title, created, changed) "
        "SELECT conversation, 'Recovered', min(created), max(created) FROM node "
        "WHERE conversation NOT IN (SELECT id FROM conversation) GROUP BY conversation"
    )
    connection.execute("UPDATE node SET parent = NULL WHERE parent NOT IN (SELECT id FROM node)")
    connection.execute("DELETE FROM chunk WHERE node NOT IN (SELECT id FROM node)")


def _readable(connection: sqlite3.Connection, table: str) -> Iterator[sqlite3.Row]:
    """Yield the readable rows of a table: from the start, from the end, then between the gaps.

    A damaged page may have rows out of order, or lead back to earlier ones, so that some come more than once.
    """
    low = 0
    for row in _until_damage(connection, table, "ORDER BY rowid"):
        low = row["_row"]
        yield row
    high = _LARGEST
    for row in _until_damage(connection, table, f"WHERE rowid > {low} ORDER BY rowid DESC"):
        high = row["_row"]
        yield row
    while high < _LARGEST and (first := _behind_damage(connection, table, low, high)) is not None:
        low = first["_row"]
        yield first
        for row in _until_damage(connection, table, _between(low + 1, high)):
            low = max(low, min(row["_row"], high))  # only rises, so that this ends
            yield row


def _between(first: int, end: int) -> str:
    return f"WHERE rowid >= {first} AND rowid < {end} ORDER BY rowid"


def _behind_damage(connection: sqlite3.Connection, table: str, low: int, high: int) -> sqlite3.Row | None:
    """The first readable row above `low` and below `high`; None if none is found.

    It is searched for in steps that double, then by halves, as if there were one damaged place. It is read
    alone, because `sqlite3` gives a row only once it has read the next one, too.
    """

    def row_from(start: int) -> sqlite3.Row | None:
        row = next(_until_damage(connection, table, f"{_between(start, high)} LIMIT 1"), None)
        return row if row is not None and row["_row"] >= start else None

    found, damaged, readable = None, low, low + 1
    while readable < high and (found := row_from(readable)) is None and readable < high - 1:
        damaged, readable = readable, min(low + 2 * (readable - low), high - 1)
    while found is not None and readable - damaged > 1:
        middle = (damaged + readable) // 2
        if (row := row_from(middle)) is None:
            damaged = middle
        else:
            readable, found = middle, row
    return found


def _until_damage(connection: sqlite3.Connection, table: str, which: str) -> Iterator[sqlite3.Row]:
    """Yield rows until SQLite finds damage, or they repeat those before."""
    seen, repeats = set[int](), 0
    with contextlib.suppress(sqlite3.DatabaseError):
        for row in connection.execute(f"SELECT rowid AS _row, * FROM {table} NOT INDEXED {which}"):
            repeats = repeats + 1 if row["_row"] in seen else 0
            if repeats > _REPEATS:
                return
            seen.add(row["_row"])
            yield row
