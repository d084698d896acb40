"""A token of a text: its figures, the candidates in its place, and looked-up strings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ropechat.tui.render.wrap import wrap
from ropechat.tui.widgets.inspector import draw_bar, fit_row, probability
from ropechat.tui.widgets.styled import StyledWidget
from ropechat.util.markdown.spans import StyledSpan
from ropechat.util.records import number
from ropechat.util.text import clean, token_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.strip import Strip

    from ropechat.inspector.reader_comparison import Other
    from ropechat.trace import TokenScore

NUMBERS = 18  # cells of a row without the token and the bar: rank, probability, bits
OTHER = 7  # cells of the second model's probability
_LN2 = math.log(2)

Row = list[StyledSpan]


class TokenPanel(StyledWidget):
    """Shows a token and its candidates. spell: the bytes of an id."""

    def __init__(self, spell: Callable[[int], bytes], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._spell = spell
        self._token: TokenScore | None = None
        self._index, self._count = -1, 0
        self._notes: Sequence[str] = ()
        self._other: tuple[str, Other | None] | None = None

    @property
    def text(self) -> str:
        return "\n".join("".join(span.text for span in row).rstrip() for row in self._rows())

    def show(
        self,
        index: int,
        count: int,
        token: TokenScore | None,
        notes: Sequence[str] = (),
        other: tuple[str, Other | None] | None = None,
    ) -> None:
        """Show a token (None while it is computed), and lines about it below its figures.

        other: the name of a second model, and its figures of the token (None while computed).
        """
        self._index, self._count, self._token, self._notes = index, count, token, notes
        self._other = other
        self.refresh()

    def render_line(self, y: int) -> Strip:
        rows = self._rows()
        return self.draw(rows[y] if y < len(rows) else [])

    def _rows(self) -> list[Row]:
        width, height = self.size
        if self._index < 0:
            return [fit_row([StyledSpan(" Move to a token with ← →, or click it.", "quiet")], width)]
        token = self._token
        head = [StyledSpan(f" token #{self._index:,} of {self._count:,} ", "heading")]
        if token is None or token.logprob is None:
            about = "computing …" if token is None else "no score is recorded"
            about = "the first token has no context" if self._index == 0 else about
            return [
                fit_row(head, width),
                fit_row([StyledSpan(f" {about}", "quiet")], width),
                *self._said(width),
            ]
        head.append(StyledSpan(token_name(token.id, token.bytes), "name"))
        bits = "–" if token.entropy is None else f"{token.entropy / _LN2:.1f} bits"  # a record may lack both
        figures = (
            f" raw {probability(math.exp(token.logprob))}  rank {number(token.rank, ',')}  "
            f"{-token.logprob / _LN2:.1f} bits  entropy {bits}"
        )
        rows = [fit_row(head, width), fit_row([StyledSpan(figures)], width)]
        if self._other is not None:
            rows.append(fit_row([StyledSpan(_against(*self._other))], width))
        rows += self._said(width)
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
        other = (
            None if self._other is None else dict(self._other[1].top if self._other[1] is not None else ())
        )
        second = 0 if other is None else OTHER
        bar = max(0, width - NUMBERS - name - second)
        head = (
            "    #  token".ljust(7 + name) + "   raw " + " other "[:second] + " " * max(0, bar - 1) + " bits"
        )
        rows: list[Row] = [fit_row([StyledSpan(head, "quiet")], width)]
        for rank, id, logprob in listed[: max(1, room - 1)]:
            look = "asked" if id == token.id else ""
            share = math.exp(logprob)
            spelled = token_name(id, self._spell(id))
            row = [
                StyledSpan(f"{'▸' if id == token.id else ' '}{rank:>4,}  "[:7], "quiet"),
                *fit_row([StyledSpan(spelled, look)], name),
                StyledSpan(f"{probability(share):>6} ", look),
                *self._second(id, other, look),
                StyledSpan(draw_bar(share / best, max(0, bar - 1)), "bar"),
                StyledSpan(f"{min(99.9, max(0.0, -logprob / _LN2)):>5.1f}", look),
            ]
            rows.append(fit_row(row, width))
        return rows

    def _second(self, id: int, other: dict[int, float] | None, look: str) -> Row:
        """The cells of the second model's probability of a candidate; – if it is not among its own."""
        if other is None:
            return []
        view = None if self._other is None else self._other[1]
        known = other.get(id)
        if known is None and view is not None and self._token is not None and id == self._token.id:
            known = view.logprob
        return [StyledSpan(f"{'–' if known is None else probability(math.exp(known)):>6} ", look)]


def _against(name: str, other: Other | None) -> str:
    """The second model's figures of the token."""
    if other is None:
        return f" {name}: computing …"
    bits = min(999.9, max(0.0, -other.logprob / _LN2))
    return (
        f" {name} {probability(math.exp(other.logprob))}  rank {other.rank:,}  {bits:.1f} bits  "
        f"KL {other.kl:.3g} bits  JS {other.js:.3g} bits"
    )
