"""Runs commands: from a key, the palette, a click, or a line that begins with "/"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from ropechat.tui.commands import registry as keys
from ropechat.util.text import closest_name

if TYPE_CHECKING:
    from collections.abc import Callable

Handler: TypeAlias = (
    "Callable[[str], str | None]"  # takes the words after the command, returns a hint or None
)

SYNONYMS = {  # names of these commands in other chat programs
    "archive": "delete",
    "attach": "help",
    "config": "settings",
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
    """The names of all typed commands."""
    return sorted(command.slash for command in keys.ALL if command.slash)


class Commands:
    """Runs commands by their handlers. say: shows a hint. later: calls after the current key is handled."""

    def __init__(self, say: Callable[[str], None], later: Callable[[Callable[[], None]], Any]) -> None:
        self.handlers: dict[str, Handler] = {}
        self._say, self._later = say, later
        self.ran: Callable[[str], None] = lambda id: None  # called with each command that is run

    def run(self, id: str, words: str = "") -> None:
        self.ran(id)
        if hint := self.handlers[id](words):
            self._say(hint)

    def run_line(self, line: str) -> bool:
        """Run a typed command, without its slash; False if its name is unknown."""
        name, _, words = line.strip().partition(" ")
        words = words.strip()
        command = keys.by_slash(name)
        if command is None:
            meant = SYNONYMS.get(name) or closest_name(name, names())
            known = f"did you mean /{meant}?" if meant else "F1 lists the commands"
            self._say(f"/{name:.20}: unknown command; {known}  (// sends text that begins with a slash)")
            return False
        if words or command.needs_words:
            self.run(command.id, words)
        else:  # after the composer is emptied, since the command may fill it
            self._later(lambda: self.run(command.id))
        return True
