"""The dialog of the alternatives to a token; choosing one forks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from ropechat.conversation import spoken, surprisal_bits
from ropechat.tui.screens.dialog import ChoiceList, Dialog, bindings
from ropechat.tui.widgets.inspector import draw_bar, probability
from ropechat.util.text import one_line, visible
from ropechat.util.width import fit

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult

    from ropechat.chat import events as ev
    from ropechat.conversation import Node
    from ropechat.tui.commands.keymap import Keymap

# (node, token index, id, callback for the result); False: busy
AskPreview: TypeAlias = "Callable[[str, int, int, Callable[[ev.PreviewReady], None]], bool]"
BAR = 24  # cells of the longest bar


class ForkScreen(Dialog["int | None"]):
    """The recorded alternatives of one token, most probable first; the result is the chosen id."""

    BINDINGS = bindings("alternatives", "answer.fork")
    context = "alternatives"
    heading = "alternatives"
    items = (("⏎", "fork here"), "alternatives.preview", "sheet.leave")

    def __init__(
        self, node: Node, index: int, keymap: Keymap, spell: Callable[[int], str], preview: AskPreview
    ) -> None:
        super().__init__(keymap)
        self._node, self._index = node, index
        self._spell, self._preview = spell, preview
        self._step = node.steps[index]

    def compose(self) -> ComposeResult:
        with Vertical(id="fork", classes="sheet"):
            yield ChoiceList(*map(self._option, self._step.top), id="alternatives", markup=False)
            yield Static(id="preview", markup=False)
            yield self.key_hints

    def _option(self, candidate: tuple[int, float]) -> Option:
        id, logprob = candidate
        share = math.exp(logprob)
        shown = visible(self._step.bytes) if id == self._step.id else self._spell(id)
        return Option(
            Content.assemble(
                ("● " if id == self._step.id else "  ", "$primary"),
                fit(one_line(shown), 22),
                f" {probability(share):>6} ",
                (draw_bar(math.exp(logprob - self._step.top[0][1]), BAR), "$primary"),
            ),
            id=str(id),
        )

    def on_mount(self) -> None:
        """Begin at the most probable other token."""
        step = self._step
        place = f"token {self._index + 1} of {len(self._node.steps)}"
        self.title_with(f"{place} · {surprisal_bits(step):.1f} bits · rank {step.rank or '?'}")
        options = self.query_one(OptionList)
        ids = [id for id, _ in step.top]
        options.highlighted = 1 if ids[0] == step.id and len(ids) > 1 else 0
        options.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(int(event.option_id or 0))

    def action_preview(self) -> None:
        """Preview the chosen alternative."""
        chosen = self.query_one(OptionList).highlighted
        if chosen is not None:
            asked = self._preview(self._node.id, self._index, self._step.top[chosen][0], self._show)
            self.query_one("#preview", Static).update(Content("…" if asked else "the model is busy"))

    def _show(self, event: ev.PreviewReady) -> None:
        text = f"greedy: {one_line(''.join(map(spoken, event.steps)))}"
        if self.is_attached:
            self.query_one("#preview", Static).update(Content(event.error or text))
