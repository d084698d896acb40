"""Commands that are typed: a line that begins with "/". Those with a key are in `keys`; these take words."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from ropechat.errors import RopechatError
from ropechat.store.rows import Chat
from ropechat.tui import keys
from ropechat.tui.errors import explain
from ropechat.tui.typed import WORDS

if TYPE_CHECKING:
    from ropechat.tui.app import ChatApp

FORMATS = ("md", "json", "html")
WITH_WORDS = ("rename", "delete", "export")


def names() -> list[str]:
    """Everything that may follow the slash."""
    return sorted([*(command.slash for command in keys.COMMANDS if command.slash), *WITH_WORDS])


def run(app: ChatApp, line: str) -> str:
    """Do what a line says; returns a hint for the user, "" when there is nothing to say."""
    name, _, words = line.strip().partition(" ")
    words = words.strip()
    if name == "rename":
        return _rename(app, words)
    if name == "export":
        return _export(app, words)
    if name == "delete":
        app.action_chats()
        return ""
    if name == "fork" and words:
        return _fork(app, words)
    command = keys.by_slash(name)
    if command is not None and command.id in WORDS and (words or not command.action):
        return WORDS[command.id](app, words)
    if command is not None:
        app.call_later(app.run_action, command.action)
        return ""
    near = get_close_matches(name, names(), 1)
    known = f"/{near[0]}?" if near else "F1 lists the commands"
    return f"/{name:.20} is no command: {known}  (// sends a text that begins with a slash)"


def _rename(app: ChatApp, title: str) -> str:
    if not title:
        return "/rename TITLE"
    app.session.keeper.rename(title)
    return "renamed"


def _fork(app: ChatApp, words: str) -> str:
    turn = app.session.last
    if turn is None or turn.node is None or not words.isdecimal():
        return "/fork NUMBER: a token of the last answer, counted from 1"
    count = len(app.session.tree[turn.node].steps)
    if not 1 <= int(words) <= count:
        return f"the last answer has {count} tokens"
    app.choose_fork(turn.node, int(words) - 1)
    return ""


def _export(app: ChatApp, words: str) -> str:
    from ropechat.store.transfer import export

    form, _, target = words.partition(" ")
    if form not in FORMATS:
        return "/export md|json|html [FILE]"
    session = app.session
    chat = Chat(session.keeper.id, session.title, session.tree)
    path = Path(target.strip() or f"chat-{chat.id}.{form}").expanduser()
    if path.exists():
        return f"{path} exists; name another file"
    try:
        export(chat, form, path)
    except RopechatError as error:
        return explain(error)
    return f"written: {path}"
