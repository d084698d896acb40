"""What else could have stood at a place of an answer; choosing forks there."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, cast

from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from ropechat.text import fit, one_line
from ropechat.tree import bits

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from ropechat.tree import Node
    from ropechat.tui import events as ev
    from ropechat.tui.app import ChatApp

BAR = 16  # cells of the bar of probability 1


class ForkScreen(ModalScreen["int | None"]):
    """The recorded alternatives of one token, most probable first; the result is the chosen id."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", show=False),
        Binding("p,space", "preview", show=False),
    ]

    def __init__(self, node: Node, index: int) -> None:
        super().__init__()
        self._node, self._index = node, index
        self._step = node.steps[index]

    @property
    def _app(self) -> ChatApp:
        return cast("ChatApp", self.app)

    def _text(self, id: int) -> str:
        if id == self._step.id:
            return self._step.bytes.decode("utf-8", "replace")
        info = self._app.session.info
        return "" if info is None else info.token_bytes(id).decode("utf-8", "replace")

    def compose(self) -> ComposeResult:
        """A line of facts, the alternatives, a preview."""
        step = self._step
        place = f"token {self._index + 1} of {len(self._node.steps)}"
        facts = f"{place}  {bits(step):.1f} bits  rank {step.rank or '?'}"
        with Vertical(id="fork", classes="sheet"):
            yield Static(Content.styled(facts, "$quiet"))
            yield OptionList(*map(self._option, step.top), id="alternatives", markup=False)
            yield Static(Content(""), id="preview")
            yield Static(Content.styled("⏎ fork here   p preview   esc back", "$quiet"))

    def _option(self, candidate: tuple[int, float]) -> Option:
        id, logprob = candidate
        probability = math.exp(logprob)
        mark = "●" if id == self._step.id else " "
        bar = "█" * round(BAR * probability) or "▏"
        line = f"{mark} {fit(one_line(repr(self._text(id))[1:-1]), 22)} {probability:6.3f} {bar}"
        return Option(Content(line), id=str(id))

    def on_mount(self) -> None:
        """Begin at the most probable other token."""
        options = self.query_one(OptionList)
        ids = [id for id, _ in self._step.top]
        options.highlighted = 1 if ids[0] == self._step.id and len(ids) > 1 else 0
        options.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Fork."""
        self.dismiss(int(event.option_id or 0))

    def action_preview(self) -> None:
        """How would it go on?"""
        chosen = self.query_one(OptionList).highlighted
        if chosen is not None:
            asked = self._app.preview(self._node.id, self._index, self._step.top[chosen][0], self._show)
            self.query_one("#preview", Static).update(Content("…" if asked else "the model is busy"))

    def _show(self, event: ev.Previewed) -> None:
        text = "".join(step.text for step in event.steps)
        if self.is_attached:
            self.query_one("#preview", Static).update(Content(f"greedy: {one_line(text)}"))
