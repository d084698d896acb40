"""Tables: columns as wide as their text where there is room, wrapped where there is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropechat.tui.render.wrap import wrap_spans
from ropechat.util.markdown.blocks import split_cells
from ropechat.util.markdown.inline import parse_inline
from ropechat.util.markdown.spans import NOWHERE, StyledSpan
from ropechat.util.width import cell_width

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_MEASURED_ROWS = 64  # later rows do not change the widths: a long table is not laid out for each row
MIN_COLUMN_CELLS = 6  # cells of a column; below that each row becomes a list of its cells
BAR = StyledSpan(" │ ", "rule", NOWHERE)

Cell = list[StyledSpan]
SourceLine = tuple[str, int]  # text, and where it begins in the source


def _text(cell: Sequence[StyledSpan]) -> str:
    return "".join(piece.text for piece in cell)


class Table:
    """A header and rows, for one width."""

    def __init__(self, header: SourceLine, width: int) -> None:
        self._width = width
        self._header = self._cells(header, "heading")
        self._aligned: list[str] | None = None  # None: the line of delimiters was not read yet
        self._body: list[list[Cell]] = []
        self._natural = [cell_width(_text(cell)) for cell in self._header]
        self._widths: list[int] = []
        self._rows: list[list[StyledSpan]] = []
        self._fit()

    def add(self, line: SourceLine) -> None:
        """Take in a row; the first is the line of delimiters."""
        if self._aligned is None:
            marks = [text for text, _ in split_cells(line[0])]
            self._aligned = [_alignment(mark) for mark in marks]
            self._fit()
            return
        row = self._fitting(line)
        self._body.append(row)
        if len(self._body) <= MAX_MEASURED_ROWS and self._grow(row):
            self._fit()
        else:
            self._rows += self._lay(row)

    def rows(self, line: SourceLine | None = None) -> list[list[StyledSpan]]:
        """All rows, and one that is still being written."""
        if line is None or self._aligned is None:
            return self._rows
        return self._rows + self._lay(self._fitting(line))

    def _cells(self, line: SourceLine, look: str = "") -> list[Cell]:
        text, at = line
        return [
            [piece for piece in parse_inline(_bars(cell), at + place, look) if piece.text]
            for cell, place in split_cells(text)
        ]

    def _fitting(self, line: SourceLine) -> list[Cell]:
        """The cells of a row, as many as the header has."""
        row = self._cells(line)[: len(self._header)]
        return row + [[] for _ in range(len(self._header) - len(row))]

    def _grow(self, row: list[Cell]) -> bool:
        wanted = [max(old, cell_width(_text(cell))) for old, cell in zip(self._natural, row, strict=True)]
        changed, self._natural = wanted != self._natural, wanted
        return changed

    def _fit(self) -> None:
        """Choose the widths and lay out everything."""
        widths = share_width(self._natural, self._width - 3 * (len(self._natural) - 1))
        if widths == self._widths and self._rows:
            self._rows += self._lay(self._body[-1]) if self._body else []
            return
        self._widths = widths
        self._rows = []
        if widths:
            self._rows += self._lay(self._header)
            self._rows.append([StyledSpan("─┼─".join("─" * width for width in widths), "rule", NOWHERE)])
        for row in self._body:
            self._rows += self._lay(row)

    def _lay(self, row: list[Cell]) -> list[list[StyledSpan]]:
        if not self._widths:
            return self._list(row)
        columns = [wrap_spans(cell, width) for cell, width in zip(row, self._widths, strict=True)]
        found: list[list[StyledSpan]] = []
        for number in range(max(len(column) for column in columns)):
            pieces: list[StyledSpan] = []
            for index, column in enumerate(columns):
                part = column[number] if number < len(column) else []
                pieces += [*([BAR] if index else []), *self._padded(part, index)]
            found.append(pieces)
        return found

    def _padded(self, part: Cell, index: int) -> list[StyledSpan]:
        gap = self._widths[index] - cell_width(_text(part))
        side = self._aligned[index] if self._aligned else "left"
        before = gap if side == "right" else gap // 2 if side == "center" else 0
        return [
            StyledSpan(" " * before, "", NOWHERE),
            *part,
            StyledSpan(" " * max(0, gap - before), "", NOWHERE),
        ]

    def _list(self, row: list[Cell]) -> list[list[StyledSpan]]:
        """The cells of a row below each other, each with its name: there is no room for columns."""
        found: list[list[StyledSpan]] = []
        for name, cell in zip(self._header, row, strict=True):
            head = [StyledSpan(piece.text, "heading", NOWHERE) for piece in name]
            found += wrap_spans([*head, StyledSpan(": ", "rule", NOWHERE), *cell], self._width)
        found.append([StyledSpan("─" * min(8, self._width), "rule", NOWHERE)])
        return found


def _bars(cell: str) -> str:
    """Remove the backslash before a bar in code, too, where inline Markdown would keep it."""
    return cell.replace("\\|", "|") if "`" in cell else cell


def _alignment(mark: str) -> str:
    right = mark.endswith(":")
    return "center" if right and mark.startswith(":") else "right" if right else "left"


def share_width(natural: Sequence[int], room: int) -> list[int]:
    """Widths of columns: narrow ones keep theirs, wide ones share the rest; [] without room for all."""
    if sum(natural) <= room:
        return [max(1, width) for width in natural]
    if room < MIN_COLUMN_CELLS * len(natural):
        return []
    widths = [0] * len(natural)
    open_columns = list(range(len(natural)))
    while True:
        share = room // len(open_columns)
        small = [index for index in open_columns if natural[index] <= share]
        if not small:
            break
        for index in small:
            widths[index] = max(1, natural[index])
            room -= widths[index]
        open_columns = [index for index in open_columns if index not in small]
    for number, index in enumerate(open_columns):
        widths[index] = room // len(open_columns) + (number < room % len(open_columns))
    return widths
