"""Every command of the chat, once: keys, footer, help, palette and typed commands come from these lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.binding import Binding

from ropechat.tui import sheet_keys
from ropechat.tui.command import CONTEXTS, Command

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ALL", "BY_ID", "COMMANDS", "CONTEXTS", "READING", "WRITING", "Command", "bindings", "by_slash"]

WRITING = (  # what the composer does itself
    Command("composer.send", "enter", "⏎", "send", "Send what you wrote"),
    Command(
        "composer.newline",
        "ctrl+j,alt+enter,shift+enter",
        "^j alt+⏎",
        "newline",
        "New line; also \\ at a line's end",
    ),
    Command("composer.previous", "up", "↑", "earlier", "From the first line: what you sent before"),
    Command("composer.next", "down", "↓", "later", "From the last line: what you sent after it"),
    Command("composer.search", "ctrl+r", "^r", "search", "What you sent that holds this text; again: older"),
    Command("composer.complete", "tab", "tab", "complete", "Complete a /command or an @file"),
    Command("composer.page_up", "pageup", "PgUp", "scroll", "Scroll the transcript"),
    Command("composer.page_down", "pagedown", "PgDn", "scroll", "Scroll on; at the end: follow again"),
)
BRANCHING = (
    Command(
        "answer.regenerate",
        "r",
        "r",
        "regenerate",
        "Answer anew, beside the old answer",
        "regenerate",
        slash="regen",
        arguments="[1-4]",
    ),
    Command(
        "answer.several",
        "R",
        "R",
        "four answers",
        "Answer anew four times, then compare",
        "several",
    ),
    Command("answer.resume", "c", "c", "continue", "Go on with an answer", "resume", slash="continue"),
    Command("question.edit", "e", "e", "edit", "Ask it otherwise", "edit", slash="edit"),
    Command(
        "answer.edit", "E", "E", "edit answer", "Write the answer otherwise", "edit_answer", slash="rewrite"
    ),
    Command(
        "answer.fork",
        "f",
        "f",
        "fork",
        "Put another token at the cursor",
        "fork",
        slash="fork",
        arguments="[TOKEN]",
    ),
    Command(
        "sibling.previous",
        "left_square_bracket",
        "[",
        "previous answer",
        "The answer beside this one",
        "sibling(-1)",
    ),
    Command(
        "sibling.next", "right_square_bracket", "]", "next answer", "The next one beside it", "sibling(1)"
    ),
    Command(
        "answer.compare",
        "equals_sign",
        "=",
        "compare",
        "Beside the answer it was made from, or others",
        "compare",
        slash="compare",
        arguments="[NUMBER NUMBER ...]",
    ),
    Command(
        "chat.branches",
        "f5",
        "F5",
        "branches",
        "All branches of this chat; compare up to four",
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
        "",
        "set",
        "One setting of the sampler",
        "sampling",
        slash="set",
        arguments="[NAME [VALUE]]",
    ),
    Command(
        "sampling.ban",
        "",
        "",
        "ban a token",
        "Never draw a token; alone: what is banned",
        slash="ban",
        arguments="[TEXT | #ID]",
    ),
    Command(
        "sampling.bias",
        "",
        "",
        "favour a token",
        "Draw it more or less; alone: what is weighed",
        slash="bias",
        arguments="[TEXT X | #ID X | off]",
    ),
    Command(
        "sampling.seed",
        "",
        "",
        "seed",
        "Lock the newest answer's seed, or free it",
        slash="seed",
        arguments="[N | lock | free]",
    ),
    Command(
        "prompt.persona",
        "",
        "",
        "personas",
        "System texts with a name",
        "personas",
        slash="persona",
        arguments="[NAME | save NAME]",
    ),
    Command(
        "prompt.system",
        "",
        "",
        "system text",
        "System text of what is asked next; - for none",
        "personas",
        slash="system",
        arguments="[TEXT | -]",
    ),
    Command(
        "prompt.full",
        "",
        "",
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
READING = (  # what the transcript does itself
    Command("read.down", "j,down", "j ↓", "down", "Scroll; token below; next alternative", "row(1)"),
    Command("read.up", "k,up", "k ↑", "up", "Scroll; token above; alternative before", "row(-1)"),
    Command("read.left", "h,left", "h ←", "token before", "To the token before", "token(-1)"),
    Command("read.right", "l,right", "l →", "next token", "To the next token", "token(1)"),
    Command("read.word", "w", "w", "next word", "To the next word", "word(1)"),
    Command("read.back", "b", "b", "word before", "To the word before", "word(-1)"),
    Command("read.next", "n", "n", "next surprise", "To the next match, or surprise", "next(1)"),
    Command("read.previous", "N", "N", "surprise before", "To the match or surprise before", "next(-1)"),
    Command("read.take", "enter", "⏎", "inspect", "Why this token; then: fork here", "take"),
    *(
        Command(
            f"alternative.{n}",
            str(n),
            str(n),
            "fork",
            "Fork at the alternative of this number",
            f"number({n})",
        )
        for n in range(1, 10)
    ),
    Command("alternative.other", "o", "o", "another", "Not this token: draw another one here", "other"),
    Command("alternative.ban", "x", "x", "ban", "Never draw this one again, or allow it again", "bias(-100)"),
    Command("alternative.more", "plus", "+", "favour", "Make it more likely in what comes", "bias(1)"),
    Command("alternative.less", "minus", "-", "disfavour", "Make it less likely in what comes", "bias(-1)"),
    Command("read.preview", "p", "p", "preview", "How the alternative would go on", "ask_preview"),
    Command("read.find", "slash", "/", "find", "Find in this chat", "app.find"),
    Command("read.tint", "T", "T", "tint", "Another figure as tint, or none", "app.next_tint"),
    Command("read.write", "i", "i", "write", "Back to writing; the token stays in sight", "app.write"),
    Command("read.home", "g,home", "g", "begin", "To the beginning", "scroll_home"),
    Command("read.end", "G,end", "G", "end", "To the end; the view follows again", "scroll_end"),
    Command("read.page_down", "space,pagedown", "space", "page down", "A page on", "page_down"),
    Command("read.page_up", "pageup", "PgUp", "page up", "A page back", "page_up"),
)
COMMANDS = (
    Command(
        "composer.editor",
        "ctrl+g",
        "^g",
        "editor",
        "Write in $VISUAL or $EDITOR",
        "external_editor",
        slash="editor",
    ),
    Command(
        "chat.stop",
        "escape",
        "esc",
        "stop",
        "Stop, keeping the text; else: to the transcript and back",
        "stop",
        slash="stop",
    ),
    Command(
        "chat.interrupt",
        "ctrl+c",
        "^c",
        "stop",
        "Stop; copy a selection; clear the draft (↑ brings it back); twice: quit",
        "interrupt",
        True,
    ),
    Command("chat.new", "ctrl+n", "^n", "new chat", "Begin a new chat", "new_chat", True, "new"),
    Command(
        "chat.list",
        "f2",
        "F2",
        "chats",
        "Open, search, rename and delete chats",
        "chats",
        slash="open",
        arguments="[WORDS]",
    ),
    Command(
        "chat.rename", "", "", "rename", "Give this chat another title", slash="rename", arguments="TITLE"
    ),
    Command(
        "chat.export",
        "",
        "",
        "export",
        "Write this chat to a file",
        slash="export",
        arguments="md|json|html [FILE]",
    ),
    Command(
        "chat.import",
        "",
        "",
        "import",
        "Open a chat that was exported as json",
        slash="import",
        arguments="FILE",
    ),
    Command("chat.delete", "", "", "delete", "Delete chats for good", "chats", slash="delete"),
    *BRANCHING,
    *PANELS,
    Command("answer.copy", "y", "y", "copy", "Copy the answer", "copy", slash="copy", arguments="[code|all]"),
    Command("answer.copy_code", "Y", "Y", "copy code", "Copy the answer's last code block", "copy_code"),
    Command(
        "view.toggle",
        "f3",
        "F3",
        "prose",
        "Tokens as they came, or Markdown as prose",
        "toggle_view",
        slash="prose",
    ),
    Command(
        "view.inspect", "f4", "F4", "inspect", "Why this token: the inspector", "inspect", slash="inspect"
    ),
    Command(
        "view.overview",
        "ctrl+l",
        "^l",
        "overview",
        "Chats, branches, personas and sampling at the left of a wide screen",
        "overview",
        slash="overview",
    ),
    Command(
        "view.tint",
        "",
        "",
        "tint on or off",
        "Tint on or off, or another one",
        "toggle_tint",
        slash="tint",
        arguments="[NAME]",
    ),
    Command(
        "view.find", "ctrl+f", "^f", "find", "Find in this chat", "find", slash="find", arguments="[TEXT]"
    ),
    Command(
        "view.mouse", "f8", "F8", "mouse", "Leave the mouse to the terminal, and back", "mouse", slash="mouse"
    ),
    Command("view.theme", "", "", "theme", "Change the colours", "change_theme", slash="theme"),
    Command("app.palette", "ctrl+p", "^p", "commands", "All commands", "command_palette", True),
    Command("app.help", "f1", "F1", "help", "List keys and commands", "help", slash="help"),
    Command(
        "app.quit", "ctrl+q", "^q", "quit", "Quit at once; also ^d on an empty line", "quit", True, "quit"
    ),
)
ALL = (*WRITING, *COMMANDS, *READING, *sheet_keys.ALL)
BY_ID = {command.id: command for command in ALL}
NO_PALETTE = ("chat.interrupt", "app.palette", *(f"alternative.{n}" for n in range(1, 10)))
WHILE_WRITING = (
    "chat.stop",
    "composer.newline",
    "view.toggle",
    "view.inspect",
    "app.palette",
    "app.help",
    "app.quit",
)
WHILE_IDLE = (
    *("composer.send", "composer.newline", "view.toggle", "view.inspect"),
    *("chat.new", "model.pick", "sampling.open", "app.palette", "app.help", "app.quit"),
)


def bindings(commands: Iterable[Command] = COMMANDS) -> list[Binding]:
    """Key bindings, each with an id that a keymap can name."""
    return [
        Binding(
            command.keys, command.action, command.label, id=command.id, show=False, priority=command.priority
        )
        for command in commands
        if command.action and command.keys
    ]


def by_slash(name: str) -> Command | None:
    """The command that is typed so."""
    return next((command for command in ALL if command.slash == name), None)
