"""The question does not fit: what shall be left out?"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

if TYPE_CHECKING:
    from textual.app import ComposeResult

Choice = Literal["slide", "always", "fresh"]
CHOICES: dict[Choice, tuple[str, str]] = {
    "slide": ("leave out the oldest turns", "as few as leave room for an answer"),
    "always": ("do so from now on", "a line in the chat says each time how many"),
    "fresh": ("begin fresh from here", "the model reads this question only"),
}


class ContextScreen(ModalScreen["Choice | None"]):
    """Three ways to make it fit; esc gives the question back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", show=False),
        Binding("s", "dismiss('slide')", show=False),
        Binding("a", "dismiss('always')", show=False),
        Binding("f", "dismiss('fresh')", show=False),
        Binding("j", "app.simulate_key('down')", show=False),
        Binding("k", "app.simulate_key('up')", show=False),
    ]

    def __init__(self, tokens: int, context: int) -> None:
        super().__init__()
        self._words = f"{tokens:,} tokens do not fit in the context of {context:,}."

    def compose(self) -> ComposeResult:
        """What is the matter, the choices, the keys."""
        with Vertical(id="full", classes="sheet"):
            yield Static(Content.assemble(("The context is full. ", "bold $warning"), self._words))
            yield Static(Content.styled("Nothing was sent yet, and nothing is deleted.\n", "$quiet"))
            yield OptionList(*(self._option(choice) for choice in CHOICES), markup=False)
            yield Static(Content.styled("\n⏎ or s a f choose   esc back to the question", "$quiet"))

    def _option(self, choice: Choice) -> Option:
        what, note = CHOICES[choice]
        return Option(
            Content.assemble((f"{choice[0]}  ", "$primary"), what.ljust(29), (note, "$quiet")), id=choice
        )

    def on_mount(self) -> None:
        """Keys choose."""
        self.query_one(OptionList).focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Done."""
        self.dismiss(next(choice for choice in CHOICES if choice == event.option_id))
