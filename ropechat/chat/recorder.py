"""Which kept conversation the chat on the screen is; without a store nothing is kept."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from ropechat.chat.draft import split_attachments
from ropechat.store.queries import make_title

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ropechat.conversation import Node
    from ropechat.store.store import AnswerWriter, Store


class ConversationRecorder:
    """Writes the nodes of one conversation down. A chat in which nothing was asked leaves no trace."""

    def __init__(self, store: Store | None) -> None:
        self.store = store
        self.id = ""
        self.title = ""
        self.saved: Future[None] | None = None  # of the newest question
        self.begin()

    def begin(self, id: str = "", title: str = "") -> None:
        """Another conversation: a new one, or one that was kept."""
        self.id, self.title, self.saved = id or secrets.token_hex(4), title, None

    def keep(self, node: Node, question: str) -> None:
        """Write a question (or the system text before it) down."""
        if self.store is not None:
            self.title = self.title or make_title(split_attachments(question)[0])
            self.saved = self.store.add_node(self.id, self.title, node)

    def record(self, node: Node) -> AnswerWriter | None:
        """What writes an answer down while it streams."""
        return None if self.store is None else self.store.record_answer(self.id, node)

    def point(self, node: str | None) -> None:
        """Remember which branch is shown."""
        if self.store is not None:
            self.store.set_current(self.id, node)

    def start(self, node: Node) -> None:
        """Remember which of the oldest turns are left out for a question."""
        if self.store is not None and node.context_start is not None:
            self.store.set_context_start(node.id, node.context_start)

    def rename(self, title: str) -> None:
        """Give the conversation another title."""
        self.title = make_title(title)
        if self.store is not None:
            self.store.rename(self.id, self.title)

    def remove(self, nodes: list[str]) -> None:
        """Take nodes back."""
        if self.store is not None:
            self.store.remove(nodes)

    def drop(self) -> None:
        """Nothing of the conversation is left: no trace of it is."""
        if self.store is not None:
            self.store.delete(self.id)
        self.begin()

    def erase(self, nodes: list[str]) -> None:
        """Delete nodes, and every trace of them."""
        if self.store is not None:
            self.store.remove(nodes)
            self.store.purge()
