"""The door to the kept conversations."""

import contextlib
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ropechat.conversation import Node, NodeState
from ropechat.errors import HistoryError
from ropechat.store import backup, repair
from ropechat.store import queries as rows
from ropechat.store.filesystem import network_warning
from ropechat.store.process_lock import ProcessLock, has_others, is_running
from ropechat.store.queries import Chat, Summary
from ropechat.store.schema import ensure_search, open_database, transaction
from ropechat.store.writer import Writer
from ropechat.trace import FinishReason, Step
from ropechat.util.background import BackgroundCall

if TYPE_CHECKING:
    from concurrent.futures import Future

FILE = "conversations.db"


class Store:
    """Conversations in a folder; several programs may use it at once.

    A question is on disk before its future is done. Of a streaming answer at most 250 ms or 64 tokens
    are not. What the disk refuses is kept in memory and tried again; `trouble` says so meanwhile. Every
    method returns at once; the futures raise HistoryError or FileAccessError.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.notices: list[str] = []  # what people should know of the opening, one line each
        self._running = folder / "running"
        self._owner: ProcessLock | None = None
        self._indexed = False
        self._copying: BackgroundCall[None] | None = None
        self._writer = Writer(self._open, str(self.path))

    @property
    def trouble(self) -> str | None:
        """Why something that was said is not on disk; None: all is."""
        return self._writer.trouble

    def close(self, limit: float = 2.0) -> bool:
        """Write what waits, for at most `limit` seconds; False if something is not on disk."""
        done = self._writer.close(limit)
        if self._owner is not None and done:
            self._owner.release()
        return done

    def back_up(self) -> None:
        """Copy the database, if the last copy is a week old; it goes on meanwhile."""
        with contextlib.suppress(OSError):
            if backup.is_due(self.path.parent, time.time()):
                self._copying = BackgroundCall(lambda: backup.make_copy(self.path))

    # --- on the writer's thread, once ---

    def _open(self) -> sqlite3.Connection:
        self._owner = self._owner or ProcessLock(self._running)
        if words := network_warning(self.path.parent):
            self.notices.append(words)
        connection = self._sound()
        self._indexed = ensure_search(connection)
        self._recover(connection)
        return connection

    def _sound(self) -> sqlite3.Connection:
        """Open the database; a damaged one is put aside and what can be read of it is saved."""
        with contextlib.suppress(repair.DamagedDatabaseError):
            return repair.open_checked(lambda: open_database(self.path))
        assert self._owner is not None
        if has_others(self._running, self._owner.name):
            raise HistoryError(
                f"{self.path}: damaged, and in use by another ropechat; close that one, then start again"
            )
        saved = repair.rescue(self.path)
        copies = [
            f"; {copy.name} is the last weekly copy" for copy in backup.list_copies(self.path.parent)[-1:]
        ]
        self.notices.append("".join([saved, *copies]))
        return open_database(self.path)

    def _recover(self, connection: sqlite3.Connection) -> None:
        """Answers of programs that died while they wrote are stopped ones; not those that ended just now."""
        found = connection.execute("SELECT id, owner FROM node WHERE state = 'streaming'").fetchall()
        alive = {
            owner for owner in {owner for _, owner in found} if owner and is_running(self._running, owner)
        }
        for id, owner in found:
            if owner not in alive:
                with transaction(connection):
                    _stop_abandoned(connection, id)
        if self._indexed and found:
            ensure_search(connection)

    # --- writing ---

    def add_node(self, conversation: str, title: str, node: Node) -> "Future[None]":
        """Add a text that somebody wrote, or an answer that is known whole; on disk when the future is done.

        The conversation is made with its first node and then has this title.
        """

        def work(connection: sqlite3.Connection) -> None:
            rows.put_conversation(connection, conversation, title, node.created, node.created)
            rows.put_node(connection, conversation, node, None)
            rows.put_steps(connection, node)
            self._index(connection, node.id)

        return self._writer.submit(work, durable=True)

    def record_answer(self, conversation: str, node: Node) -> "AnswerWriter":
        """Begin to write an answer down while it streams."""

        def work(connection: sqlite3.Connection) -> None:
            owner = None if self._owner is None else self._owner.name
            rows.put_node(connection, conversation, node, owner)

        self._writer.submit(work)
        return AnswerWriter(self, self._writer, node)

    def insert(self, chat: Chat) -> "Future[None]":
        """Add a whole conversation. Its ids must be new."""

        def work(connection: sqlite3.Connection) -> None:
            nodes = list(chat.tree.nodes.values())
            made = nodes[0].created if nodes else 0.0
            rows.put_conversation(connection, chat.id, chat.title, made, made)
            for node in nodes:
                rows.put_node(connection, chat.id, node, None)
                rows.put_steps(connection, node)
                self._index(connection, node.id)
            _point(connection, chat.id, chat.tree.current)

        return self._writer.submit(work, durable=True)

    def set_current(self, conversation: str, node: str | None) -> "Future[None]":
        """Remember which branch is shown."""
        return self._writer.submit(lambda connection: _point(connection, conversation, node))

    def set_context_start(self, question: str, start: str) -> "Future[None]":
        """Remember the node at which what the model reads for a question begins."""
        return self._writer.submit(
            lambda connection: connection.execute("UPDATE node SET start = ? WHERE id = ?", (start, question))
        )

    def rename(self, conversation: str, title: str) -> "Future[None]":
        """Give a conversation another title."""
        short = rows.replace_surrogates(" ".join(title.split()))[: rows.MAX_TITLE]
        return self._writer.submit(
            lambda connection: connection.execute(
                "UPDATE conversation SET title = ? WHERE id = ?", (short, conversation)
            ),
            durable=True,
        )

    def remove(self, nodes: Sequence[str]) -> "Future[None]":
        """Delete nodes. Until `sweep`, traces may stay in the log and the index."""

        def work(connection: sqlite3.Connection) -> None:
            for id in nodes:
                self._unindex(connection, "id = ?", id)
                connection.execute("DELETE FROM node WHERE id = ?", (id,))

        return self._writer.submit(work, durable=True)

    def delete(self, conversation: str) -> "Future[bool]":
        """Delete a conversation, and every trace of it; False: traces stay until no other program reads."""

        def work(connection: sqlite3.Connection) -> None:
            self._unindex(connection, "conversation = ?", conversation)
            connection.execute("DELETE FROM node WHERE conversation = ?", (conversation,))
            connection.execute("DELETE FROM conversation WHERE id = ?", (conversation,))

        self._writer.submit(work, durable=True)
        return self.purge()

    def purge(self) -> "Future[bool]":
        """Make index, log and free pages anew, without what was deleted; False while another reads."""
        return self._writer.submit(self._sweep, alone=True)

    def _sweep(self, connection: sqlite3.Connection) -> bool:
        if self._copying is not None:
            self._copying.result()
        backup.delete_copies(self.path.parent)
        try:
            if self._indexed:
                connection.execute("INSERT INTO node_search(node_search) VALUES('optimize')")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("VACUUM")
            busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        except sqlite3.OperationalError:
            return False
        return not busy

    def _index(self, connection: sqlite3.Connection, id: str) -> None:
        """Put an ended node into the full-text index."""
        if self._indexed:
            connection.execute(
                "INSERT INTO node_search(rowid, text) SELECT number, text FROM node WHERE id = ?", (id,)
            )
            connection.execute("UPDATE node SET indexed = 1 WHERE id = ?", (id,))

    def _unindex(self, connection: sqlite3.Connection, condition: str, value: str) -> None:
        """Take nodes out of the full-text index."""
        if self._indexed:
            connection.execute(
                "INSERT INTO node_search(node_search, rowid, text) "
                f"SELECT 'delete', number, text FROM node WHERE indexed = 1 AND {condition}",
                (value,),
            )

    # --- reading ---

    def conversations(self, limit: int = -1) -> "Future[list[Summary]]":
        """Conversations, the newest first."""
        return self._writer.ask(lambda connection: rows.read_summaries(connection, limit))

    def search(self, query: str, limit: int = -1) -> "Future[list[Summary]]":
        """Conversations in which one message, or the title, holds every word of the query."""
        return self._writer.ask(lambda connection: rows.search(connection, query, limit, self._indexed))

    def questions(self, limit: int) -> "Future[list[str]]":
        """The newest questions of all conversations, the oldest of them first."""
        return self._writer.ask(lambda connection: rows.read_questions(connection, limit))

    def load(self, id: str) -> "Future[Chat]":
        """A conversation by its id, or by the beginning of it. Raises HistoryError."""
        return self._writer.ask(lambda connection: rows.read_chat(connection, id))


class AnswerWriter:
    """Writes one answer down; from any thread."""

    def __init__(self, store: Store, writer: Writer, node: Node) -> None:
        self._store = store
        self._writer = writer
        self._id = node.id
        self._origin = node.origin

    def begin(self, steps: Sequence[Step], same: int) -> None:
        """The tokens that it begins with; the first `same` are recorded as they are where it comes from."""
        source, index = (self._origin.node, self._origin.index) if self._origin is not None else ("", 0)
        self._writer.begin(self._id, steps, source, min(same, index))

    def add(self, step: Step) -> None:
        """One more token."""
        self._writer.add(self._id, step)

    def end(
        self,
        state: NodeState,
        reason: FinishReason | None = None,
        error: str = "",
        *,
        model: str = "",
        prefix_length: int = 0,
        prompt_tokens: int = 0,
        first_after: float | None = None,
        ended_after: float | None = None,
    ) -> "Future[None]":
        """The answer ended; on disk when the future is done. The arguments are Node's fields.

        model: who wrote it, where that was not known at the beginning.
        """
        text = self._writer.take_text(self._id)
        facts = (
            rows.replace_surrogates(model),
            prefix_length,
            prompt_tokens,
            reason,
            rows.replace_surrogates(error),
            first_after,
            ended_after,
        )

        def work(connection: sqlite3.Connection) -> None:
            _end(connection, self._id, state, text)
            connection.execute(
                "UPDATE node SET model = coalesce(nullif(?, ''), model), given = ?, prompt_tokens = ?, "
                "finish_reason = ?, error = ?, first_after = ?, ended_after = ? WHERE id = ?",
                (*facts, self._id),
            )
            self._store._index(connection, self._id)

        return self._writer.submit(work, durable=True)


def _end(connection: sqlite3.Connection, id: str, state: NodeState, text: str) -> None:
    connection.execute(
        "UPDATE node SET state = ?, text = ?, owner = NULL WHERE id = ?",
        (str(state), rows.replace_surrogates(text), id),
    )


def _stop_abandoned(connection: sqlite3.Connection, id: str) -> None:
    """End an answer whose program is gone, unless that program had ended it before it went."""
    row = connection.execute("SELECT state FROM node WHERE id = ?", (id,)).fetchone()
    if row is not None and row[0] == NodeState.STREAMING:
        steps, _ = rows.read_steps(connection, id)
        _end(connection, id, NodeState.STOPPED, "".join(step.text for step in steps))


def _point(connection: sqlite3.Connection, conversation: str, node: str | None) -> None:
    connection.execute("UPDATE conversation SET current = ? WHERE id = ?", (node, conversation))
