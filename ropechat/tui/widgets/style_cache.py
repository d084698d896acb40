"""Textual segments from styled spans: names of looks become styles of the theme."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style
from textual.dom import DOMNode

from ropechat.tui.format.theme import against_style, tint_styles

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.widget import Widget

    from ropechat.util.markdown.spans import StyledSpan

_TEXT = {"asked", "bar", "caret", "error", "foot", "more", "quiet", "title"}
_MARKED = {"cursor", "found", "here"}
_MARKDOWN = {"code", "em", "link", "marker", "quote", "rule", "strike", "strong", "url"}
_HEADINGS = {"heading", "major", "first"}
_CODE = {"block", "comment", "keyword", "name", "number", "string"}
LOOKS = _TEXT | _MARKED | _MARKDOWN | _HEADINGS | _CODE


class StyleCache:
    """The styles of one widget under the current theme."""

    def __init__(self, widget: Widget) -> None:
        self._widget = widget
        self._styles: dict[str, Style] = {}

    def forget(self) -> None:
        """Drop all styles, for a new theme."""
        self._styles.clear()

    def style(self, look: str) -> Style:
        """The style of a look: that of each of its names, the last on top."""
        found = self._styles.get(look)
        if found is None:
            found = self._styles[look] = self._mixed(look)
        return found

    def _mixed(self, look: str) -> Style:
        style = self._widget.rich_style
        for name in look.split():
            if name == "against" or name.startswith("tint"):
                style += self._tint(name)
            else:
                style += self._look(name)
        return style

    def _look(self, name: str) -> Style:
        """What app.tcss says of a look.

        Component classes would be styled at every change of the screen, these when they are drawn.

        Raises:
            KeyError: No look has this name.
        """
        if name not in LOOKS:
            raise KeyError(name)
        node = DOMNode(classes=f"look--{name}")
        node._attach(self._widget)
        self._widget.app.stylesheet.apply(node)
        return node.styles.partial_rich_style

    def _tint(self, name: str) -> Style:
        app = self._widget.app
        colours = app.current_theme.dark, app.native_ansi_color, app.no_color
        words = against_style(*colours) if name == "against" else tint_styles(*colours)[int(name[4:])]
        return Style.parse(words) if words else Style.null()

    def segments(self, pieces: Iterable[StyledSpan], look: str = "") -> list[Segment]:
        """The pieces drawn; equal neighbours become one."""
        found: list[Segment] = []
        for text, own, _ in pieces:
            if not text:
                continue
            style = self.style(f"{look} {own}" if look and own else look or own)
            if found and found[-1].style is style:
                found[-1] = Segment(found[-1].text + text, style)
            else:
                found.append(Segment(text, style))
        return found


def stylize(segments: Iterable[Segment], start: int, end: int, style: Style) -> list[Segment]:
    """The segments with a style over characters `start` to `end`; an end of -1 is the end of the row."""
    marked: list[Segment] = []
    place = 0
    for text, own, _ in segments:
        stop = len(text) if end < 0 else min(max(0, end - place), len(text))
        begin = min(max(0, start - place), stop)
        pieces = ((text[:begin], own), (text[begin:stop], (own or style) + style), (text[stop:], own))
        marked += [Segment(piece, look) for piece, look in pieces if piece]
        place += len(text)
    return marked
