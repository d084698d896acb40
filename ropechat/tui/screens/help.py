"""The list of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from ropechat.tui.keys import COMMANDS

if TYPE_CHECKING:
    from textual.app import ComposeResult

FACTS = (
    "Tinted tokens surprised the model: the stronger the tint, the less probable the token was.",
    "Everything is counted exactly: the gauge is what the model was fed, nothing is cut off in silence.",
)


class HelpScreen(ModalScreen[None]):
    """Keys and what they do; any of the usual keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q,enter", "dismiss", show=False)]

    def compose(self) -> ComposeResult:
        """One scrolling sheet."""
        widest = max(len(command.shown) for command in COMMANDS)
        rows: list[Content] = [Content.styled("Keys", "bold $primary"), Content("")]
        for command in COMMANDS:
            key = Content.styled(command.shown.ljust(widest + 2), "bold")
            rows.append(Content.assemble(key, command.help))
        rows.append(Content(""))
        rows.extend(Content.styled(fact, "$quiet") for fact in FACTS)
        rows += [Content(""), Content.assemble(("esc", "$primary"), (" back", "$quiet"))]
        with VerticalScroll(id="help"):
            yield Static(Content("\n").join(rows), markup=False)

    def on_mount(self) -> None:
        """Make arrow keys scroll."""
        self.query_one("#help").focus()
