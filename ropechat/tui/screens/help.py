"""The keys and commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from ropechat.tui.keys import ALL, CONTEXTS

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from ropechat.tui.keymap import Keymap

FACTS = (
    "Tinted tokens surprised the model: the stronger the tint, the less probable the token was.",
    "Everything is counted exactly: the gauge is what the model was fed, nothing is cut off in silence.",
    'Other keys: the table [keys] of `ropechat config path`, as in "chat.new" = "ctrl+o".',
)


class HelpScreen(ModalScreen[None]):
    """Keys and what they do; any of the usual keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q,enter", "dismiss", show=False)]

    def __init__(self, keymap: Keymap, context: str) -> None:
        super().__init__()
        self._keymap = keymap
        self._contexts = sorted(CONTEXTS, key=lambda name: name != context)  # the one at hand first

    def compose(self) -> ComposeResult:
        """One scrolling sheet: keys by place, then what can be typed."""
        rows: list[Content] = []
        for context in self._contexts:
            found = [one for one in ALL if one.context == context and one.keys]
            rows += _table(CONTEXTS[context], [(self._keymap.shown(one.id), one.help) for one in found])
        typed = [one for one in ALL if one.slash]
        rows += _table("Typed", [(f"/{one.slash} {one.arguments}", one.help) for one in typed])
        rows.extend(Content.styled(fact, "$quiet") for fact in FACTS)
        rows += [Content(""), Content.assemble(("esc", "$primary"), (" back", "$quiet"))]
        with VerticalScroll(id="help"):
            yield Static(Content("\n").join(rows), markup=False)

    def on_mount(self) -> None:
        """Make arrow keys scroll."""
        self.query_one("#help").focus()


def _table(title: str, rows: list[tuple[str, str]]) -> list[Content]:
    widest = max(cell_len(left) for left, _ in rows)
    made = [Content.styled(title, "bold $primary")]
    for left, right in rows:
        gap = " " * (widest + 2 - cell_len(left))
        made.append(Content.assemble((left + gap, "bold"), right))
    return [*made, Content("")]
