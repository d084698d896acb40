"""Writes the chat on the screen to the store; without a store it does nothing."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from ropechat.chat import events as ev
from ropechat.chat.draft import split_attachments
from ropechat.store.queries import make_title
from ropechat.util.kv_files import ChatFile, forget_part

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ropechat.conversation import Node
    from ropechat.sampling import Sampling
    from ropechat.store.store import AnswerWriter, Store


class ConversationRecorder:
    """Writes the nodes of one conversation to the store. A chat without a question is not stored."""

    def __init__(self, store: Store | None) -> None:
        self.store = store
        self.id = ""
        self.title = ""
        self.saved: Future[None] | None = None  # of the newest question
        self.stored = False  # whether the store has this conversation
        self.kv_bytes = 0  # of all KV caches on disk; 0: none is saved
        self.begin()

    def begin(self, id: str = "", title: str = "") -> None:
        """Switch to another conversation: a stored one, or without an id a new one."""
        self.id, self.title, self.saved = id or secrets.token_hex(4), title, None
        self.stored = bool(id)

    @property
    def kv_location(self) -> ev.KvLocation | None:
        """Where the KV cache of this conversation is on disk; None if it is not saved."""
        if self.store is None or not self.stored or not self.kv_bytes:
            return None
        file = ChatFile.of(self.id)
        return None if file is None else ev.KvLocation(file, self.kv_bytes)

    def store_node(self, node: Node, question: str, sampling: Sampling) -> None:
        """Store a question, or the system prompt before it; with the first one the chat's settings."""
        if self.store is not None:
            self.title = self.title or make_title(split_attachments(question)[0])
            self.saved = self.store.add_node(self.id, self.title, node)
            if not self.stored:
                self.stored = True
                self.store_sampling(sampling)
                self.store.keep_draft("", "")

    def store_sampling(self, sampling: Sampling) -> None:
        """Store the settings of the chat's next answer."""
        if self.store is not None and self.stored:
            self.store.set_sampling(self.id, sampling)

    def record(self, node: Node) -> AnswerWriter | None:
        """Begin to store an answer; the result takes its tokens as they come."""
        return None if self.store is None else self.store.record_answer(self.id, node)

    def point(self, node: str | None) -> None:
        """Store which branch is shown."""
        if self.store is not None:
            self.store.set_current(self.id, node)

    def start(self, node: Node) -> None:
        """Store the node at which the context of a question begins."""
        if self.store is not None and node.context_start is not None:
            self.store.set_context_start(node.id, node.context_start)

    def rename(self, title: str) -> None:
        """Give the conversation another title."""
        self.title = make_title(title)
        if self.store is not None:
            self.store.rename(self.id, self.title)

    def remove(self, nodes: list[str]) -> None:
        """Remove nodes that were never answered."""
        if self.store is not None:
            self.store.remove(nodes)

    def drop(self) -> None:
        """Delete the conversation, and begin a new one."""
        if self.store is not None:
            self.store.delete(self.id)
        self.begin()

    def erase(self, nodes: list[str]) -> None:
        """Delete nodes, and every trace of them."""
        if self.store is not None:
            forget_part(self.id)
            self.store.remove(nodes)
            self.store.purge(self.id)
