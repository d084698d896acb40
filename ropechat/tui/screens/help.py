"""The keys and commands."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.cells import cell_len
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from ropechat.tui.commands.registry import ALL, CONTEXTS
from ropechat.tui.screens.dialog import Dialog, bindings

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from ropechat.tui.commands.keymap import Keymap

FACTS = (
    "Coloured words surprised the model: the stronger the colour, the less probable the token was.",
    "Everything is counted exactly: the gauge is what the model was fed, nothing is cut off silently.",
    '@notes.md attaches a text file, @"my notes.md" one with spaces in its name; @@notes.md is only text.',
    'Other keys: the table [keys] of `ropechat config path`, as in "chat.new" = "ctrl+o".',
)


class HelpScreen(Dialog[None]):
    """Keys and commands, those of the current context first."""

    BINDINGS = bindings("help", "app.help")
    heading = "help"
    items = (("↓ ↑", "scroll"), "sheet.leave")

    def __init__(self, keymap: Keymap, context: str) -> None:
        super().__init__(keymap)
        self._contexts = sorted(CONTEXTS, key=lambda name: name != context)

    def compose(self) -> ComposeResult:
        tables = {CONTEXTS[context]: self._keys(context) for context in self._contexts}
        widest = max(cell_len(left) for table in tables.values() for left, _ in table)
        parts = [_table(title, table, widest) for title, table in tables.items()]
        typed = [(f"/{one.slash} {one.arguments}", one.help) for one in ALL if one.slash]
        parts.append(_table("Typed", typed, max(cell_len(left) for left, _ in typed)))
        parts.append([Content.styled(fact, "$quiet") for fact in FACTS])
        with Vertical(classes="sheet whole broad"):
            with VerticalScroll(id="help"), Horizontal(classes="columns"):
                for column in halves(parts):
                    yield Static(Content("\n").join(column), markup=False)
            yield self.key_hints

    def _keys(self, context: str) -> list[tuple[str, str]]:
        """(keys, help) rows; commands with the same help share one."""
        found = [one for one in ALL if one.context == context and one.keys]
        rows = []
        for help, same in groupby(found, key=lambda one: one.help):
            shown = [self.keymap.shown(one.id) for one in same]
            rows.append((f"{shown[0]} … {shown[-1]}" if len(shown) > 2 else " ".join(shown), help))
        return rows

    def on_mount(self) -> None:
        """Make arrow keys scroll."""
        self.query_one("#help").focus()


def halves(parts: list[list[Content]]) -> list[list[Content]]:
    """The parts in two columns of about the same height."""
    total = sum(map(len, parts))
    columns: list[list[Content]] = [[], []]
    for part in parts:
        columns[2 * len(columns[0]) >= total] += part
    return columns


def _table(title: str, rows: list[tuple[str, str]], widest: int) -> list[Content]:
    made = [Content.styled(title, "bold $primary")]
    for left, right in rows:
        gap = " " * (widest + 2 - cell_len(left))
        made.append(Content.assemble((left + gap, "bold"), right))
    return [*made, Content("")]
