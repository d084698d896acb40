"""Short ways to ask a store."""

from typing import Any

from ropechat.conversation import ConversationTree
from ropechat.store.queries import Chat
from ropechat.store.store import Store


def done(future: Any) -> Any:
    return future.result(60)


def put(store: Store, tree: ConversationTree, id: str = "chat-1", title: str = "the sky") -> None:
    done(store.insert(Chat(id, title, tree)))
