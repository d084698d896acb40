"""All commands. Key bindings, footer, help, palette and typed commands are made from these lists."""

from __future__ import annotations

import unicodedata
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.binding import Binding

if TYPE_CHECKING:
    from collections.abc import Iterable

CONTEXTS = {
    "composer": "In the composer",
    "transcript": "While READING is shown (esc, or a click on a word)",
    "everywhere": "Everywhere",
    "sheet": "In every dialog over the chat",
    "chats": "Among the chats",
    "branches": "Among the branches",
    "compare": "In a comparison",
    "alternatives": "Among alternatives",
    "why": "In why this token",
    "continuations": "In what could follow",
    "models": "Among the models",
    "step": "In step mode",
    "dials": "In the sampling",
    "personas": "Among personas",
    "full": "When the context is full",
    "reader": "In the reader of a text (inspect -i)",
    "rope": "In the model's positions",
    "settings": "In the settings",
    "help": "In this help",
}
DIALOG_CONTEXTS = tuple(CONTEXTS)[3:]
TYPED = ("composer", "everywhere", "chats", "models", "step", "help")  # contexts in which letters are text
KEY_SYMBOLS = {
    **{"enter": "⏎", "escape": "esc", "backspace": "⌫", "pageup": "PgUp", "pagedown": "PgDn"},
    **{"up": "↑", "down": "↓", "left": "←", "right": "→", "slash": "/", "backslash": "\\"},
    **{"left_square_bracket": "[", "right_square_bracket": "]", "minus": "-", "plus": "+"},
}
TRANSCRIPT = ("answer", "question", "sibling", "read", "alternative")


def shown(key: str, *, long: bool = False) -> str:
    """A key as text for the screen: ^x, F1, ⏎, =; long: ctrl+x."""
    *modifiers, name = key.split("+")
    name = KEY_SYMBOLS.get(name, name.upper() if name[0] == "f" and name[1:].isdecimal() else name)
    if "_" in name:  # equals_sign
        with suppress(KeyError):
            name = unicodedata.lookup(name.replace("_", " "))
    if modifiers == ["ctrl"] and not long:
        return f"^{name}"
    return "+".join([*modifiers, name])


@dataclass(frozen=True)
class Command:
    """One command. keys: as Textual names them, with commas; "" for a command that is only typed.

    action: of the transcript or dialog where its keys work; "" for commands that the app dispatches.
    typed: what follows a "/" to run it, with its arguments; needs_words: it does nothing without them.
    key_names: the keys in help texts, if these do not name all. both: what it and the next command do, in the
    help, which shows them in one line.
    """

    id: str
    keys: str
    label: str
    help: str
    action: str = ""
    typed: str = ""
    priority: bool = False
    needs_words: bool = False
    key_names: str = ""
    both: str = ""

    @property
    def slash(self) -> str:
        """Its typed name, without the "/"; "" without one."""
        return self.typed.partition(" ")[0]

    @property
    def arguments(self) -> str:
        """Its arguments, for the help."""
        return self.typed.partition(" ")[2]

    @property
    def shown(self) -> str:
        """Its keys as text for the screen."""
        return self.key_names or " ".join(shown(key) for key in self.keys.split(",") if key)

    @property
    def context(self) -> str:
        """Where its keys work: one of CONTEXTS, by the first part of the id."""
        place = self.id.partition(".")[0]
        if place in TRANSCRIPT:
            return "transcript"
        return place if place in CONTEXTS else "everywhere"


# --- in dialogs over the chat ---

