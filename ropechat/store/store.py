"""The interface to the stored conversations."""

import contextlib
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ropechat.conversation import Node, NodeState
from ropechat.errors import HistoryError
from ropechat.sampling import Sampling
from ropechat.store import backup, drafts, repair
from ropechat.store import queries as rows
from ropechat.store.filesystem import network_warning
from ropechat.store.process_lock import ProcessLock, has_others, is_running
from ropechat.store.queries import Chat, Summary
from ropechat.store.schema import ensure_search, open_database, transaction
from ropechat.store.writer import Writer
from ropechat.trace import FinishReason, Step
from ropechat.util import kv_files
from ropechat.util.background import BackgroundCall
from ropechat.util.text import replace_surrogates

if TYPE_CHECKING:
    from concurrent.futures import Future

FILE = "conversations.db"


class Store:
    """Conversations in a folder; several programs may use it at the same time.

    A question is on disk before its future is done. Of a streaming answer, at most the last 250 ms or 64
    tokens are not. Data that the disk refuses stays in memory and is retried; `trouble` reports it. Every
    method returns at once; the futures raise HistoryError or FileAccessError.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.notices: list[str] = []  # messages for the user about opening the database
        self._running = folder / "running"
        self._owner: ProcessLock | None = None
        self._indexed = False
        self._copying: BackgroundCall[None] | None = None
        self._writer = Writer(self._open, str(self.path))

    @property
    def trouble(self) -> str | None:
        """Why something is not on disk; None if everything is."""
        return self._writer.trouble

    def trouble_of(self, conversation: str) -> str | None:
        """Why something of a conversation is not on disk; None if everything is."""
        return self._writer.trouble_of(conversation)

    def close(self, limit: float = 2.0) -> bool:
        """Write what is queued, for at most `limit` seconds; False if something is not on disk."""
        done = self._writer.close(limit)
        if self._owner is not None and done:
            self._owner.release()
        return done

    def back_up(self) -> None:
        """Copy the database in the background if the last copy is a week old."""
        with contextlib.suppress(OSError):
            if backup.is_due(self.path.parent, time.time()):
                self._copying = BackgroundCall(lambda: backup.make_copy(self.path))

    # --- on the writer's thread, once ---

    def _open(self) -> sqlite3.Connection:
        if self._owner is None:  # not at a second attempt
            self._owner = ProcessLock(self._running)
            self._warn(self._owner.fault)
        connection = self._sound()
        self._indexed = ensure_search(connection)
        self._recover(connection)
        return connection

    def _warn(self, unlockable: str) -> None:
        """Tell what about the folder endangers chats. unlockable: why its files cannot be locked."""
        if unlockable:
            self.notices.append(
                f"{self._running}: files cannot be locked ({unlockable}), so two programs at once may take "
                "each other's answers for abandoned ones; set ROPECHAT_DATA to a folder on another disk"
            )
        if words := network_warning(self.path.parent):
            self.notices.append(words)

    def _sound(self) -> sqlite3.Connection:
        """Open the database, repairing a damaged one."""
        with contextlib.suppress(repair.DamagedDatabaseError):
            return repair.open_checked(lambda: open_database(self.path))
        assert self._owner is not None
        if has_others(self._running, self._owner.name):
            raise HistoryError(
                f"{self.path}: damaged, and in use by another ropechat; close that one and start again"
            )
        saved = repair.rescue(self.path)
        copies = [
            f"; {copy.name} is the last weekly copy" for copy in backup.list_copies(self.path.parent)[-1:]
        ]
        self.notices.append("".join([saved, *copies]))
        return open_database(self.path)

    def _recover(self, connection: sqlite3.Connection) -> None:
        """Mark streaming answers of ended programs as stopped."""
        found = connection.execute(
            "SELECT id, CAST(owner AS TEXT) FROM node WHERE state = 'streaming'"
        ).fetchall()
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
        """Add a user's text or a finished answer; on disk when the future is done.

        The first node creates the conversation, with this title.
        """

        def work(connection: sqlite3.Connection) -> None:
            rows.put_conversation(connection, conversation, title, node.created, node.created)
            rows.put_node(connection, conversation, node, None)
            rows.put_steps(connection, node)
            self._index(connection, node.id)

        return self._writer.submit(work, conversation, durable=True)

    def record_answer(self, conversation: str, node: Node) -> "AnswerWriter":
        """Start to store a streaming answer."""

        def work(connection: sqlite3.Connection) -> None:
            owner = None if self._owner is None else self._owner.name
            rows.put_node(connection, conversation, node, owner)

        self._writer.submit(work, conversation)
        return AnswerWriter(self, self._writer, conversation, node)

    def insert(self, chat: Chat) -> "Future[None]":
        """Add a whole conversation with new ids."""

        def work(connection: sqlite3.Connection) -> None:
            nodes = list(chat.tree.nodes.values())
            made = nodes[0].created if nodes else 0.0
            rows.put_conversation(connection, chat.id, chat.title, made, made)
            for node in nodes:
                rows.put_node(connection, chat.id, node, None)
                rows.put_steps(connection, node)
                self._index(connection, node.id)
            _point(connection, chat.id, chat.tree.current)
            if chat.sampling is not None:
                _set_sampling(connection, chat.id, chat.sampling)
            self._writer.forget_loss(chat.id)

        return self._writer.submit(work, chat.id, durable=True)

    def set_current(self, conversation: str, node: str | None) -> "Future[None]":
        """Store which branch is on screen."""
        return self._writer.submit(lambda connection: _point(connection, conversation, node))

    def set_context_start(self, question: str, start: str) -> "Future[None]":
        """Store the `context_start` of a question."""
        return self._writer.submit(
            lambda connection: connection.execute("UPDATE node SET start = ? WHERE id = ?", (start, question))
        )

    def set_sampling(self, conversation: str, sampling: Sampling) -> "Future[None]":
        """Store the settings of a conversation's next answer."""
        return self._writer.submit(lambda connection: _set_sampling(connection, conversation, sampling))

    def keep_draft(self, conversation: str, data: str) -> "Future[None]":
        """Store what was typed in a conversation, "" for one that is not stored; no data removes it."""
        return self._writer.submit(
            lambda connection: drafts.put_draft(
                connection, conversation, self._name(), replace_surrogates(data)
            )
        )

    def draft(self, conversation: str) -> "Future[str]":
        """What was typed and not sent in a conversation, "" for one that is not stored."""

        def work(connection: sqlite3.Connection) -> str:
            return drafts.take_draft(
                connection, conversation, self._name(), lambda name: is_running(self._running, name)
            )

        return self._writer.submit(work)

    def _name(self) -> str:
        return "" if self._owner is None else self._owner.name

    def rename(self, conversation: str, title: str) -> "Future[None]":
        """Change the title of a conversation."""
        short = replace_surrogates(" ".join(title.split()))[: rows.MAX_TITLE]
        return self._writer.submit(
            lambda connection: connection.execute(
                "UPDATE conversation SET title = ? WHERE id = ?", (short, conversation)
            ),
            durable=True,
        )

    def remove(self, nodes: Sequence[str]) -> "Future[None]":
        """Delete nodes. Until `purge`, traces may remain in the log and the index."""

        def work(connection: sqlite3.Connection) -> None:
            for id in nodes:
                self._unindex(connection, "id = ?", id)
                connection.execute("DELETE FROM node WHERE id = ?", (id,))

        return self._writer.submit(work, durable=True)

    def delete(self, conversation: str) -> "Future[bool]":
        """Delete a conversation and purge; False: traces remain until no other program reads the file."""

        def work(connection: sqlite3.Connection) -> None:
            self._unindex(connection, "conversation = ?", conversation)
            connection.execute("DELETE FROM node WHERE conversation = ?", (conversation,))
            connection.execute("DELETE FROM conversation WHERE id = ?", (conversation,))
            connection.execute("DELETE FROM draft WHERE place = ?", (conversation,))
            self._writer.forget_loss(conversation)

        self._writer.submit(work, conversation, durable=True)
        kv_files.forget_chat(conversation)
        return self.purge(conversation)

    def purge(self, conversation: str) -> "Future[bool]":
        """Rewrite index, log and pages without what was deleted of a conversation; False while others read.

        Its keys and values on disk go, too.
        """

        def work(connection: sqlite3.Connection) -> bool:
            kv_files.remove_files(conversation)
            return self._sweep(connection)

        return self._writer.submit(work, alone=True)

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
        """Add a finished node to the full-text index."""
        if self._indexed:
            connection.execute(
                "INSERT INTO node_search(rowid, text) SELECT number, text FROM node WHERE id = ?", (id,)
            )
            connection.execute("UPDATE node SET indexed = 1 WHERE id = ?", (id,))

    def _unindex(self, connection: sqlite3.Connection, condition: str, value: str) -> None:
        """Remove nodes from the full-text index."""
        if self._indexed:
            connection.execute(
                "INSERT INTO node_search(node_search, rowid, text) "
                f"SELECT 'delete', number, text FROM node WHERE indexed = 1 AND {condition}",
                (value,),
            )

    # --- reading ---

    def conversations(self, limit: int = -1) -> "Future[list[Summary]]":
        """Conversations, newest first."""
        return self._writer.ask(lambda connection: rows.read_summaries(connection, limit))

    def search(self, query: str, limit: int = -1) -> "Future[list[Summary]]":
        """Conversations in which one message, or the title, contains every word of the query."""
        return self._writer.ask(lambda connection: rows.search(connection, query, limit, self._indexed))

    def questions(self, limit: int) -> "Future[list[str]]":
        """The newest questions of all conversations, oldest first."""
        return self._writer.ask(lambda connection: rows.read_questions(connection, limit))

    def load(self, id: str) -> "Future[Chat]":
        """A conversation by its id or a prefix of it. Raises HistoryError."""
        return self._writer.ask(lambda connection: rows.read_chat(connection, id))


