"""What the engine did and what it takes up."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from ropechat.tui import facts

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.timer import Timer

    from ropechat.tui.session import Session

SHOWN = 0.5  # seconds between two looks while an answer is written


class FactsScreen(ModalScreen[None]):
    """The newest answer and the memory beside the model; below each other where it is narrow."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f9,q,enter", "dismiss", show=False)]

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        """Two columns."""
        with Vertical(id="facts", classes="sheet"):
            with VerticalScroll(can_focus=True), Horizontal(id="columns"):
                yield Static(id="doing", markup=False)
                yield Static(id="being", markup=False)
            yield Static(Content.styled("esc back", "$quiet"))

    def on_mount(self) -> None:
        """Look again while something happens."""
        self._show()
        if self._session.generating:
            self._timer = self.set_interval(SHOWN, self._show)
        self.query_one(VerticalScroll).focus()

    def _show(self) -> None:
        if self._timer is not None and not self._session.generating:
            self._timer.stop()
        last = self._session.last
        doing = [self._table("Newest answer", facts.answer_rows(last.answer))] if last else []
        doing.append(self._table("Memory", facts.memory_rows(self._session)))
        self.query_one("#doing", Static).update(Content("\n\n").join(doing))
        self.query_one("#being", Static).update(self._table("Model", facts.model_rows(self._session)))

    @staticmethod
    def _table(title: str, found: facts.Rows) -> Content:
        width = max(len(name) for name, _ in found) + 2
        lines = [Content.assemble((name.ljust(width), "$quiet"), value) for name, value in found]
        return Content("\n").join([Content.styled(title, "bold $primary"), *lines])