COMMON = (
    Command(
        "sheet.leave", "escape,q", "back", "Back; q too, where nothing is typed", "leave", key_names="esc"
    ),
    Command("sheet.down", "down,j", "down", "Down", "move(1)"),
    Command("sheet.up", "up,k", "up", "Up", "move(-1)"),
)
CHATS = (
    Command("chats.rename", "ctrl+r", "rename", "Another title", "rename", priority=True),
    Command(
        "chats.delete", "ctrl+x", "delete", "Delete the chat, when pressed twice", "delete", priority=True
    ),
    Command("chats.undo", "ctrl+t", "undo", "Bring back the chat just deleted", "undo", priority=True),
)
BRANCHES = (
    Command("branches.mark", "space", "mark", "Mark an answer, to compare up to four", "mark", priority=True),
    Command("branches.compare", "equals_sign", "compare", "The marked ones side by side", "compare"),
    Command(
        "branches.delete",
        "ctrl+x,d",
        "delete",
        "Delete a branch, when pressed twice",
        "delete",
        priority=True,
        key_names="^x",
    ),
)
COMPARE = (
    Command("compare.left", "left,h", "left", "Choose the answer at the left", "choose(-1)"),
    Command("compare.right", "right,l", "right", "Choose the answer at the right", "choose(1)"),
    Command("compare.keep", "enter", "continue", "Continue with the chosen answer", "keep"),
    *(
        Command(f"compare.keep_{n}", str(n), "keep", "Continue with the answer of this number", f"keep({n})")
        for n in range(1, 10)
    ),
)
ALTERNATIVES = (
    Command(
        "alternatives.preview",
        "p,space",
        "preview",
        "Preview how it would continue",
        "preview",
        key_names="p",
    ),
)
WHY = (
    Command(
        "why.open",
        "enter,right,l",
        "open",
        "Show the parts of this part",
        "open",
        key_names="⏎ →",
        both="Show the parts of this part; go back to those it is among",
    ),
    Command("why.back", "left,h", "back", "Show the parts that this one is among", "back"),
    Command("why.only", "o", "only this", "Show what each part gives by itself, or takes away", "only"),
    Command("why.replace", "r", "replace", "Give a text that comes in the place of a part", "replace"),
    Command("why.go_on", "m", "go on", "Continue after it was stopped", "go_on"),
)
CONTINUATIONS = (
    Command(
        "continuations.open",
        "right,l",
        "open",
        "Open a path, or go to its first continuation",
        "unfold",
        both="Open a path, or go to its first continuation; close it, or go back",
    ),
    Command("continuations.close", "left,h", "close", "Close a path, or go back by a token", "fold"),
    Command(
        "continuations.take", "enter", "go on from here", "Continue from this path, in a new answer", "take"
    ),
    Command("continuations.drop", "x", "drop", "Leave a path out", "drop"),
    Command("continuations.undo", "u", "undo", "Bring back the path dropped last", "undo"),
    Command("continuations.more", "m", "more", "Find twice as many tokens", "more"),
)
MODELS = (
    Command("models.complete", "tab", "complete", "Complete a path or a name", "complete", priority=True),
    Command("models.pause", "ctrl+t", "pause", "Pause or resume the download", "pause", priority=True),
    Command("models.cancel", "ctrl+x", "cancel", "Cancel the download", "cancel", priority=True),
    Command(
        "models.delete",
        "ctrl+d",
        "delete",
        "Delete what was downloaded, pressed twice",
        "delete",
        priority=True,
    ),
)
STEP = (
    Command("step.drawn", "tab", "as drawn", "Take what the sampler would draw", "drawn", priority=True),
    Command("step.go_on", "ctrl+g", "go on", "Have the model go on from here", "go_on", priority=True),
)
DIALS = (
    Command("dials.less", "left,h", "less", "A step down", "step(-1)"),
    Command("dials.more", "right,l", "more", "A step up", "step(1)"),
    Command("dials.type", "enter", "type", "Type a value", "type"),
    Command("dials.greedy", "1", "greedy", "Always the most probable token", "preset('greedy')"),
    Command("dials.precise", "2", "precise", "Few surprises", "preset('precise')"),
    Command("dials.balanced", "3", "balanced", "Default values", "preset('balanced')"),
    Command("dials.creative", "4", "creative", "More surprises", "preset('creative')"),
    Command("dials.own", "5", "model", "What the model's maker recommends", "own"),
    Command("dials.all", "m", "all", "Show the settings that are off, too", "whole"),
    Command("dials.restore", "r", "reset", "Reset", "restore"),
)
PERSONAS = (
    Command("personas.name", "n", "name and keep", "Keep this system text under a name", "name"),
    Command(
        "personas.delete", "ctrl+x", "delete", "Delete a persona, when pressed twice", "delete", priority=True
    ),
)
FULL = (
    Command("full.larger", "l", "larger", "Load the model with a larger context", "choose('larger')"),
    Command("full.slide", "s", "leave out", "Leave out the oldest turns", "choose('slide')"),
    Command("full.always", "a", "always", "Do so from now on", "choose('always')"),
    Command("full.fresh", "f", "fresh", "Begin fresh from here", "choose('fresh')"),
    Command("full.end", "e", "the end", "Send only the end of a long text", "choose('end')"),
    Command("full.model", "m", "model", "Choose another model", "choose('model')"),
)
READER = (
    Command("reader.next", "right,l", "token", "The next token", "token(1)"),
    Command("reader.previous", "left,h", "token", "The token before", "token(-1)"),
    Command(
        "reader.surprise", "n", "next surprise", "The next token that surprised the model", "surprise(1)"
    ),
    Command("reader.surprise_before", "N", "surprise before", "The surprising token before", "surprise(-1)"),
    Command("reader.look_up", "slash", "look up", "How probable any string is in this place", "look_up"),
    Command(
        "reader.replace", "f", "replace", "Another text in this place; the rest is scored again", "replace"
    ),
    Command("reader.continue", "g", "continue", "How the model would go on from here", "continue"),
    Command("reader.why", "a", "why", "Show which parts of the text a token comes from", "why"),
    Command("reader.follow", "F", "what follows", "Show what else could stand here", "follow"),
    Command("reader.tint", "t", "tint", "Tint by surprisal, entropy or rank", "tint"),
    Command("reader.chart", "v", "chart", "Chart: how sure the model was at each token", "chart"),
    Command("reader.compare", "c", "compare", "A second model beside this one, or no longer", "compare"),
    Command("reader.export", "x", "export", "Write the scored or compared text as an HTML page", "export"),
    Command("reader.page_down", "pagedown,space", "page", "Scroll by a page", "page(1)"),
    Command("reader.page_up", "pageup", "page", "Scroll by a page", "page(-1)"),
    Command("reader.begin", "home", "begin", "To the beginning", "end(-1)"),
    Command("reader.end", "end,G", "end", "To the end", "end(1)"),
)
READER_ITEMS = (
    *("reader.surprise", "reader.look_up", "reader.replace", "reader.continue", "reader.why"),
    *("reader.follow", "reader.chart", "reader.tint", "reader.compare", "reader.export", "sheet.leave"),
)
ROPE = (
    Command("rope.left", "left,h", "view before", "The view before", "turn(-1)"),
    Command("rope.right", "right,l", "next view", "The next view", "turn(1)"),
    Command("rope.layer", "n", "layer", "The next layer of a view that shows one", "layer(1)"),
    Command("rope.layer_before", "N", "layer before", "The layer before", "layer(-1)"),
    Command("rope.head", "m", "head", "The next head", "head(1)"),
    Command("rope.head_before", "M", "head before", "The head before", "head(-1)"),
)
SETTINGS = (
    Command("settings.less", "left,h", "previous", "The previous choice", "step(-1)"),
    Command("settings.more", "right,l", "next", "The next choice", "step(1)"),
    Command(
        "settings.default", "ctrl+x", "default", "Remove it from the settings file", "default", priority=True
    ),
)
HELP = (
    Command(
        "help.page_down",
        "pagedown",
        "page",
        "A page on",
        "page(1)",
        both="A page on, or back",
    ),
    Command("help.page_up", "pageup", "page", "A page back", "page(-1)"),
)
DIALOGS = (
    *(*COMMON, *CHATS, *BRANCHES, *COMPARE, *ALTERNATIVES, *MODELS, *STEP, *DIALS, *PERSONAS, *FULL),
    *(*WHY, *CONTINUATIONS, *READER, *ROPE, *SETTINGS, *HELP),
)

