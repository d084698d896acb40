"""What the program can do: names of keys and commands for topics, and questions about every command.

Both are made from the lists in ropechat/tui/commands: a command that changes there changes here. Only how a
help text becomes a sentence is written by hand, in material/program.toml.
"""

import random
import re
from collections.abc import Iterable
from typing import Any

from textual.widgets import TextArea

from ropechat.tui.commands.registry import ALL, BY_ID, SYNONYMS, Command, by_slash, shown
from training.material import table
from training.patterns import Part, draw, fill
from training.turns import Turn

_P: dict[str, Any] = table("program")
_PLACEHOLDER = re.compile(r"\{(/[a-z]+|[a-z]+\.[a-z_0-9]+)(?:#(\d))?\}")
_NAMES = {"escape": "Esc", "enter": "Enter", "pageup": "Page Up", "pagedown": "Page Down"}
_SIGNS = {"[": "left bracket", "]": "right bracket", "=": "equals", "/": "slash", "+": "plus", "-": "minus"}
_ARROWS = ("Up", "Down", "Left", "Right")
_WORDS = (*_ARROWS, "Space", "Home", "End")  # names with other meanings: "what's up" asks about no key
_OFTEN = {"everywhere": 4.0, "composer": 4.0, "transcript": 3.0}  # the weight of a context; 1 for dialogs


# ---- Names of keys


def key_name(key: str) -> str:
    """The name of a key of the registry in a sentence: Ctrl+X, F1, Esc, [."""
    *modifiers, name = key.split("+")
    sign = shown(name, long=True)
    plain = _NAMES.get(name) or (sign if len(sign) == 1 and sign.isascii() else name)
    if len(plain) > 1 or modifiers:
        plain = plain[:1].upper() + plain[1:]
    return "+".join([*(word.capitalize() for word in modifiers), plain])


def names_of(command: Command) -> list[str]:
    """The names of all keys of a command."""
    return [key_name(key) for key in command.keys.split(",") if key]


def fill_names(text: str, *, pattern: bool = False) -> str:
    """Replace {chat.stop} by the first key of that command, and {/fork} by the typed command.

    {composer.newline#2} is the second key. pattern: the text is a regular expression. Raises ValueError for a
    command that is not in the registry.
    """

    def name(match: re.Match[str]) -> str:
        wanted = match[1]
        if wanted.startswith("/"):
            if by_slash(wanted[1:]) is None:
                raise ValueError(f"{{{wanted}}}: no command has this typed name; in: {text}")
            return wanted
        number = int(match[2] or 1)
        keys = names_of(BY_ID[wanted]) if wanted in BY_ID else []
        if not 1 <= number <= len(keys):
            raise ValueError(f"{match[0]}: the registry has no such command, or key of it; in: {text}")
        found = keys[number - 1]
        return re.escape(found) if pattern else found

    return _PLACEHOLDER.sub(name, text)


def spell_out(pattern: str) -> str:
    """Replace <how> and other phrases of program.toml in a pattern of questions."""
    return re.sub(r"<([a-z]+)>", lambda match: f"({_P['phrases'][match[1]]})", pattern)


