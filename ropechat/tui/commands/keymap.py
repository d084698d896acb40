"""The keys of all commands: the defaults of the registry and the user's choices."""

from __future__ import annotations

import unicodedata
from difflib import get_close_matches
from typing import TYPE_CHECKING

from textual.keys import Keys

from ropechat.tui.commands.registry import (
    ALL,
    BY_ID,
    COMMON,
    DIALOG_CONTEXTS,
    KEY_SYMBOLS,
    TYPED,
    WHILE_IDLE,
    WHILE_WRITING,
    Command,
    shown,
)
from ropechat.tui.terminal.textual_compat import key_of_character

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Item = str | tuple[str, str]  # id of a command, or (key, label)
_MODIFIERS = {"ctrl", "alt", "shift", "super", "meta", "hyper"}
_NAMES = {key.value for key in Keys if key.value.isidentifier()}
NO_KEY = "no_key"  # a name that no key has
_DISGUISED = {"ctrl+i": "tab", "ctrl+m": "enter", "ctrl+h": "backspace", "ctrl+left_square_bracket": "escape"}


class KeymapError(ValueError):
    """An invalid key binding. command: the id of its command."""

    def __init__(self, command: str, what: str) -> None:
        super().__init__(what)
        self.command = command


class Keymap:
    """The keys of every command. chosen: keys that replace the default ones, by command id.

    A chosen key is no longer one of a command that has it by default; `notes` says which commands have no key
    then. Raises KeymapError for unknown commands and keys, for a key that is chosen twice in one context, and
    if a command could not be reached any more.
    """

    def __init__(self, chosen: Mapping[str, Sequence[str]] | None = None) -> None:
        self._chosen: dict[str, tuple[str, ...]] = {}
        self._lost: dict[str, set[str]] = {}  # default keys that were chosen for other commands
        self.notes: list[str] = []
        for id, wanted in (chosen or {}).items():
            command = BY_ID.get(id)
            if command is None or not command.keys:
                raise KeymapError(id, f"unknown command; {_near(id)}")
            self._chosen[id] = tuple(_known(command, key) for key in wanted)
        self._settle_conflicts()

    def keys(self, id: str) -> tuple[str, ...]:
        """The keys of a command, as Textual names them."""
        default, lost = BY_ID[id].keys, self._lost.get(id, ())
        return self._chosen.get(id) or tuple(key for key in default.split(",") if key and key not in lost)

    def shown(self, id: str) -> str:
        """The keys of a command as text for the screen."""
        if id not in self._chosen and id not in self._lost:
            return BY_ID[id].shown
        return " ".join(shown(key) for key in self.keys(id))

    def of_symbol(self, symbol: str) -> str:
        """The key that is shown as this on the screen; "" if none is."""
        every = (key for command in ALL for key in self.keys(command.id))
        return next((key for key in every if shown(key) == symbol), "")

    def first(self, *ids: str) -> str:
        """The first key of each command as text for the screen; what to type for one without a key."""
        return " ".join(self._shortest(id) for id in ids)

    def _shortest(self, id: str, *, long: bool = False) -> str:
        keys = self.keys(id)
        return shown(keys[0], long=long) if keys else "–" if not BY_ID[id].slash else f"/{BY_ID[id].slash}"

    def beside_text(self, *ids: str) -> str:
        """The first key of each command that does not type a character."""
        return " ".join(self._beside_text(id) for id in ids)

    def _beside_text(self, id: str) -> str:
        beside = (key for key in self.keys(id) if not _types(key.split("+")[:-1], key.split("+")[-1]))
        found = next(beside, None)
        return self._shortest(id) if found is None else shown(found)

    def named(self, id: str) -> str:
        """The first key of a command as text for a sentence."""
        return self._shortest(id, long=True)

    @property
    def changes(self) -> dict[str, str]:
        """What differs from the defaults, for Textual's `set_keymap`."""
        return {id: ",".join(self.keys(id)) or NO_KEY for id in (*self._chosen, *self._lost)}

    def of(self, commands: Iterable[Command]) -> dict[str, str]:
        """A dict from key to command id."""
        return {key: command.id for command in commands for key in self.keys(command.id)}

    def pairs(self, items: Iterable[Item]) -> list[tuple[str, str]]:
        """(key, label) pairs; command ids are replaced, pairs stay."""
        return [(self.first(item), BY_ID[item].label) if isinstance(item, str) else item for item in items]

    def footer(self, generating: bool) -> list[tuple[str, str]]:
        """(key, label) pairs for the footer, the most important first."""
        names = WHILE_WRITING if generating else WHILE_IDLE
        return [(self.shown(name).partition(" ")[0], BY_ID[name].label) for name in names]

    def _settle_conflicts(self) -> None:
        taken: dict[tuple[str, str], str] = {}
        for command in sorted(ALL, key=lambda command: command.id in self._chosen):
            for key in self.keys(command.id):
                for place in _places(command):
                    other = taken.setdefault((place, key), command.id)
                    if other != command.id:
                        self._give(key, other, command.id)
                        taken[place, key] = command.id

    def _give(self, key: str, other: str, chosen: str) -> None:
        """A key is of the command for which it was chosen, and no longer of the other."""
        name = shown(key, long=True)
        if key in self._lost.get(other, ()):
            return  # in another context, too
        self._lost.setdefault(other, set()).add(key)
        command, left = BY_ID[other], self.keys(other)
        may_lose = command.slash or (command.context in DIALOG_CONTEXTS and command not in COMMON)
        outside = BY_ID[chosen].context in DIALOG_CONTEXTS and command.context not in DIALOG_CONTEXTS
        if other in self._chosen or outside or not (left or may_lose):
            raise KeymapError(chosen, f"{name} is also a key of {other}; give one of them another")
        if not left:
            way = f"/{command.slash} does {other}" if command.slash else f"{other} has no key"
            self.notes.append(f"{name} is {chosen}, as your settings say: {way}")


