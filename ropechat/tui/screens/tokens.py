"""The dialog that chooses one of several tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from ropechat.tui.screens.dialog import ChoiceList, Dialog
from ropechat.util.text import one_line
from ropechat.util.width import fit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.app import ComposeResult

    from ropechat.tui.commands.keymap import Keymap

SPELLED = 24  # cells of a token


class TokensScreen(Dialog["int | None"]):
    """A list of tokens with notes; the result is the id of the chosen one."""

    heading = "tokens"

    def __init__(
        self,
        title: str,
        note: str,
        tokens: Sequence[tuple[int, str]],
        keymap: Keymap,
        spell: Callable[[int], str],
        *,
        does: str = "choose",
    ) -> None:
        """does: what happens to the chosen one, in a word."""
        super().__init__(keymap)
        self.key_hints.show_keys((("↓ ↑", "token"), ("⏎", does), "sheet.leave"))
        self._spell = spell
        self._title, self._note, self._tokens = title, note, tokens

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet"):
            yield Static(Content.styled(f"{self._note}\n", "$quiet"), markup=False)
            yield ChoiceList(*(self._option(*token) for token in self._tokens), markup=False)
            yield self.key_hints

    def _option(self, id: int, words: str) -> Option:
        spelled = self._spell(id)
        return Option(
            Content.assemble(f"  {fit(one_line(spelled), SPELLED)}", (f"#{id:<8}", "$quiet"), f"  {words}"),
            id=str(id),
        )

    def on_mount(self) -> None:
        self.title_with(self._title)
        self.query_one(OptionList).focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(int(event.option_id or 0))
