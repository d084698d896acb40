"""The commands of what opens over the chat: the keys that work in each sheet."""

from __future__ import annotations

from ropechat.tui.commands.command import Command
from ropechat.tui.format.lists import MAX_COMPARED

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
    Command("compare.keep", "enter", "⏎", "go on with it", "Go on with the chosen answer", "keep"),
    *(
        Command(
            f"compare.keep_{n}", str(n), str(n), "keep", "Go on with the answer of this number", f"keep({n})"
        )
        for n in range(1, MAX_COMPARED + 1)
    ),
)
ALTERNATIVES = (Command("alternatives.preview", "p,space", "p", "preview", "How it would go on", "preview"),)
MODELS = (
    Command("models.pause", "ctrl+t", "^t", "pause", "Pause the download, or go on", "pause", True),
    Command("models.cancel", "ctrl+x", "^x", "cancel", "Cancel the download", "cancel", True),
    Command(
        "models.delete", "ctrl+d", "^d", "delete", "Delete what was downloaded, pressed twice", "delete", True
    ),
)
DIALS = (
    Command("dials.less", "left,h", "← h", "less", "A step down", "step(-1)"),
    Command("dials.more", "right,l", "→ l", "more", "A step up", "step(1)"),
    Command("dials.type", "enter", "⏎", "type", "Type a value", "type"),
    Command("dials.greedy", "1", "1", "greedy", "Always the best token", "preset('greedy')"),
    Command("dials.precise", "2", "2", "precise", "Few surprises", "preset('precise')"),
    Command("dials.balanced", "3", "3", "balanced", "As at first", "preset('balanced')"),
    Command("dials.creative", "4", "4", "creative", "More surprises", "preset('creative')"),
    Command("dials.restore", "r", "r", "as it was", "As it was before", "restore"),
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
ALL = (*COMMON, *CHATS, *BRANCHES, *COMPARE, *ALTERNATIVES, *MODELS, *DIALS, *PERSONAS, *FULL)
