"""All commands, once: keys, footer, help, palette and typed commands come from these lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.binding import Binding

from ropechat.tui.format.lists import MAX_COMPARED

if TYPE_CHECKING:
    from collections.abc import Iterable

CONTEXTS = {
    "composer": "In the composer",
    "transcript": "In the transcript (letters: while READING is shown)",
    "everywhere": "Everywhere",
    "sheet": "In every sheet over the chat",
    "chats": "Among the chats",
    "branches": "Among the branches",
    "compare": "In a comparison",
    "alternatives": "Among alternatives",
    "models": "Among the models",
    "dials": "In the sampling",
    "personas": "Among personas",
    "full": "When the context is full",
    "rope": "In the model's positions",
}
SHEETS = tuple(CONTEXTS)[3:]
TYPED = ("composer", "everywhere", "chats", "models")  # where a letter is text
TRANSCRIPT = ("answer", "question", "sibling", "read", "alternative")


@dataclass(frozen=True)
class Command:
    """One command. action: of the transcript or dialog where its keys work; the app's commands have none.

    keys: as Textual names them; none for a command that is only typed. shown: how people read them.
    slash: what is typed for it behind a "/"; arguments: what may follow, for the help; needs_words: it does
    nothing without them.
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
    needs_words: bool = False

    @property
    def context(self) -> str:
        """Where its keys work: one of CONTEXTS, by the first part of the id."""
        place = self.id.partition(".")[0]
        if place in TRANSCRIPT:
            return "transcript"
        return place if place in CONTEXTS else "everywhere"


# --- in dialogs over the chat ---

COMMON = (
    Command("sheet.leave", "escape,q", "esc", "back", "Back; q too, where nothing is typed", "leave"),
    Command("sheet.down", "down,j", "↓ j", "down", "Down", "move(1)"),
    Command("sheet.up", "up,k", "↑ k", "up", "Up", "move(-1)"),
)
CHATS = (
    Command("chats.rename", "ctrl+r", "^r", "rename", "Another title", "rename", True),
    Command("chats.delete", "ctrl+x", "^x", "delete", "Delete the chat, when pressed twice", "delete", True),
)
BRANCHES = (
    Command("branches.mark", "space", "space", "mark", "Mark an answer, to compare up to four", "mark", True),
    Command("branches.compare", "equals_sign", "=", "compare", "The marked ones side by side", "compare"),
    Command(
        "branches.delete", "ctrl+x,d", "^x", "delete", "Delete a branch, when pressed twice", "delete", True
    ),
)
COMPARE = (
    Command("compare.left", "left,h", "← h", "left", "Choose the answer at the left", "choose(-1)"),
    Command("compare.right", "right,l", "→ l", "right", "Choose the answer at the right", "choose(1)"),
    Command("compare.keep", "enter", "⏎", "go on with it", "Continue with the chosen answer", "keep"),
    *(
        Command(
            f"compare.keep_{n}",
            str(n),
            str(n),
            "keep",
            "Continue with the answer of this number",
            f"keep({n})",
        )
        for n in range(1, MAX_COMPARED + 1)
    ),
)
ALTERNATIVES = (
    Command("alternatives.preview", "p,space", "p", "preview", "Preview how it would continue", "preview"),
)
MODELS = (
    Command("models.pause", "ctrl+t", "^t", "pause", "Pause or resume the download", "pause", True),
    Command("models.cancel", "ctrl+x", "^x", "cancel", "Cancel the download", "cancel", True),
    Command(
        "models.delete", "ctrl+d", "^d", "delete", "Delete what was downloaded, pressed twice", "delete", True
    ),
)
DIALS = (
    Command("dials.less", "left,h", "← h", "less", "A step down", "step(-1)"),
    Command("dials.more", "right,l", "→ l", "more", "A step up", "step(1)"),
    Command("dials.type", "enter", "⏎", "type", "Type a value", "type"),
    Command("dials.greedy", "1", "1", "greedy", "Always the most probable token", "preset('greedy')"),
    Command("dials.precise", "2", "2", "precise", "Few surprises", "preset('precise')"),
    Command("dials.balanced", "3", "3", "balanced", "Default values", "preset('balanced')"),
    Command("dials.creative", "4", "4", "creative", "More surprises", "preset('creative')"),
    Command("dials.restore", "r", "r", "as it was", "Reset", "restore"),
)
PERSONAS = (
    Command("personas.name", "n", "n", "name and keep", "Keep this system text under a name", "name"),
    Command(
        "personas.delete", "ctrl+x", "^x", "delete", "Delete a persona, when pressed twice", "delete", True
    ),
)
FULL = (
    Command("full.slide", "s", "s", "leave out", "Leave out the oldest turns", "choose('slide')"),
    Command("full.always", "a", "a", "always", "Do so from now on", "choose('always')"),
    Command("full.fresh", "f", "f", "fresh", "Begin fresh from here", "choose('fresh')"),
)
ROPE = (
    Command("rope.left", "left,h", "← h", "view before", "The view before", "turn(-1)"),
    Command("rope.right", "right,l", "→ l", "next view", "The next view", "turn(1)"),
)
DIALOGS = (*COMMON, *CHATS, *BRANCHES, *COMPARE, *ALTERNATIVES, *MODELS, *DIALS, *PERSONAS, *FULL, *ROPE)