def _places(command: Command) -> Sequence[str]:
    """The contexts in which its keys must be unique."""
    if command.context == "everywhere":
        return ("composer", "transcript", *(DIALOG_CONTEXTS if command.priority else ()))
    return DIALOG_CONTEXTS if command.context == "sheet" else (command.context,)


def _known(command: Command, wanted: str) -> str:
    """Textual's name of a key that the user chose."""
    *modifiers, name = wanted.split("+") if len(wanted) > 1 else [wanted]
    name = key_of_character(name) if len(name) == 1 else name
    key = "+".join([*sorted(part.lower() for part in modifiers), name])
    if not {part.lower() for part in modifiers} <= _MODIFIERS or not (len(name) == 1 or _is_name(name)):
        raise KeymapError(
            command.id, f"{wanted}: unknown key; use names such as ctrl+o, f10, alt+enter, G or pageup"
        )
    if key in _DISGUISED:
        raise KeymapError(command.id, f"{wanted}: terminals send the same code for {_DISGUISED[key]}")
    if command.context in TYPED and _types(modifiers, name):
        raise KeymapError(command.id, f"{wanted}: types text; use a key with ctrl or alt, or f1 to f24")
    return key


def _is_name(name: str) -> bool:
    if name in _NAMES or name in KEY_SYMBOLS:
        return True
    try:
        return name == key_of_character(unicodedata.lookup(name.replace("_", " ")))
    except KeyError:
        return False


def _types(modifiers: Sequence[str], name: str) -> bool:
    return not set(modifiers) - {"shift"} and (len(name) == 1 or name not in _NAMES or name == "space")


def _near(id: str) -> str:
    near = get_close_matches(id, [command.id for command in ALL if command.keys], 1)
    return f"perhaps {near[0]}" if near else "F1 in the chat lists them"
