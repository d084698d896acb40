"""The dialog for a question that does not fit in the context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from ropechat.tui.screens.dialog import ChoiceList, Dialog, bindings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from textual.app import ComposeResult

    from ropechat.tui.commands.keymap import Keymap

Choice = Literal["larger", "slide", "always", "fresh", "end", "model", "back"]
Offer = tuple[str, str]  # what is done, and a note
TURNS: Mapping[Choice, Offer] = {  # where leaving out turns helps
    "slide": ("leave out the oldest turns", "only as many as an answer needs"),
    "always": ("always leave out the oldest", "a line in the chat says each time how many"),
    "fresh": ("begin fresh from here", "the model reads this question only"),
}
MODEL: Mapping[Choice, Offer] = {"model": ("choose another model", "one with a larger context")}


class ContextScreen(Dialog["Choice | None"]):
    """Ways that make it fit; esc gives the question back. offers: the ways, in their order."""

    BINDINGS = bindings("full")
    context = "full"
    heading = "the context is full"
    items = (("⏎", "choose"), ("esc", "back to the question"))

    def __init__(self, tokens: int, context: int, keymap: Keymap, offers: Mapping[Choice, Offer]) -> None:
        super().__init__(keymap)
        self._words = f"{tokens:,} tokens do not fit in the context of {context:,}."
        self._offers = offers

    def compose(self) -> ComposeResult:
        with Vertical(id="full", classes="sheet"):
            yield Static(self._words)
            yield Static(Content.styled("Nothing was sent yet, and nothing is deleted.\n", "$quiet"))
            yield ChoiceList(*(self._option(choice) for choice in self._offers), markup=False)
            yield self.key_hints

    def _option(self, choice: Choice) -> Option:
        what, note = self._offers[choice]
        key = self.keymap.first(f"full.{choice}")
        narrow = self.app.size.width < 76
        widest = max(len(what) for what, _ in self._offers.values()) + 2
        return Option(
            Content.assemble(
                (f"{key}  ", "$primary"), what.ljust(widest), ("" if narrow else note, "$quiet")
            ),
            id=choice,
        )

    def action_choose(self, choice: Choice) -> None:
        if choice in self._offers:
            self.dismiss(choice)

    def action_leave(self) -> None:
        self.dismiss("back")

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(next(choice for choice in self._offers if choice == event.option_id))