# --- in the chat ---

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
    Command("composer.search", "ctrl+r", "^r", "search", "Search your earlier messages; again: older ones"),
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
        "Regenerate the answer (keeps the old one)",
        slash="regen",
        arguments="[1-4]",
    ),
    Command("answer.several", "R", "R", "four answers", "Write four more answers, then compare"),
    Command("answer.resume", "c", "c", "continue", "Continue the answer", slash="continue"),
    Command("question.edit", "e", "e", "edit", "Edit the question", slash="edit"),
    Command("answer.edit", "E", "E", "edit answer", "Edit the answer", slash="rewrite"),
    Command(
        "answer.fork",
        "f",
        "f",
        "fork",
        "Fork: replace this token and continue",
        slash="fork",
        arguments="[TOKEN]",
    ),
    Command(
        "sibling.previous", "left_square_bracket", "[", "previous answer", "Previous version of the answer"
    ),
    Command("sibling.next", "right_square_bracket", "]", "next answer", "Next version of the answer"),
    Command(
        "answer.compare",
        "equals_sign",
        "=",
        "compare",
        "Compare versions of the answer side by side",
        slash="compare",
        arguments="[NUMBER NUMBER ...]",
    ),
    Command(
        "chat.branches", "f5", "F5", "branches", "All branches of this chat; compare up to four", slash="tree"
    ),
)
PANELS = (
    Command(
        "model.pick",
        "f6",
        "F6",
        "models",
        "Load another model, or download one",
        priority=True,
        slash="model",
        arguments="[NAME]",
    ),
    Command(
        "sampling.open",
        "f7",
        "F7",
        "sampling",
        "Change the sampling, and see the effect",
        priority=True,
        slash="sampling",
        arguments="[PRESET]",
    ),
    Command(
        "sampling.set", "", "", "set", "One setting of the sampler", slash="set", arguments="[NAME [VALUE]]"
    ),
    Command(
        "sampling.ban",
        "",
        "",
        "ban a token",
        "Never draw a token; alone: list the banned ones",
        slash="ban",
        arguments="[TEXT | #ID]",
        needs_words=True,
    ),
    Command(
        "sampling.bias",
        "",
        "",
        "favour a token",
        "Make a token more or less likely; alone: list the changed ones",
        slash="bias",
        arguments="[TEXT X | #ID X | off]",
        needs_words=True,
    ),
    Command(
        "sampling.seed",
        "",
        "",
        "seed",
        "Lock the newest answer's seed, or free it",
        slash="seed",
        arguments="[N | lock | free]",
        needs_words=True,
    ),
    Command(
        "prompt.persona",
        "",
        "",
        "personas",
        "System texts with a name",
        slash="persona",
        arguments="[NAME | save NAME]",
    ),
    Command(
        "prompt.system",
        "",
        "",
        "system text",
        "System text of the next question; - for none",
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
        needs_words=True,
    ),
    Command("engine.facts", "f9", "F9", "facts", "Speed, cache and memory of the engine", slash="facts"),
    Command("model.rope", "", "", "positions", "What the model does with positions (RoPE)", slash="rope"),
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
    Command("read.take", "enter", "⏎", "inspect", "Inspect this token; then: fork here", "take"),
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
    Command("alternative.other", "o", "o", "another", "Resample this token", "other"),
    Command("alternative.ban", "x", "x", "ban", "Never draw this one again, or allow it again", "bias(-100)"),
    Command("alternative.more", "plus", "+", "favour", "Make it more likely in what comes", "bias(1)"),
    Command("alternative.less", "minus", "-", "disfavour", "Make it less likely in what comes", "bias(-1)"),
    Command("read.preview", "p", "p", "preview", "Preview how the alternative would continue", "ask_preview"),
    Command("read.find", "slash", "/", "find", "Find in this chat", "app.command('view.find')"),
    Command("read.tint", "T", "T", "tint", "Change what the colours show", "app.command('read.tint')"),
    Command(
        "read.write",
        "i",
        "i",
        "write",
        "Back to writing; the token stays in sight",
        "app.command('read.write')",
    ),
    Command("read.home", "g,home", "g", "begin", "To the beginning", "scroll_home"),
    Command("read.end", "G,end", "G", "end", "Jump to the end and follow", "scroll_end"),
    Command("read.page_down", "space,pagedown", "space", "page down", "A page on", "page_down"),
    Command("read.page_up", "pageup", "PgUp", "page up", "A page back", "page_up"),
)
COMMANDS = (
    Command("composer.editor", "ctrl+g", "^g", "editor", "Write in $VISUAL or $EDITOR", slash="editor"),
    Command("chat.stop", "escape", "esc", "stop", "Stop, keeping the text; else: to the transcript and back"),
    Command(
        "answer.stop",
        "",
        "",
        "stop",
        "Stop, keeping the text; else: to the transcript and back",
        slash="stop",
    ),
    Command(
        "chat.interrupt",
        "ctrl+c",
        "^c",
        "stop",
        "Stop; copy a selection; clear the draft (↑ brings it back); twice: quit",
        priority=True,
    ),
    Command("chat.new", "ctrl+n", "^n", "new chat", "Begin a new chat", priority=True, slash="new"),
    Command(
        "chat.list",
        "f2",
        "F2",
        "chats",
        "Open, search, rename and delete chats",
        slash="open",
        arguments="[WORDS]",
    ),
    Command(
        "chat.rename",
        "",
        "",
        "rename",
        "Give this chat another title",
        slash="rename",
        arguments="TITLE",
        needs_words=True,
    ),
    Command(
        "chat.export",
        "",
        "",
        "export",
        "Write this chat to a file",
        slash="export",
        arguments="md|json|html [FILE]",
        needs_words=True,
    ),
    Command(
        "chat.import",
        "",
        "",
        "import",
        "Open a chat that was exported as json",
        slash="import",
        arguments="FILE",
        needs_words=True,
    ),
    Command("chat.delete", "", "", "delete", "Delete chats for good", slash="delete"),
    *BRANCHING,
    *PANELS,
    Command("answer.copy", "y", "y", "copy", "Copy the answer", slash="copy", arguments="[code|all]"),
    Command("answer.copy_code", "Y", "Y", "copy code", "Copy the answer's last code block"),
    Command("view.toggle", "f3", "F3", "prose", "Tokens as they came, or Markdown as prose", slash="prose"),
    Command("view.inspect", "f4", "F4", "inspect", "Inspect this token", slash="inspect"),
    Command(
        "view.overview",
        "ctrl+l",
        "^l",
        "overview",
        "Chats, branches, personas and sampling at the left of a wide screen",
        slash="overview",
    ),
    Command(
        "view.tint",
        "",
        "",
        "tint on or off",
        "Tint on or off, or by another figure",
        slash="tint",
        arguments="[NAME]",
    ),
    Command("view.find", "ctrl+f", "^f", "find", "Find in this chat", slash="find", arguments="[TEXT]"),
    Command(
        "view.mouse", "f8", "F8", "mouse", "Give the mouse to the terminal, and take it back", slash="mouse"
    ),
    Command("view.theme", "", "", "theme", "Change the colours", slash="theme"),
    Command("app.palette", "ctrl+p", "^p", "commands", "All commands", priority=True),
    Command("app.help", "f1", "F1", "help", "List keys and commands", slash="help"),
    Command(
        "app.quit",
        "ctrl+q",
        "^q",
        "quit",
        "Quit at once; also ^d on an empty line",
        priority=True,
        slash="quit",
    ),
)
ALL = (*WRITING, *COMMANDS, *READING, *DIALOGS)
BY_ID = {command.id: command for command in ALL}
NO_PALETTE = ("chat.interrupt", "answer.stop", "app.palette", *(f"alternative.{n}" for n in range(1, 10)))
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
            command.action or f"command('{command.id}')",
            command.label,
            id=command.id,
            show=False,
            priority=command.priority,
        )
        for command in commands
        if command.keys
    ]


def by_slash(name: str) -> Command | None:
    """The command that is typed so."""
    return next((command for command in ALL if command.slash == name), None)
