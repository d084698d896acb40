"""Chats of a file added to the store."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from ropechat.util.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ropechat.store.imports.read import Imported
    from ropechat.store.store import Store

TIMEOUT_S = 60.0  # seconds for one chat to be on disk


def keep(found: Imported, store: Store) -> Iterator[str]:
    """Store the chats, and yield the id of each when it is on disk. Raises FileAccessError."""
    taken = {one.id for one in store.conversations().result(TIMEOUT_S)}
    for place, chat in enumerate(found.chats):
        id = chat.id
        while id in taken:  # of thousands of chats, two random ids may be equal
            id = secrets.token_hex(4)
        taken.add(id)
        found.chats[place] = replace(chat, id=id)
        store.insert(found.chats[place]).result(TIMEOUT_S)
        yield id


def describe(found: Imported) -> str:
    """What was imported, as one line."""
    count = len(found.chats)
    words = f"{count:,} chat{'s' * (count != 1)} from {one_line(found.source) or 'ropechat'}"
    lost = f"; {found.lost:,} messages are not text (tools, pictures) or have no question: left out"
    return words + (lost if found.lost else "")