# --- in the chat ---

WRITING = (  # handled by the composer
    Command("composer.send", "enter", "send", "Send what you wrote"),
    Command(
        "composer.newline",
        "ctrl+j,alt+enter,shift+enter",
        "newline",
        "New line; also \\ at a line's end",
        key_names="^j alt+⏎",
    ),
    Command(
        "composer.previous",
        "up",
        "earlier",
        "From the first line: what you sent before",
        both="In the first or last line: what you sent before, or after it",
    ),
    Command("composer.next", "down", "later", "From the last line: what you sent after it"),
    Command("composer.search", "ctrl+r", "search", "Search your earlier messages; again: older ones"),
    Command("composer.complete", "tab", "complete", "Complete a /command or an @file"),
    Command(
        "composer.page_up",
        "pageup",
        "scroll",
        "Scroll the transcript",
        both="Scroll the transcript; at the end: follow again",
    ),
    Command("composer.page_down", "pagedown", "scroll", "Scroll on; at the end: follow again"),
)
BRANCHING = (
    Command(
        "answer.regenerate",
        "r",
        "regenerate",
        "Regenerate the answer (keeps the old one)",
        typed="regen [1-4]",
        both="Regenerate the answer (keeps the old one); four at once",
    ),
    Command("answer.several", "R", "four answers", "Write four more answers, then compare"),
    Command("answer.resume", "c", "continue", "Continue the answer", typed="continue"),
    Command(
        "question.edit",
        "e",
        "edit",
        "Edit the question",
        typed="edit",
        both="Edit the question, or the answer",
    ),
    Command(
        "answer.thought",
        "t,ctrl+t",
        "thought",
        "Show or fold the thought; while it is written: answer now",
        typed="thought",
        key_names="t ^t",
        both="Show or fold the thought (while it is written: answer now), or all thoughts",
    ),
    Command("answer.thoughts", "z", "all thoughts", "Show or fold all thoughts", typed="thoughts"),
    Command("answer.now", "", "answer now", "End the thought, and answer", typed="now"),
    Command("answer.edit", "E", "edit answer", "Edit the answer", typed="rewrite"),
    Command("answer.fork", "f", "fork", "Fork: replace this token and continue", typed="fork [TOKEN]"),
    Command(
        "answer.step",
        "s",
        "step",
        "Take the tokens yourself, from this one on, or in a new answer",
        typed="step [QUESTION]",
    ),
    Command(
        "sibling.previous",
        "left_square_bracket",
        "previous answer",
        "Previous version of the answer",
        both="Previous or next version of the answer",
    ),
    Command("sibling.next", "right_square_bracket", "next answer", "Next version of the answer"),
    Command(
        "answer.compare",
        "equals_sign",
        "compare",
        "Compare versions of the answer side by side",
        typed="compare [NUMBER NUMBER ...]",
    ),
    Command(
        "answer.chart",
        "v",
        "chart",
        "Chart: how sure the model was at each token",
        typed="chart",
        both="Chart: how sure the model was at each token; with another version of the answer",
    ),
    Command("answer.chart_both", "V", "chart both", "Another version of the answer in the chart, or none"),
    Command("chat.branches", "f5", "branches", "All branches of this chat; compare up to four", typed="tree"),
)
PANELS = (
    Command(
        "model.pick",
        "f6",
        "models",
        "Load another model, or download one",
        typed="model [NAME]",
        priority=True,
    ),
    Command(
        "model.first",
        "ctrl+o",
        "real model",
        "Open the smallest model of the catalog",
        typed="get",
        priority=True,
    ),
    Command(
        "sampling.open",
        "f7",
        "sampling",
        "Change the sampling, and see the effect",
        typed="sampling [PRESET]",
        priority=True,
    ),
    Command("sampling.set", "", "set", "One setting of the sampler", typed="set [NAME [VALUE]]"),
    Command(
        "sampling.ban",
        "",
        "ban a token",
        "Never draw a token; alone: list the banned ones",
        typed="ban [TEXT | #ID]",
        needs_words=True,
    ),
    Command(
        "sampling.bias",
        "",
        "favour a token",
        "Make a token more or less likely; alone: list the changed ones",
        typed="bias [TEXT X | #ID X | off]",
        needs_words=True,
    ),
    Command(
        "sampling.think",
        "",
        "think",
        "Whether the model thinks before it answers, and for how many tokens",
        typed="think [on|off|low|medium|high|N|auto]",
        needs_words=True,
    ),
    Command(
        "sampling.seed",
        "",
        "seed",
        "Lock the newest answer's seed, or free it",
        typed="seed [N | lock | free]",
        needs_words=True,
    ),
    Command(
        "sampling.schema",
        "",
        "JSON schema",
        "Answers are JSON of this schema; off: any text",
        typed="schema [FILE | off]",
        needs_words=True,
    ),
    Command("prompt.persona", "", "personas", "System texts with a name", typed="persona [NAME | save NAME]"),
    Command(
        "prompt.system",
        "",
        "system text",
        "System text of the next question; - for none",
        typed="system [TEXT | -]",
    ),
    Command(
        "prompt.full",
        "",
        "full context",
        "What happens to a question that does not fit; N: another size of the context",
        typed="context [ask|slide|stop|N]",
        needs_words=True,
    ),
    Command("engine.facts", "f9", "facts", "Speed, cache and memory of the engine", typed="facts"),
    Command("model.rope", "", "positions", "What the model does with positions (RoPE)", typed="rope"),
)
READING = (  # keys of the transcript
    Command(
        "read.down",
        "j,down",
        "down",
        "Scroll; token below; next alternative",
        "row(1)",
        both="Scroll; token below or above; next or previous alternative",
    ),
    Command("read.up", "k,up", "up", "Scroll; token above; alternative before", "row(-1)"),
    Command(
        "read.left",
        "h,left",
        "token before",
        "To the token before",
        "token(-1)",
        both="To the token before, or to the next",
    ),
    Command("read.right", "l,right", "next token", "To the next token", "token(1)"),
    Command(
        "read.word",
        "w",
        "next word",
        "To the next word",
        "word(1)",
        both="To the next word, or to the word before",
    ),
    Command("read.back", "b", "word before", "To the word before", "word(-1)"),
    Command(
        "read.next",
        "n",
        "next surprise",
        "To the next match, or surprise",
        "next(1)",
        both="To the next or previous match, or surprise",
    ),
    Command("read.previous", "N", "surprise before", "To the match or surprise before", "next(-1)"),
    Command("read.take", "enter", "inspect", "Inspect this token; then: fork here"),
    *(
        Command(f"alternative.{n}", str(n), "fork", "Fork at the alternative of this number")
        for n in range(1, 10)
    ),
    Command("alternative.other", "o", "resample", "Resample this token"),
    Command("alternative.ban", "x", "ban", "Never draw this one again, or allow it again"),
    Command(
        "alternative.more",
        "plus",
        "favour",
        "Make it more likely in what comes",
        both="Make it more, or less, likely in what comes",
    ),
    Command("alternative.less", "minus", "disfavour", "Make it less likely in what comes"),
    Command("read.preview", "p", "preview", "Preview how the alternative would continue"),
    Command("read.details", "d", "details", "Id, bytes and the sampler's stages of this token"),
    Command("read.why", "a", "why", "Show which parts of the chat a token comes from", typed="why [WORDS]"),
    Command(
        "read.follow",
        "F",
        "what follows",
        "Show what could follow here",
        typed="continuations",
    ),
    Command("read.find", "slash", "find", "Find in this chat", "app.command('view.find')"),
    Command("read.tint", "T", "tint", "Change what the colours show"),
    Command("read.write", "i", "write", "Back to writing; the token stays in sight"),
    Command(
        "read.home",
        "g,home",
        "begin",
        "To the beginning",
        "scroll_home",
        key_names="g",
        both="To the beginning; to the end, and follow",
    ),
    Command("read.end", "G,end", "end", "Jump to the end and follow", "scroll_end", key_names="G"),
    Command(
        "read.page_down",
        "space,pagedown",
        "page down",
        "A page on",
        "page_down",
        key_names="space",
        both="A page on, or back",
    ),
    Command("read.page_up", "pageup", "page up", "A page back", "page_up"),
)
COMMANDS = (
    Command("composer.editor", "ctrl+g", "editor", "Write in $VISUAL or $EDITOR", typed="editor"),
    Command("chat.stop", "escape", "stop", "Stop, keeping the text; else: read, or write again"),
    Command("answer.stop", "", "stop", "Stop, keeping the text", typed="stop"),
    Command(
        "chat.interrupt",
        "ctrl+c",
        "stop",
        "Stop; copy a selection; clear the draft; twice: quit",
        priority=True,
    ),
    Command("chat.new", "ctrl+n", "new chat", "Begin a new chat", typed="new", priority=True),
    Command("chat.list", "f2", "chats", "Open, search, rename and delete chats", typed="open [WORDS]"),
    Command(
        "chat.rename", "", "rename", "Give this chat another title", typed="rename TITLE", needs_words=True
    ),
    Command(
        "chat.export",
        "",
        "export",
        "Write this chat to a file",
        typed="export md|json|html [FILE]",
        needs_words=True,
    ),
    Command(
        "chat.import",
        "",
        "import",
        "Import chats: of ropechat, ChatGPT, Open WebUI or llm",
        typed="import FILE",
        needs_words=True,
    ),
    Command("chat.delete", "", "delete", "Delete chats for good", typed="delete"),
    *BRANCHING,
    *PANELS,
    Command(
        "answer.copy",
        "y",
        "copy",
        "Copy the answer",
        typed="copy [code [N]|thought|all]",
        both="Copy the answer, or its last code block",
    ),
    Command("answer.copy_code", "Y", "copy code", "Copy the answer's last code block"),
    Command("view.toggle", "f3", "prose", "Tokens as they came, or Markdown as prose", typed="prose"),
    Command(
        "view.inspect",
        "f4",
        "inspect",
        "Inspect this token; with a file: read it, token by token",
        typed="inspect [FILE]",
    ),
    Command(
        "view.overview",
        "ctrl+l",
        "overview",
        "Chats, branches and more at the left of a wide screen",
        typed="overview",
    ),
    Command("view.tint", "", "tint on or off", "Tint on or off, or by another figure", typed="tint [NAME]"),
    Command("view.find", "ctrl+f", "find", "Find in this chat", typed="find [TEXT]"),
    Command("view.mouse", "f8", "mouse", "Give the mouse to the terminal, and take it back", typed="mouse"),
    Command("view.theme", "", "theme", "Change the colours", typed="theme"),
    Command(
        "app.settings",
        "",
        "settings",
        "Settings: values, where each comes from, and changes to the file",
        typed="settings",
    ),
    Command(
        "view.files", "", "attached files", "Show or fold the files attached to a question", typed="files"
    ),
    Command("app.palette", "ctrl+p", "commands", "All commands", priority=True),
    Command("app.help", "f1", "help", "List keys and commands", typed="help"),
    Command(
        "app.quit", "ctrl+q", "quit", "Quit at once; also ^d on an empty line", typed="quit", priority=True
    ),
)
ALL = (*WRITING, *COMMANDS, *READING, *DIALOGS)
BY_ID = {command.id: command for command in ALL}
BY_USE = (  # as the palette lists them; the others follow
    *("chat.new", "answer.regenerate", "answer.resume", "model.pick", "chat.list", "view.theme"),
    *("view.inspect", "answer.fork", "answer.compare", "chat.branches", "question.edit", "answer.edit"),
    *("sampling.open", "answer.copy", "chat.export", "prompt.system", "prompt.persona", "app.settings"),
    *("view.find", "app.help", "view.toggle", "read.tint", "answer.several", "chat.rename", "app.quit"),
)
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
            command.keys,
            command.action or f"app.command('{command.id}')",
            command.label,
            id=command.id,
            show=False,
            priority=command.priority,
        )
        for command in commands
        if command.keys
    ]


def by_slash(name: str) -> Command | None:
    """The command with this typed name, or None."""
    return next((command for command in ALL if name and command.slash == name), None)


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
    "thinking": "think",
    "tokens": "prose",
}


def names() -> list[str]:
    """The names of all typed commands."""
    return sorted(command.slash for command in ALL if command.slash)
