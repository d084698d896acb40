"""A chart along an answer or a text: rows of bars whose columns are tokens, with the cursor of the text."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from textual.message import Message

from ropechat.inspector.chart import AMOUNTS, CURVES, SHARES, SQUARES, bars
from ropechat.tui.widgets.inspector import fit_row
from ropechat.tui.widgets.styled import StyledWidget
from ropechat.util.markdown.spans import StyledSpan
from ropechat.util.text import count_of, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from textual import events
    from textual.strip import Strip

    from ropechat.inspector.text_reader import TextReader

    Row = list[StyledSpan]

LABEL = 19  # cells before a row of bars, with the line
WIDEST = 3  # cells of a token at most
HEIGHTS = {  # as parts of the height; the last ones go where there is no room
    **{"surprisal": 3, "entropy": 3, "chosen": 2, "runner-up": 1, "rest": 1, "varentropy": 1}
}
LOOKS = {
    **{"surprisal": "bar", "entropy": "string", "varentropy": "string"},
    **{"chosen": "bar", "runner-up": "name", "rest": "quiet"},
}


@dataclass
class Line:
    """The curves of one text. values: by name, one entry per token; NaN or None where it is not known."""

    name: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)  # sequences or arrays

    def __len__(self) -> int:
        return len(self.values.get("surprisal", ()))

    def at(self, name: str, index: int) -> float:
        """The value of a token; NaN if it is not known."""
        found = self.values.get(name, ())
        value = found[index] if 0 <= index < len(found) else None
        return math.nan if value is None else value

    def has(self, name: str) -> bool:
        """Whether a value is known."""
        import numpy as np  # which the engine has loaded

        return not bool(np.isnan(np.array(self.values.get(name, ()), float)).all())

    def columns(self, name: str, each: int) -> list[float]:
        """The mean of each `each` tokens; 0 where nothing is known."""
        import numpy as np  # which the engine has loaded

        values = np.array(self.values.get(name, ()), float)
        if not len(values):
            return []
        known, starts = ~np.isnan(values), np.arange(0, len(values), each)
        counts = np.add.reduceat(known.astype(int), starts)
        sums = np.add.reduceat(np.where(known, values, 0.0), starts)
        found: list[float] = np.divide(sums, np.maximum(counts, 1)).tolist()
        return found


def line_of(reader: TextReader) -> Line:
    """The curves of a text in the reader, as far as it is scored."""
    import numpy as np  # which the engine has loaded

    bits, rival = np.array(reader.bits, float), np.array(reader.rival, float)
    chosen = np.exp2(-bits)
    rest = np.maximum(0.0, 1.0 - chosen - rival)
    values = {"surprisal": bits, "entropy": np.array(reader.entropy, float)}
    values |= {"varentropy": np.array(reader.varentropy, float)}
    return Line("", {**values, "chosen": chosen, "runner-up": rival, "rest": rest})


class ChartPanel(StyledWidget):
    """One or two texts on the same scales. cursor: the token of the first text; -1: none.

    numbered: whether tokens have their number in the text, from #0, as in the reader; else they are counted.
    """

    ALLOW_SELECT = False

    class Picked(Message):
        """A column was clicked, or the mouse moved there with its button down."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def __init__(self, *, id: str | None = None, numbered: bool = False) -> None:
        super().__init__(id=id)
        self.display = False
        self._numbered = numbered
        self.lines: list[Line] = []
        self.cursor = -1
        self._about = ""
        self._rows: list[Row] = []
        self._each, self._wide = 1, 1  # tokens of a column, cells of a token

    def show(self, lines: Sequence[Line], cursor: int, about: str) -> None:
        """Draw one or two texts. about: the name of the token under the cursor."""
        self.lines, self.cursor, self._about = list(lines), cursor, about
        self._lay()
        self.refresh()

    def on_resize(self) -> None:
        self._lay()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        return self.draw(self._rows[y] if y < len(self._rows) else [])

    @property
    def text(self) -> str:
        return "\n".join("".join(piece.text for piece in row).rstrip() for row in self._rows)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Go to the token of a column."""
        self._pick(event.x)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """The same while the button is down."""
        if event.button:
            self._pick(event.x)

    def _pick(self, x: int) -> None:
        count = len(self.lines[0]) if self.lines else 0
        if count and x >= LABEL:
            index = min(count - 1, (x - LABEL) // self._wide * self._each)
            if index != self.cursor:
                self.post_message(self.Picked(index))

    # --- rows ---

    def _lay(self) -> None:
        width, height = self.size
        longest = max(map(len, self.lines), default=0)
        room = width - LABEL
        if not height or room < 1:
            self._rows = []
            return
        if not longest:
            self._rows = [[StyledSpan(" No token to draw yet.", "quiet")]]
            return
        self._each = max(1, math.ceil(longest / room))
        self._wide = max(1, min(WIDEST, room // longest))
        rows = [self._head(width)]
        for name, lines in self._heights(height - 2).items():
            rows += self._curve(name, lines, width)
        self._rows = [*rows, self._axis()][:height]

    def _heights(self, height: int) -> dict[str, int]:
        """The lines of each curve of each text that is known and that there is room for, in their order."""
        texts = len(self.lines)
        names = [name for name in HEIGHTS if any(line.has(name) for line in self.lines)] or [*AMOUNTS]
        names = names[: max(1, height // texts)]
        total = sum(HEIGHTS[name] for name in names)
        found = {name: max(1, height * HEIGHTS[name] // (total * texts)) for name in names}
        while sum(found.values()) * texts > height and max(found.values()) > 1:
            found[max(found, key=lambda name: found[name])] -= 1
        for name in names:
            if (sum(found.values()) + 1) * texts <= height:
                found[name] += 1
        return {name: found[name] for name in CURVES if name in found}

    def _curve(self, name: str, height: int, width: int) -> list[Row]:
        """The rows of a curve; before them the end of the scale, and the value at the cursor."""
        columns = [line.columns(name, self._each) for line in self.lines]
        most = max((max(one, default=0.0) for one in columns), default=0.0)
        end = 1.0 if name in SHARES else most or math.nan  # of the scale
        top = 1.0 if math.isnan(end) else end
        rows: list[Row] = []
        for number, (line, values) in enumerate(zip(self.lines, columns, strict=True)):
            label = f"{name if not number else '':10}"
            label += f" {number + 1}" if len(self.lines) > 1 else "  "
            for at, drawn in enumerate(bars([value / top for value in values], height)):
                here = self.cursor >= 0 and at == min(1, height - 1)
                figure = (
                    _figure(name, line.at(name, self.cursor)) if here else "" if at else _figure(name, end)
                )
                before = [
                    StyledSpan(label if not at else f"{'':12}", "quiet"),
                    StyledSpan(f"{figure:>6}", "" if here else "quiet"),
                    StyledSpan("│", "quiet"),
                ]
                cells = "".join(cell * self._wide for cell in drawn).ljust(width - LABEL)
                rows.append([*before, *self._marked(cells, LOOKS[name])])
        return rows

    def _marked(self, cells: str, look: str) -> Row:
        """A row of bars with the column of the cursor."""
        if self.cursor < 0:
            return [StyledSpan(cells, look)]
        start = self.cursor // self._each * self._wide
        end = start + self._wide
        return [
            StyledSpan(cells[:start], look),
            StyledSpan(cells[start:end], "asked"),
            StyledSpan(cells[end:], look),
        ]

    def _head(self, width: int) -> Row:
        """The token under the cursor, and which texts these are."""
        count = len(self.lines[0])
        row = [StyledSpan(f" {count_of(count, 'token')}", "heading")]
        row.append(StyledSpan(": go to one, here or in the text", "quiet"))
        if self.cursor >= 0:
            row = [
                StyledSpan(f" token {self._number(self.cursor)}", "heading"),
                StyledSpan(f" of {count:,} ", "quiet"),
                StyledSpan(one_line(self._about), "name"),
            ]
        names = [one_line(f"   {at}: {line.name}") for at, line in enumerate(self.lines, 1) if line.name]
        return fit_row([*row, StyledSpan("".join(names), "quiet")], width)

    def _number(self, index: int) -> str:
        return f"#{index:,}" if self._numbered else f"{index + 1:,}"

    def _axis(self) -> Row:
        """Of how many tokens a column is the mean, and a mark below the column of the cursor."""
        words = f"mean of {self._each:,} " if self._each > 1 else ""
        row = [StyledSpan(f"{words:>{LABEL - 1}}└", "quiet")]
        if self.cursor >= 0:
            row.append(StyledSpan(f"{'':{self.cursor // self._each * self._wide}}▲", "asked"))
        return row


def _figure(name: str, value: float) -> str:
    """A value as the chart's margin shows it: in bits, bits², or in percent."""
    if math.isnan(value):
        return "?"
    if name in SHARES:
        return f"{100 * value:.0f}%" if value >= 0.005 or not value else "<1%"
    digits = 1 if value < 10 or (value < 100 and name not in SQUARES) else 0
    return f"{value:.{digits}f} {'b²' if name in SQUARES else 'b'}"
