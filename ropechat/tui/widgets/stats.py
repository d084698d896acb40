"""The engine's figures as tables, below or next to each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from ropechat.tui.format import stats as facts
from ropechat.tui.render.wrap import wrap

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from ropechat.chat.session import Session

NAMES = 15  # cells of the left column


class EngineFacts(VerticalScroll):
    """The newest answer and the memory; the model next to or below them."""

    def __init__(self, session: Session, *, id: str | None = None) -> None:
        super().__init__(id=id, classes="engine", can_focus=False)
        self.border_title = Content(" facts ")
        self._session = session
        self._doing, self._being = Static(markup=False), Static(markup=False)

    def compose(self) -> ComposeResult:
        with Horizontal(classes="columns"):
            yield self._doing
            yield self._being

    def on_resize(self) -> None:
        self.redraw()

    def redraw(self) -> None:
        """Update the figures."""
        last = self._session.last
        doing = [self._table("Newest answer", facts.answer_rows(last.answer))] if last else []
        doing.append(self._table("Memory", facts.memory_rows(self._session)))
        self._doing.update(Content("\n\n").join(doing))
        self._being.update(self._table("Model", facts.model_rows(self._session)))

    def _table(self, title: str, found: facts.Rows) -> Content:
        room = max(8, self._doing.size.width - NAMES)
        lines = [
            Content.assemble((("" if part else name).ljust(NAMES), "$quiet"), value[start:end])
            for name, value in found
            for part, (start, end) in enumerate(wrap(value, 0, room))
        ]
        return Content("\n").join([Content.styled(title, "bold $primary"), *lines])
