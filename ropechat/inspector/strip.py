"""A scored text as a static SVG picture for papers and READMEs.

Each token is above a bar whose height is its surprisal, so the picture is readable without colour; the tint
says the same. The longer a text, the taller the picture: it suits texts of some hundred tokens.
"""

import html
import math
import re
from collections.abc import Iterable, Iterator

from ropechat.inspector import page
from ropechat.inspector.scored_text import LN2, ScoredText
from ropechat.inspector.trace_page import TextOfTokens
from ropechat.trace import TokenScore
from ropechat.util.text import one_line
from ropechat.util.width import cell_width

COLUMNS = 88
FULL_BITS = page.FULL_TINT_BITS
_CELL, _SIZE, _BAR, _ROW, _EDGE = 8.4, 14, 10, 36, 20
_INK, _DIM, _TINT, _PAPER, _LINE = "#1d1b18", "#6f6a62", "#e8731a", "#ffffff", "#d9d3c8"
_NOT_XML = re.compile("[\ufffe\uffff]")
_STYLE = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


def render(texts: Iterable[ScoredText]) -> Iterator[str]:
    """Yield the pieces of the picture: the texts one below another."""
    rows = _Rows()
    for scored in texts:
        if scored.name:
            rows.caption(scored.name, _INK)
        complete = TextOfTokens(scored.meta.get("text"))
        for token in scored:
            text, label = complete.next(token)
            rows.token(token, text, label, counted=token.role in scored.roles)
        rows.end()
        model = f"{scored.meta.get('model') or 'model'}, {scored.meta.get('dtype') or ''}".rstrip(", ")
        rows.caption(f"{model}: {scored.summary.line()}", _DIM)
    rows.legend()
    width, height = COLUMNS * _CELL + 2 * _EDGE, rows.y + _EDGE
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="{_STYLE}" font-size="{_SIZE}" '
        f'role="img" fill="{_INK}">\n<title>Surprisal of each token</title>\n'
        f'<rect width="100%" height="100%" fill="{_PAPER}"/>\n'
    )
    yield from rows.parts
    yield "</svg>\n"


class _Rows:
    """Places tokens in rows of COLUMNS cells. y: the lower edge of the rows so far."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.y = float(_EDGE)
        self._column = 0

    def token(self, token: TokenScore, text: str, label: str, *, counted: bool) -> None:
        """Add a token, wrapped where it does not fit."""
        bits = -token.logprob / LN2 if token.logprob is not None and counted else math.nan
        facts = f"{page.number(bits)} bits, rank {page.number(token.rank, 0)}" if bits == bits else ""
        shown, dim = (text.expandtabs(4), not counted) if text else (label, True)
        for part in re.split("(\n)", shown):
            if part == "\n":
                self._cell("⏎", bits, facts, dim=True)
                self.end()
            while part and part != "\n":
                room = COLUMNS - self._column
                if cell_width(part) > room and cell_width(part) <= COLUMNS and self._column:
                    self.end()
                    continue
                head = part
                while cell_width(head) > room:
                    head = head[:-1]
                self._cell(head or part[:1], bits, facts, dim=dim)
                part = part[len(head or part[:1]) :]
                if part:
                    self.end()

    def _cell(self, text: str, bits: float, facts: str, *, dim: bool) -> None:
        if self._column == 0:
            self.y += _ROW
        text = xml_text(text)
        columns = max(1, cell_width(text))
        x, width = _EDGE + self._column * _CELL, columns * _CELL
        base = self.y - _BAR - 4
        share = 0.0 if math.isnan(bits) else min(1.0, bits / FULL_BITS)
        if share > 0:
            opacity = 0.08 + 0.72 * share
            self.parts.append(
                f'<rect x="{x:.1f}" y="{base - _SIZE:.1f}" width="{width:.1f}" height="{_SIZE + 4}" '
                f'fill="{_TINT}" fill-opacity="{opacity:.2f}"/>'
            )
            self.parts.append(
                f'<rect x="{x + 0.5:.1f}" y="{base + 5:.1f}" width="{width - 1:.1f}" '
                f'height="{max(0.5, _BAR * share):.1f}"/>'
            )
        if text.strip():
            color = f' fill="{_DIM}"' if dim else ""
            size = f' textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs"' if len(text) > 1 else ""
            title = f"<title>{facts}</title>" if facts else ""
            self.parts.append(
                f'<text x="{x:.1f}" y="{base:.1f}" xml:space="preserve"{size}{color}>'
                f"{title}{html.escape(text)}</text>\n"
            )
        self._column += columns
        if self._column >= COLUMNS:
            self.end()

    def end(self) -> None:
        self._column = 0

    def caption(self, text: str, color: str) -> None:
        """Add a line of small text, cut to the width."""
        self.y += 22
        longest = int(COLUMNS * _CELL / 7.3)
        text = xml_text(text)
        text = text if len(text) <= longest else text[: longest - 1] + "…"
        self.parts.append(
            f'<text x="{_EDGE}" y="{self.y:.1f}" font-size="12" fill="{color}">{html.escape(text)}</text>\n'
        )

    def legend(self) -> None:
        """Add the scale of the bars."""
        self.y += 26
        x = float(_EDGE)
        for bits in (1, 3, 6, 9, 12):
            share = bits / FULL_BITS
            self.parts.append(
                f'<rect x="{x:.1f}" y="{self.y - 10:.1f}" width="16" height="{_BAR * share:.1f}"/>'
                f'<text x="{x + 21:.1f}" y="{self.y:.1f}" font-size="12" fill="{_DIM}">'
                f"{bits}{' bits of surprisal, or more' if bits == FULL_BITS else ''}</text>\n"
            )
            x += 52
        self.parts.append(
            f'<path d="M{_EDGE} {self.y - 16:.1f}H{COLUMNS * _CELL + _EDGE:.1f}" stroke="{_LINE}"/>\n'
        )


def xml_text(text: str) -> str:
    """Text without characters that XML forbids or that would move others."""
    return _NOT_XML.sub("\ufffd", one_line(text))
