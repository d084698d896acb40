"""A token of a text: its figures, the candidates in its place, and what was asked about it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from textual.strip import Strip
from textual.widget import Widget

from ropechat.tui.render.spans import StyledSpan
from ropechat.tui.render.wrap import wrap
from ropechat.tui.widgets.inspector import barred, fitted, probability
from ropechat.tui.widgets.style_cache import COMPONENTS, StyleCache
from ropechat.util.text import clean, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ropechat.trace import TokenScore

NUMBERS = 18  # cells of a row beside the token and the bar: rank, probability, bits
_LN2 = math.log(2)

Row = list[StyledSpan]


class TokenPanel(Widget):
    """Shows a token and its candidates. spell: the bytes of an id."""

    COMPONENT_CLASSES: ClassVar[set[str]] = COMPONENTS

    def __init__(self, spell: Callable[[int], bytes], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._spell = spell
        self._styles = StyleCache(self)
        self._token: TokenScore | None = None
        self._index, self._count = -1, 0
        self._notes: Sequence[str] = ()

    @property
    def text(self) -> str:
        """The text of the panel."""
        return "\n".join("".join(span.text for span in row).rstrip() for row in self._rows())

    def show(self, index: int, count: int, token: TokenScore | None, notes: Sequence[str] = ()) -> None:
        """Show a token (None while it is computed), and lines about it below its figures."""
        self._index, self._count, self._token, self._notes = index, count, token, notes
        self.refresh()

    def notify_style_update(self) -> None:
        """Forget the styles of the old theme."""
        super().notify_style_update()
        self._styles.forget()

    def render_line(self, y: int) -> Strip:
        rows = self._rows()
        strip = Strip(self._styles.segments(rows[y] if y < len(rows) else []))
        return strip.adjust_cell_length(self.size.width, self._styles.style(""))

    def _rows(self) -> list[Row]:
        width, height = self.size
        if self._index < 0:
            return [fitted([StyledSpan(" Move to a token with ← →, or click it.", "quiet")], width)]
        token = self._token
        head = [StyledSpan(f" token {self._index + 1:,} of {self._count:,} ", "heading")]
        if token is None:
            about = "the first token has no context" if self._index == 0 else "computing …"
            return [
                fitted(head, width),
                fitted([StyledSpan(f" {about}", "quiet")], width),
                *self._said(width),
            ]
        head.append(StyledSpan(visible(token.bytes) or f"#{token.id}", "name"))
        figures = (
            f" raw {probability(math.exp(token.logprob or 0.0))}  rank {token.rank or 0:,}  "
            f"{-(token.logprob or 0.0) / _LN2:.1f} bits  H {(token.entropy or 0.0) / _LN2:.1f} bits"
        )
        rows = [fitted(head, width), fitted([StyledSpan(figures)], width), *self._said(width)]
        return rows + self._candidates(token, width, height - len(rows))

    def _said(self, width: int) -> list[Row]:
        rows = []
        for note in self._notes:
            text = clean(note).replace("\n", "⏎").replace("\t", "⇥")
            rows += [[StyledSpan(f" {text[a:b]}", "string")] for a, b in wrap(text, 0, max(4, width - 2))[:6]]
        return rows

    def _candidates(self, token: TokenScore, width: int, room: int) -> list[Row]:
        top = token.row.top if token.row is not None else ()
        listed = [(rank, id, logprob) for rank, (id, logprob) in enumerate(top, 1)]
        if not any(id == token.id for _, id, _ in listed) and token.rank and token.logprob is not None:
            listed = [*listed[: max(1, room - 2)], (token.rank, token.id, token.logprob)]
        best = math.exp(top[0][1]) if top else 1.0
        name = max(8, min(24, (width - NUMBERS) * 2 // 3))
        bar = max(0, width - NUMBERS - name)
        head = "    #  token".ljust(7 + name) + "   raw " + " " * max(0, bar - 1) + " bits"
        rows: list[Row] = [fitted([StyledSpan(head, "quiet")], width)]
        for rank, id, logprob in listed[: max(1, room - 1)]:
            look = "asked" if id == token.id else ""
            share = math.exp(logprob)
            spelled = visible(self._spell(id)) or f"#{id}"
            row = [
                StyledSpan(f"{'▸' if id == token.id else ' '}{rank:>4,}  "[:7], "quiet"),
                *fitted([StyledSpan(spelled, look)], name),
                StyledSpan(f"{probability(share):>6} ", look),
                StyledSpan(barred(share / best, max(0, bar - 1)), "bar"),
                StyledSpan(f"{min(99.9, max(0.0, -logprob / _LN2)):>5.1f}", look),
            ]
            rows.append(fitted(row, width))
        return rows
