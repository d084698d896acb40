"""The database: its tables, migrations between versions, and opening it.

    conversation   one row per chat; `current` is the last node of the branch on the screen
    node           a system prompt, a question or an answer (see conversation.Node); text and reasoning are ""
                   while an answer streams
    chunk          token records of an answer from token `first` on (see codec), one row per flush
    node_search    full-text index of node.text, if SQLite has FTS5; node.indexed marks the indexed nodes
    draft          the unsent text of a chat; place is the id of the chat, or "" and the owner for a chat that
                   is not stored yet (see drafts)

A program owns the nodes that it streams (see process_lock). user_version is the version; each migration is a
list of statements from version i to i + 1; all due migrations run in one transaction.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ropechat.errors import HistoryError
from ropechat.store.files import private_file, private_folder, unusable

BUSY_SECONDS = 5.0
TABLES = ("conversation", "node", "chunk", "draft")

MIGRATIONS: list[list[str]] = [
    [
        """CREATE TABLE conversation(
            id TEXT PRIMARY KEY NOT NULL, title TEXT NOT NULL, created REAL NOT NULL, changed REAL NOT NULL,
            current TEXT)""",
        "CREATE INDEX conversation_changed ON conversation(changed)",
        """CREATE TABLE node(
            number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
            conversation TEXT NOT NULL REFERENCES conversation(id) ON DELETE CASCADE,
            parent TEXT REFERENCES node(id) ON DELETE CASCADE,
            role TEXT NOT NULL CHECK(role IN ('system', 'user', 'assistant')),
            state TEXT NOT NULL CHECK(state IN ('streaming', 'done', 'stopped', 'failed')),
            text TEXT NOT NULL, created REAL NOT NULL,
            origin TEXT, origin_index INTEGER, origin_change TEXT,
            given INTEGER NOT NULL DEFAULT 0, model TEXT NOT NULL DEFAULT '', sampling TEXT,
            prompt_tokens INTEGER NOT NULL DEFAULT 0, finish_reason TEXT, error TEXT NOT NULL DEFAULT '',
            first_after REAL, ended_after REAL,
            owner TEXT, indexed INTEGER NOT NULL DEFAULT 0)""",
        "CREATE INDEX node_conversation ON node(conversation)",
        "CREATE INDEX node_parent ON node(parent)",
        "CREATE INDEX node_streaming ON node(owner) WHERE state = 'streaming'",
        "CREATE INDEX node_to_index ON node(number) WHERE indexed = 0",
        """CREATE TABLE chunk(
            node TEXT NOT NULL REFERENCES node(id) ON DELETE CASCADE, first INTEGER NOT NULL,
            data BLOB NOT NULL, PRIMARY KEY(node, first))""",
    ],
    ["ALTER TABLE node ADD COLUMN start TEXT"],
    [
        "ALTER TABLE conversation ADD COLUMN sampling TEXT",
        """CREATE TABLE draft(
            place TEXT PRIMARY KEY NOT NULL, owner TEXT NOT NULL, data TEXT NOT NULL,
            changed REAL NOT NULL)""",
    ],
    ["ALTER TABLE node ADD COLUMN reasoning TEXT NOT NULL DEFAULT ''"],
    ["ALTER TABLE node ADD COLUMN thought_seconds REAL"],
]
_SEARCH = (
    "CREATE VIRTUAL TABLE IF NOT EXISTS node_search "
    "USING fts5(text, content='node', content_rowid='number', tokenize='trigram')"
)


def version_of(connection: sqlite3.Connection) -> int:
    """The user_version of a database."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _fold(text: str | None) -> str:
    return (text or "").lower()


def connect(path: Path) -> sqlite3.Connection:
    """Open a database without changing it. Raises sqlite3.Error.

    A text with bytes that are not UTF-8, as damage leaves them, is read with U+FFFD in their place.
    """
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    connection.create_function("fold", 1, _fold, deterministic=True)
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run a transaction as the only writer: committed, or rolled back on an exception."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def open_database(path: Path) -> sqlite3.Connection:
    """Open or create the database and migrate it to the current version.

    Raises HistoryError for a newer version, which stays unchanged; FileAccessError; sqlite3.Error.
    """
    private_folder(path.parent)
    try:
        private_file(path)
    except OSError as error:
        raise unusable(path, error) from None
    connection = connect(path)
    try:
        _refuse_newer(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = ON")
        migrate(connection, path)
        connection.execute("PRAGMA foreign_keys = ON")
        return connection
    except BaseException:
        connection.close()
        raise


def _refuse_newer(connection: sqlite3.Connection, path: Path) -> None:
    version = version_of(connection)
    if version > len(MIGRATIONS):
        raise HistoryError(
            f"{path}: user_version: must be at most {len(MIGRATIONS)} (got {version}); "
            "use a newer ropechat, or --incognito"
        )


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Migrate a database to the current version, keeping a copy of the old one."""
    old = version_of(connection)
    if 0 < old < len(MIGRATIONS):
        copy = path.with_name(f"backup-v{old}.db")
        copy.unlink(missing_ok=True)
        private_file(copy)
        connection.execute("VACUUM INTO ?", (str(copy),))
    if old < len(MIGRATIONS):
        with transaction(connection):
            for version in range(
                version_of(connection), len(MIGRATIONS)
            ):  # another program may have migrated it
                for statement in MIGRATIONS[version]:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {version + 1}")


def ensure_search(connection: sqlite3.Connection) -> bool:
    """Create the full-text index and add missing nodes; False if SQLite does not support it."""
    try:
        with transaction(connection):
            connection.execute(_SEARCH)
            connection.execute(
                "INSERT INTO node_search(rowid, text) SELECT number, text FROM node "
                "WHERE indexed = 0 AND state != 'streaming'"
            )
            connection.execute("UPDATE node SET indexed = 1 WHERE indexed = 0 AND state != 'streaming'")
    except sqlite3.OperationalError as error:
        if "no such module" in str(error) or "no such tokenizer" in str(error):
            return False
        raise
    return True
