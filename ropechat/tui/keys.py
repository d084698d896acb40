"""Every command of the chat, once: keys, footer, help and palette are all made from this list."""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding


@dataclass(frozen=True)
class Command:
    """One command. `action` is the app's; commands without one are keys that a widget handles itself.

    slash: what is typed for it behind a "/"; arguments: what may follow, for the help.
    """

    id: str
    keys: str
    shown: str
    label: str
    help: str
    action: str = ""
    priority: bool = False
    slash: str = ""
    arguments: str = ""


BRANCHING = (
    Command(
        "answer.regenerate",
        "r",
        "r",
        "regenerate",
        "In the transcript: answer anew, beside the old answer",
        "regenerate",
        slash="regen",
    ),
    Command(
        "answer.resume",
        "c",
        "c",
        "continue",
        "In the transcript: go on with an answer",
        "resume",
        slash="continue",
    ),
    Command("question.edit", "e", "e", "edit", "In the transcript: ask it otherwise", "edit", slash="edit"),
    Command(
        "answer.edit",
        "E",
        "E",
        "edit answer",
        "In the transcript: write the answer otherwise",
        "edit_answer",
        slash="rewrite",
    ),
    Command(
        "answer.fork",
        "f",
        "f",
        "fork",
        "In the transcript: put another token at the cursor",
        "fork",
        slash="fork",
        arguments="[TOKEN]",
    ),
    Command(
        "sibling.previous",
        "left_square_bracket",
        "[",
        "previous answer",
        "In the transcript: the answer beside this one",
        "sibling(-1)",
    ),
    Command(
        "sibling.next", "right_square_bracket", "]", "next answer", "The next one beside it", "sibling(1)"
    ),
    Command(
        "chat.branches",
        "f5",
        "F5",
        "branches",
        "All branches of this chat; compare two",
        "branches",
        slash="tree",
    ),
)
PANELS = (
    Command(
        "model.pick",
        "f6",
        "F6",
        "models",
        "Load another model, or download one",
        "models",
        True,
        slash="model",
        arguments="[NAME]",
    ),
    Command(
        "sampling.open",
        "f7",
        "F7",
        "sampling",
        "How tokens are drawn, and what a change would do",
        "sampling",
        True,
        slash="sampling",
        arguments="[PRESET]",
    ),
    Command(
        "sampling.set",
        "",
        "/set",
        "set",
        "One setting of the sampler",
        "sampling",
        slash="set",
        arguments="[NAME [VALUE]]",
    ),
    Command(
        "prompt.persona",
        "",
        "/persona",
        "personas",
        "System texts with a name",
        "personas",
        slash="persona",
        arguments="[NAME | save NAME]",
    ),
    Command(
        "prompt.system",
        "",
        "/system",
        "system text",
        "Put the next question under another system text; - for none",
        "personas",
        slash="system",
        arguments="[TEXT | -]",
    ),
    Command(
        "prompt.full",
        "",
        "/context",
        "full context",
        "What happens to a question that does not fit",
        slash="context",
        arguments="[ask|slide|stop]",
    ),
    Command(
        "engine.facts",
        "f9",
        "F9",
        "facts",
        "Speed, cache and memory of the engine",
        "facts",
        slash="facts",
    ),
)
COMMANDS = (
    Command("composer.send", "enter", "⏎", "send", "Send what you wrote"),
    Command(
        "composer.newline",
        "ctrl+j",
        "^j",
        "newline",
        "New line; alt+⏎, shift+⏎ or \\ at the end of a line also do",
    ),
    Command(
        "composer.history", "up,down", "↑ ↓", "history", "Earlier questions, from the first and the last line"
    ),
    Command(
        "chat.stop", "escape", "esc", "stop", "Stop the answer and keep its text; ctrl+c also does", "stop"
    ),
    Command(
        "chat.interrupt",
        "ctrl+c",
        "^c",
        "stop",
        "Stop; copy a selection; twice while idle: quit",
        "interrupt",
        True,
    ),
    Command("chat.new", "ctrl+n", "^n", "new chat", "Begin a new chat", "new_chat", True, "new"),
    Command("chat.list", "f2", "F2", "chats", "Open, search, rename and delete chats", "chats", slash="open"),
    *BRANCHING,
    *PANELS,
    Command("view.toggle", "f3", "F3", "prose", "Tokens as they came, or Markdown as prose", "toggle_view"),
    Command("view.inspect", "f4", "F4", "inspect", "Why this token: the inspector", "inspect"),
    Command("view.tint", "T", "T", "tint", "In the transcript: another figure as tint, or none"),
    Command("view.find", "ctrl+f", "^f", "find", "Find in this chat; also / in the transcript", "find"),
    Command("view.token", "h,l,j,k", "h j k l", "token", "In the transcript: to another token; w b: word"),
    Command("view.next", "n,N", "n N", "next", "The next match, or the next token that surprised the model"),
    Command(
        "scroll.page", "pageup,pagedown", "PgUp PgDn", "scroll", "Scroll; at the end the view follows again"
    ),
    Command("focus.transcript", "escape", "esc", "transcript", "While idle: to the transcript, and back"),
    Command("app.palette", "ctrl+p", "^p", "commands", "All commands"),
    Command("app.help", "f1", "F1", "help", "List the keys", "help", slash="help"),
    Command(
        "app.quit",
        "ctrl+q",
        "^q",
        "quit",
        "Quit at once; ctrl+d on an empty line also does",
        "quit",
        True,
        "quit",
    ),
)
BY_ID = {command.id: command for command in COMMANDS}


def bindings() -> list[Binding]:
    """The app's key bindings, each with an id that a keymap can name."""
    return [
        Binding(
            command.keys, command.action, command.label, id=command.id, show=False, priority=command.priority
        )
        for command in COMMANDS
        if command.action and command.keys
    ]


def by_slash(name: str) -> Command | None:
    """The command that is typed so."""
    return next((command for command in COMMANDS if command.slash == name), None)


def footer(generating: bool) -> list[tuple[str, str]]:
    """(key, label) pairs, the most wanted first."""
    if generating:
        names = [
            "chat.stop",
            "composer.newline",
            "view.toggle",
            "view.inspect",
            "app.palette",
            "app.help",
            "app.quit",
        ]
    else:
        names = [
            "composer.send",
            "composer.newline",
            "view.toggle",
            "view.inspect",
            "chat.new",
            "model.pick",
            "sampling.open",
            "app.palette",
            "app.help",
            "app.quit",
        ]
    return [(BY_ID[name].shown, BY_ID[name].label) for name in names]