def filled(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of a TOML file with phrases, and the names of keys and commands, in all its texts."""
    made: dict[str, Any] = dict(entry)
    for field, value in entry.items():
        pattern = field == "keys"
        if isinstance(value, str):
            made[field] = fill_names(value, pattern=pattern)
        elif isinstance(value, list):
            made[field] = [fill_names(text, pattern=pattern) for text in value]
    return made | {"ask": [spell_out(text) for text in made.get("ask", [])]}


def typed_forms(name: str) -> list[str]:
    """How people type the name of a key: Ctrl+X, ctrl x, ^x, control-x."""
    *modifiers, last = name.split("+") if name != "+" else ("+",)
    if modifiers:
        (first, *_), low = modifiers, last.lower()
        words = {"Ctrl": ("ctrl", "Ctrl", "CTRL", "control", "Control")}.get(first, (first, first.lower()))
        forms = [f"{word}{join}{low}" for word in words for join in ("+", "+", " ", "-", " + ")]
        forms += [name, name, f"{first}+{low.upper()}", f"{first.upper()}+{low.upper()}"]
        return [*forms, f"^{low}", f"^{low.upper()}", f"^{low}"] if first == "Ctrl" else forms
    if re.fullmatch(r"F\d+", name):
        low, number = name.lower(), name[1:]
        return [name, name, low, low, f"f {number}", f"F {number}", f"fn {name}", f"fn+{low}"]
    if name == "Esc":
        return ["Esc", "esc", "escape", "Escape", "ESC"]
    if name == "Enter":
        return ["Enter", "enter", "return", "Return"]
    if name in _WORDS:
        low = name.lower()
        arrow = [f"arrow {low}", f"{low} arrow", f"the {low} arrow"] if name in _ARROWS else []
        return [*arrow, f"the {low} key", f"the {name} key", f"{low} key"]
    if name in _SIGNS:
        return [name, f'"{name}"', _SIGNS[name], f"the {_SIGNS[name]}"]
    if len(name) == 1:
        big = [f"shift+{name.lower()}", f"capital {name}", f"Shift+{name}", f"big {name}"]
        return [*(big if name.isupper() else []), name, name, f'"{name}"', f"the letter {name}"]
    return [name, name.lower(), name.lower().replace(" ", "")]


# ---- Sentences


def predicate(command: Command) -> str:
    """The help text of a command as what follows its name: "lets you begin a new chat"."""
    written: str | None = _P["says"].get(command.help)
    if written is not None:
        return fill_names(written)
    first = command.help.split(" ")[0].strip(",;:").lower()
    if first not in _P["verbs"]:
        raise ValueError(f"{command.id}: material/program.toml does not say how to say {command.help!r}")
    return f"lets you {command.help[:1].lower()}{command.help[1:]}"


def goal(command: Command) -> str:
    """What somebody wants who looks for a command: "begin a new chat"; "" if its help is no such phrase."""
    if command.help in _P["says"] or command.help.startswith("Never"):
        return ""
    return re.split(r"[;:(]|, when", command.help[:1].lower() + command.help[1:])[0].strip()


def _joined(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def sentence(command: Command) -> str:
    """What a command does, with all its keys and its typed name."""
    names = names_of(command)
    if not names:
        return f"/{command.typed if command.needs_words else command.slash} {predicate(command)}."
    place = _P["places"].get(command.context, "")
    same = f" /{command.slash} does the same." if command.slash else ""
    return f"{place} {_joined(names)} {predicate(command)}.{same}".strip()


def key_answer(name: str) -> str:
    """What a key does: in the chat, and else in the dialogs that use it, two at most."""
    sign = f"^{name[-1].lower()}" if name.startswith("Ctrl+") else name
    uses = [one for one in ALL if name in names_of(one) or sign in one.help.split()]
    chat = [one for one in uses if one.context in _OFTEN]
    return " ".join(sentence(one) for one in (chat or uses)[:2])


def text_field_keys() -> set[str]:
    """The keys with which Textual's text field moves and edits: Ctrl+Z, Ctrl+A."""
    found = [binding[0] if isinstance(binding, tuple) else binding.key for binding in TextArea.BINDINGS]
    return {key_name(key) for keys in found for key in keys.split(",")}


def idle_keys() -> list[str]:
    """Function keys and Ctrl with a letter that nothing in the app uses."""
    used = {name for command in ALL for name in names_of(command)} | text_field_keys()
    used |= {"Ctrl+I", "Ctrl+M", "Ctrl+H"}  # a terminal sends Tab, Enter and Backspace for these
    wanted = [f"F{n}" for n in range(1, 13)] + [f"Ctrl+{letter}" for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
    return [name for name in wanted if name not in used]


# ---- Questions

KEYS = sorted({name for command in ALL for name in names_of(command)})
IDLE = idle_keys()
_KEY_WEIGHTS = [
    max(_OFTEN.get(one.context, 1.0) for one in ALL if name in names_of(one))
    * (3 if len(name) > 1 else 0.3 if name.isdecimal() else 1)
    for name in KEYS
]
_SLASHES = [command.slash for command in ALL if command.slash]
_BY_KEY = {
    name: command
    for command in reversed(ALL)
    if command.context in _OFTEN
    for name in names_of(command)
    if len(name) > 1
}
_BY_SLASH = {f"/{command.slash}": command for command in ALL if command.slash}
_LABELS = {(one.context, one.label): one for one in reversed(ALL) if not one.id[-1].isdecimal()}
_WANTED = [*_LABELS.values()]
_WANTED_WEIGHTS = [_OFTEN.get(command.context, 1.0) for command in _WANTED]


def _key_turn(name: str, wording: str, rng: random.Random) -> Turn:
    typed = rng.choice(typed_forms(name))
    answer = f"{name} has no function in ropechat." if name in IDLE else key_answer(name)
    key = ("no function",) if name in IDLE else (re.escape(name),)
    return Turn(f"program.{name}", fill(wording, k=typed), answer, key, copied=(typed,))


def _slash_turn(name: str, wording: str) -> Turn:
    command = by_slash(SYNONYMS.get(name, name))
    if command is None:
        answer = fill_names(f"ropechat has no /{name}. {{app.help}} lists all commands.")
        return Turn("program.no_slash", fill(wording, c=f"/{name}"), answer, ("no /",), copied=(f"/{name}",))
    answer, key = sentence(command), re.escape(f"/{command.slash}")
    if name in SYNONYMS:
        answer = f"ropechat has no /{name}. {answer}"
    return Turn(f"program.typed.{name}", fill(wording, c=f"/{name}"), answer, (key,), copied=(f"/{name}",))


def _wanted_turn(rng: random.Random, part: Part) -> Turn | None:
    """Which key does this? How do I do it?"""
    command = rng.choices(_WANTED, _WANTED_WEIGHTS)[0]
    how = goal(command) if rng.random() < 0.7 else ""
    wording = draw(_P["ask_goal" if how else "ask_label"], rng, part)
    if wording is None:
        return None
    where = _P["where"].get(command.context, "") if command.context not in _OFTEN else ""
    question = fill(wording, g=how, l=command.label) + (f" {where}" if where else "")
    name = (names_of(command) or [f"/{command.slash}"])[0]
    return Turn(f"program.{command.id}", question, sentence(command), (re.escape(name),))


def _key_in_turn(rng: random.Random, part: Part) -> Turn | None:
    """What does this key do in the list of models?"""
    command = rng.choice([one for one in ALL if one.keys and one.context in _P["where"]])
    wording = draw(_P["ask_key_in"], rng, part)
    if wording is None:
        return None
    name = rng.choice(names_of(command))
    typed = rng.choice(typed_forms(name))
    question = f"{fill(wording, k=typed)} {_P['where'][command.context]}"
    return Turn(f"program.{command.id}", question, sentence(command), (re.escape(name),), copied=(typed,))


def _two_turn(rng: random.Random, part: Part) -> Turn | None:
    """F3 or F4? /fork or /regen?"""
    wording = draw(_P["ask_two"], rng, part)
    if wording is None:
        return None
    of_keys = rng.random() < 0.6
    first, second = rng.sample([*_BY_KEY.items()] if of_keys else [*_BY_SLASH.items()], 2)
    if first[1] is second[1]:
        return None
    typed = [rng.choice(typed_forms(name)) if of_keys else name for name, _ in (first, second)]
    answer = " ".join(_in_short(name, command) for name, command in (first, second))
    question = fill(wording, a=typed[0], b=typed[1])
    keys = (re.escape(first[0]), re.escape(second[0]))
    return Turn("program.two", question, answer, keys, copied=tuple(typed))


def _in_short(name: str, command: Command) -> str:
    """What a key or a typed command does, without its other names."""
    place = _P["places"].get(command.context, "") if not name.startswith("/") else ""
    return f"{place} {name} {predicate(command)}.".strip()


def about(rng: random.Random, part: Part) -> list[Turn] | None:
    """What a key or a typed command does, or which one does something; sometimes: and F7?"""
    if rng.random() < 0.08:
        turn = _two_turn(rng, part)
        return [turn] if turn else None
    roll = rng.random()
    if roll >= 0.7:
        turn = _wanted_turn(rng, part) if roll < 0.92 else _key_in_turn(rng, part)
        return [turn] if turn else None
    if roll >= 0.45:
        wording = draw(_P["ask_slash"], rng, part)
        names = rng.choices((_SLASHES, [*SYNONYMS], _P["no_slash"]), (80, 15, 5))[0]
        return [_slash_turn(rng.choice(names), wording)] if wording else None
    wording = draw(_P["ask_key"], rng, part)
    if wording is None:
        return None
    turns = [_key_turn(_any_key(rng), wording, rng)]
    if rng.random() < 0.2 and (again := draw(_P["ask_next_key"], rng, part)):
        turns.append(_key_turn(_any_key(rng), again, rng))
    return turns


def _any_key(rng: random.Random) -> str:
    return rng.choice(IDLE) if rng.random() < 0.07 else rng.choices(KEYS, _KEY_WEIGHTS)[0]
