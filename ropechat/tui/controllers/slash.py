"""Commands that are typed: a line that begins with "/". Those with a key are in `keys`; these take words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ropechat.chat.errors import explain
from ropechat.errors import RopechatError
from ropechat.store.queries import Chat
from ropechat.tui.commands import registry as keys
from ropechat.tui.controllers.typed import WORDS
from ropechat.tui.format.lists import MAX_COMPARED
from ropechat.tui.render.tint import NAMES
from ropechat.util.text import closest_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropechat.tui.app import ChatApp

FORMATS = ("md", "json", "html")


SAID_OTHERWISE = {  # what people type who know other chats, or our keys
    "archive": "delete",
    "attach": "help",
    "branches": "tree",
    "chats": "open",
    "clear": "new",
    "ctx": "context",
    "exit": "quit",
    "keys": "help",
    "models": "model",
    "overflow": "context",
    "preset": "sampling",
    "pull": "model",
    "regenerate": "regen",
    "retry": "regen",
    "save": "export",
    "search": "open",
    "stats": "facts",
    "tokens": "prose",
}


def names() -> list[str]:
    """Everything that may follow the slash."""
    return sorted(command.slash for command in keys.ALL if command.slash)


def run(app: ChatApp, line: str) -> str:
    """Do what a line says; returns a hint for the user, "" when there is nothing to say."""
    name, _, words = line.strip().partition(" ")
    words = words.strip()
    command = keys.by_slash(name)
    if command is None:
        meant = SAID_OTHERWISE.get(name) or closest_name(name, names())
        known = f"/{meant}?" if meant else "F1 lists the commands"
        return f"/{name:.20} is no command: {known}  (// sends a text that begins with a slash)"
    if command.id in WITH_WORDS and (words or not command.action or command.id in BY_WORD):
        return WITH_WORDS[command.id](app, words)
    app.call_later(app.run_action, command.action)
    return ""


def _rename(app: ChatApp, title: str) -> str:
    if not title:
        return "/rename TITLE"
    app.session.recorder.rename(title)
    return "renamed"


def _regenerate(app: ChatApp, count: str) -> str:
    if count not in [str(number + 1) for number in range(MAX_COMPARED)]:
        return f"/regen [1-{MAX_COMPARED}]: so many answers beside those that are there"
    app.answer_anew(int(count))
    return ""


def _fork(app: ChatApp, words: str) -> str:
    turn = app.session.last
    if turn is None or turn.node is None or not words.isdecimal():
        return "/fork NUMBER: a token of the last answer, counted from 1"
    count = len(app.session.tree[turn.node].steps)
    if not 1 <= int(words) <= count:
        return f"the last answer has {count} tokens"
    app.choose_fork(turn.node, int(words) - 1)
    return ""


def _copy(app: ChatApp, what: str) -> str:
    from ropechat.store.import_export import to_markdown

    if what == "code":
        app.action_copy_code()
    elif what == "all":
        session = app.session
        app.copy_to_clipboard(to_markdown(Chat(session.recorder.id, session.title, session.tree)))
    else:
        return "/copy [code|all]: the last code block, or the branch that is shown; alone the answer"
    return ""


def _import(app: ChatApp, file: str) -> str:
    if not file:
        return "/import FILE: a chat that was exported as json"
    app.when_idle(lambda: app.take_in(Path(file).expanduser()))
    return ""


def _open(app: ChatApp, words: str) -> str:
    app.action_chats(words)
    return ""


def _export(app: ChatApp, words: str) -> str:
    from ropechat.store.import_export import export

    form, _, target = words.partition(" ")
    if form not in FORMATS:
        return "/export md|json|html [FILE]"
    session = app.session
    chat = Chat(session.recorder.id, session.title, session.tree)
    path = Path(target.strip() or f"chat-{chat.id}.{form}").expanduser()
    if path.exists():
        return f"{path} exists; name another file"
    try:
        export(chat, form, path)
    except RopechatError as error:
        return explain(error)
    return f"written: {path}"


def _tint(app: ChatApp, name: str) -> str:
    if name not in NAMES:
        return f"/tint {'|'.join(NAMES)}"
    app.say_tint(app.transcript.set_tint(name))
    return ""


def _find(app: ChatApp, text: str) -> str:
    app.find_text(text)
    return ""


def _stop(app: ChatApp, _: str) -> str:
    return "" if app._stop() or app.session.generating else "nothing to stop: no answer is being written"


BY_WORD = ("chat.stop",)  # typed, these do other than their keys
WITH_WORDS: dict[str, Callable[[ChatApp, str], str]] = {
    **WORDS,
    "chat.rename": _rename,
    "chat.export": _export,
    "chat.import": _import,
    "chat.list": _open,
    "answer.copy": _copy,
    "answer.regenerate": _regenerate,
    "answer.compare": lambda app, words: app.compare_numbers(words),
    "answer.fork": _fork,
    "view.find": _find,
    "view.tint": _tint,
    "chat.stop": _stop,
}
