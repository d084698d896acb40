"""A widget that draws rows of styled spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.strip import Strip
from textual.widget import Widget

from ropechat.tui.widgets.style_cache import StyleCache

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ropechat.util.markdown.spans import StyledSpan


class StyledWidget(Widget):
    """Knows the styles of looks under the current theme."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._styles = StyleCache(self)

    def notify_style_update(self) -> None:
        """Forget the styles of the old theme."""
        super().notify_style_update()
        self._styles.forget()

    def draw(self, spans: Iterable[StyledSpan]) -> Strip:
        """A row, filled up to the width of the widget."""
        strip = Strip(self._styles.segments(spans))
        return strip.adjust_cell_length(self.size.width, self._styles.style(""))
