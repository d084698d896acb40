"""The messages of another program's chat, and the conversation tree built from them."""

from __future__ import annotations

import secrets
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ropechat.conversation import ConversationTree, Node, Role
from ropechat.errors import HistoryError
from ropechat.store.queries import Chat, make_title

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_TEXT = 256 << 20
"""Characters of one chat with all its branches."""


@dataclass(frozen=True)
class Said:
    """A message. reasoning: the thought before an answer. parent: the id of the message before it. created:
    seconds since 1970; 0: not known.

    role: None for one that a chat cannot show, such as a tool's result; what follows it then follows its
    parent.
    """

    parent: str | None
    role: Role | None
    text: str = ""
    created: float = 0.0
    model: str = ""
    reasoning: str = ""


@dataclass
class _Kept:
    """A message that stays. begins: an earlier message of the same role, whose text comes before this one's.

    followed: whether a message of the other role comes next. extended: whether this one begins another.
    """

    said: Said
    parent: _Kept | None
    begins: _Kept | None
    followed: bool = False
    extended: bool = False
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    def parts(self) -> list[Said]:
        """The messages in a row that become one."""
        at: _Kept | None = self
        found = []
        while at is not None:
            found.append(at.said)
            at = at.begins
        return found[::-1]


def build_chat(title: str, messages: Mapping[str, Said], current: str | None) -> tuple[Chat | None, int]:
    """Make a chat of messages by id, with new ids; and count the messages with text that are not in it.

    Answers in a row (a tool worked between them) become one; a system text counts only before the first
    question. current: the last message of the branch on screen. None: there is no question. Raises
    HistoryError for a chat that is too long.
    """
    children = defaultdict[str | None, list[str]](list)
    for id, said in messages.items():
        children[said.parent if said.parent in messages else None].append(id)
    for ids in children.values():
        ids.sort(key=lambda id: messages[id].created)
    order: list[_Kept] = []
    places: dict[str, _Kept | None] = {}  # id -> the last message that stays, up to this one
    waiting: list[tuple[str, _Kept | None]] = [(id, None) for id in reversed(children[None])]
    while waiting:
        id, before = waiting.pop()
        kept = _keep(messages[id], before)
        order += [kept] if kept is not None else []
        places[id] = kept or before
        waiting += [(child, places[id]) for child in reversed(children[id])]
    lost = sum(bool(said.text) for said in messages.values()) - len(order)
    tree = _tree(title, [kept for kept in order if kept.followed or not kept.extended])
    first = next((node.text for node in tree.nodes.values() if node.role is Role.USER), None)
    if first is None:
        return None, lost
    shown = places.get(current or "")
    tree.current = tree.go(shown.id if shown and shown.id in tree.nodes else next(reversed(tree.nodes))).id
    return Chat(secrets.token_hex(4), make_title(title) or make_title(first[:1000]), tree), lost


def _keep(said: Said, before: _Kept | None) -> _Kept | None:
    """The message after `before`; None if a chat cannot show it there."""
    last = None if before is None else before.said.role
    begun = last in (Role.USER, Role.ASSISTANT)
    if not said.text or said.role is None or (said.role is Role.SYSTEM and begun):
        return None
    if said.role is Role.ASSISTANT and not begun:  # an answer to nothing
        return None
    if before is None:
        return _Kept(said, None, None)
    if last is said.role:
        before.extended = True
        return _Kept(said, before.parent, before)
    before.followed = True
    return _Kept(said, before, None)


def _tree(title: str, kept: list[_Kept]) -> ConversationTree:
    """The tree of the messages; each comes after its parent."""
    tree, length = ConversationTree(), 0
    begun = min((one.said.created for one in kept if one.said.created), default=0.0)
    for one in kept:
        texts = [said.text for said in one.parts()]
        thoughts = [said.reasoning for said in one.parts() if said.reasoning]
        length += sum(map(len, [*texts, *thoughts]))
        if length > MAX_TEXT:
            raise HistoryError(f"{title!r:.40}: must be at most {MAX_TEXT} characters with all its branches")
        role = one.said.role
        assert role is not None
        parent = None if one.parent is None else one.parent.id
        created = one.said.created or begun
        node = Node(one.id, parent, role, "\n\n".join(texts), created=created, model=one.said.model)
        node.final_reasoning = "\n\n".join(thoughts)
        tree.restore(node)
    return tree