class AnswerWriter:
    """Stores one answer while it streams; usable from any thread."""

    def __init__(self, store: Store, writer: Writer, chat: str, node: Node) -> None:
        self._store = store
        self._writer = writer
        self._chat = chat
        self._id = node.id
        self._origin = node.origin

    def begin(self, steps: Sequence[Step], same: int) -> None:
        """Add the first tokens; the first `same` of them are stored with the answer it was made from."""
        source, index = (self._origin.node, self._origin.index) if self._origin is not None else ("", 0)
        self._writer.begin(self._chat, self._id, steps, source, min(same, index))

    def add(self, step: Step) -> None:
        """Add a token."""
        self._writer.add(self._chat, self._id, step)

    def add_now(self, step: Step, given: int) -> None:
        """Add a token, and write it at once. given: how many of all tokens were not generated."""
        self._writer.add(self._chat, self._id, step)
        self._count_given(given)

    def replace(self, steps: Sequence[Step]) -> None:
        """Have these tokens, none of which was generated, instead of those so far."""
        self._writer.replace(self._chat, self._id, steps)
        self._count_given(len(steps))

    def _count_given(self, given: int) -> None:
        self._writer.submit(
            lambda connection: connection.execute(
                "UPDATE node SET given = ? WHERE id = ?", (given, self._id)
            ),
            self._chat,
        )

    def drop(self) -> None:
        """End without a result: the node is removed."""
        self._writer.take_texts(self._id)

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
        thought_seconds: float | None = None,
        sampling: Sampling | None = None,
    ) -> "Future[None]":
        """End the answer; on disk when the future is done. The arguments are fields of Node.

        model, sampling: the model and its settings, if they were unknown at the start.
        """
        text, reasoning = self._writer.take_texts(self._id)
        facts = (
            replace_surrogates(model),
            prefix_length,
            prompt_tokens,
            reason,
            replace_surrogates(error),
            first_after,
            ended_after,
            thought_seconds,
            None if sampling is None else rows.sampling_text(sampling),
        )

        def work(connection: sqlite3.Connection) -> None:
            _end(connection, self._id, state, text, reasoning)
            connection.execute(
                "UPDATE node SET model = coalesce(nullif(?, ''), model), given = ?, prompt_tokens = ?, "
                "finish_reason = ?, error = ?, first_after = ?, ended_after = ?, thought_seconds = ?, "
                "sampling = coalesce(?, sampling) WHERE id = ?",
                (*facts, self._id),
            )
            self._store._index(connection, self._id)

        return self._writer.submit(work, self._chat, durable=True)


