"""Short ways to ask a store."""

from typing import Any

from ropechat.store.rows import Chat
from ropechat.store.store import Store
from ropechat.tree import Tree


def done(future: Any) -> Any:
    return future.result(10)


def put(store: Store, tree: Tree, id: str = "chat-1", title: str = "the sky") -> None:
    done(store.insert(Chat(id, title, tree)))
