"""Commands that are typed: a line that begins with "/"; some take words."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ropechat.tui.commands import registry as keys
from ropechat.util.text import near

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Typed: TypeAlias = "Callable[[str], str]"  # the words behind a command in, a hint for the user out

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


BY_WORD = ("chat.stop",)  # typed, these do other than their keys


def run(line: str, typed: Mapping[str, Typed], act: Callable[[str], object]) -> tuple[bool, str]:
    """Do what a line says; returns whether it names a command, and a hint for the user, "" for none.

    typed: what takes words; act: does the action of a command without words.
    """
    name, _, words = line.strip().partition(" ")
    words = words.strip()
    command = keys.by_slash(name)
    if command is None:
        meant = SAID_OTHERWISE.get(name) or near(name, names())
        known = f"/{meant}?" if meant else "F1 lists the commands"
        return False, f"/{name:.20} is no command: {known}  (// sends a text that begins with a slash)"
    if command.id in typed and (words or not command.action or command.id in BY_WORD):
        return True, typed[command.id](words)
    act(command.action)
    return True, ""