def _end(connection: sqlite3.Connection, id: str, state: NodeState, text: str, reasoning: str) -> None:
    texts = replace_surrogates(text), replace_surrogates(reasoning)
    connection.execute(
        "UPDATE node SET state = ?, text = ?, reasoning = ?, owner = NULL WHERE id = ?",
        (str(state), *texts, id),
    )


def _stop_abandoned(connection: sqlite3.Connection, id: str) -> None:
    """Mark the answer of an ended program as stopped, unless the program finished it."""
    row = connection.execute("SELECT state FROM node WHERE id = ?", (id,)).fetchone()
    if row is not None and row[0] == NodeState.STREAMING:
        steps, _ = rows.read_steps(connection, id)
        texts = "".join(step.text for step in steps), "".join(step.reasoning for step in steps)
        _end(connection, id, NodeState.STOPPED, *texts)


def _point(connection: sqlite3.Connection, conversation: str, node: str | None) -> None:
    connection.execute("UPDATE conversation SET current = ? WHERE id = ?", (node, conversation))


def _set_sampling(connection: sqlite3.Connection, conversation: str, sampling: Sampling) -> None:
    connection.execute(
        "UPDATE conversation SET sampling = ? WHERE id = ?", (rows.sampling_text(sampling), conversation)
    )
