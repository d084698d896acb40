"""Views for a terminal: braille curves, half-block heat maps, aligned tables.

Without colour, curves differ by their dashes and heat maps by their shade. Below NARROW columns, plots and
heat maps are tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ropechat.inspector.ansi import BOLD, DIM, RESET, paint
from ropechat.inspector.rope import scales
from ropechat.inspector.rope.blocks import Heat, Note, Plot, Table
from ropechat.util.text import one_line
from ropechat.util.width import cell_width, fit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ropechat.inspector.rope.blocks import Block, Cell, View

NARROW = 60
_HEIGHT = 12
_MARGIN = 9
"""Columns left of a plot, for the labels of its y axis."""
_SHOWN_ROWS = 16
_SAMPLES = 8
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_COLORS = ("\x1b[36m", "\x1b[33m", "\x1b[35m", "\x1b[32m", "\x1b[31m", "\x1b[34m")
_DASHES = (
    (1,),
    (1, 1, 1, 0, 0),
    (1, 0, 0),
    (1, 1, 1, 1, 1, 0, 0, 1, 0, 0),
    (1, 1, 0, 0, 0, 0),
    (1, 0, 0, 0, 0),
)
"""Which dots of a curve are drawn, in turn."""
_RAMP = (21, 27, 33, 75, 117, 255, 223, 215, 208, 202, 196)
"""xterm's colours from low to high."""
_SHADES = " ░▒▓█"


def render(views: Iterable[View], width: int, *, color: bool = False) -> Iterator[str]:
    """Yield the lines of the views, at most `width` columns each."""
    for view in views:
        yield from (paint(line, BOLD, color) for line in _wrapped(view.title, width))
        for block in view.blocks:
            yield from block_lines(block, width, color=color)
        yield ""


def block_lines(block: Block, width: int, *, color: bool = False) -> Iterator[str]:
    """Yield the lines of one block."""
    if isinstance(block, Note):
        yield from _wrapped(block.text, width)
    elif isinstance(block, Table):
        yield from table_lines(block, width, color=color)
    elif width < NARROW:
        yield from table_lines(_as_table(block), width, color=color)
    elif isinstance(block, Plot):
        yield from _plot_lines(block, width, color)
    else:
        yield from _heat_lines(block, width, color)


def format_cell(value: Cell) -> str:
    """A value for people: – for None, four digits of a float."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return format_number(value)
    return one_line(str(value))


def format_number(value: float) -> str:
    """Four digits, and no exponent below 10 million."""
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.4g}"


def table_lines(table: Table, width: int, *, color: bool = False) -> Iterator[str]:
    """Yield a header and a line per row; where the columns do not fit, a line per value."""
    rows = table.rows
    if table.thin and len(rows) > _SHOWN_ROWS:
        rows = tuple(rows[at] for at in np.unique(np.linspace(0, len(rows) - 1, _SHOWN_ROWS).astype(int)))
    columns = tuple(map(one_line, table.columns))
    cells = [[format_cell(value) for value in row] for row in rows]
    right = [all(not isinstance(row[at], str) for row in rows) for at in range(len(columns))]
    widths = [
        max([cell_width(name), *(cell_width(row[at]) for row in cells)]) for at, name in enumerate(columns)
    ]
    while (over := sum(widths) + 2 * (len(widths) - 1) - width) > 0:
        text = [at for at in range(len(widths)) if not right[at] and widths[at] > 12]
        if not text:
            yield from _records(columns, cells, width, color)
            break
        widest = max(text, key=lambda at: widths[at])
        widths[widest] -= min(over, widths[widest] - 12)
    else:
        yield paint(_row(columns, widths, right), DIM, color)
        yield from (_row(row, widths, right) for row in cells)
    if len(rows) < len(table.rows):
        words = f"({len(rows)} of {len(table.rows)} rows; csv and json have all)"
        yield from (paint(line, DIM, color) for line in _wrapped(words, width))


def _row(cells: Iterable[str], widths: list[int], right: list[bool]) -> str:
    parts = []
    for text, width, is_right in zip(cells, widths, right, strict=True):
        parts.append(" " * (width - cell_width(text)) + text if is_right else fit(text, width))
    return "  ".join(parts).rstrip()


def _records(columns: tuple[str, ...], cells: list[list[str]], width: int, color: bool) -> Iterator[str]:
    label = min(max(map(cell_width, columns)), width // 2)
    for number, row in enumerate(cells):
        if number:
            yield paint("·" * min(width, 20), DIM, color)
        for name, text in zip(columns, row, strict=True):
            lines = list(_wrapped(text, max(8, width - label - 2))) or [""]
            yield f"{paint(fit(name, label), DIM, color)}  {lines[0]}"
            yield from (f"{' ' * label}  {line}" for line in lines[1:])


def _wrapped(text: str, width: int) -> Iterator[str]:
    line = ""
    for word in one_line(text).split(" "):
        if line and cell_width(line) + 1 + cell_width(word) > width:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield line


def _as_table(block: Plot | Heat) -> Table:
    """A few values of a plot or heat map."""
    if isinstance(block, Heat):
        rows = np.unique(np.linspace(0, len(block.y) - 1, _SAMPLES).astype(int))
        columns = np.unique(np.linspace(0, len(block.x) - 1, 4).astype(int))
        return Table(
            block.name,
            (block.y_label, *(f"{block.x_label} {block.x[at]:g}" for at in columns)),
            tuple((float(block.y[row]), *(float(block.values[row, at]) for at in columns)) for row in rows),
        )
    rows_of: list[tuple[Cell, ...]] = []
    for curve in block.curves:
        for at in np.unique(np.linspace(0, len(curve.x) - 1, _SAMPLES).astype(int)) if len(curve.x) else ():
            rows_of.append((curve.name, float(curve.x[at]), float(curve.y[at])))
    return Table(block.name, ("curve", block.x_label, block.y_label), tuple(rows_of))


def _plot_lines(plot: Plot, width: int, color: bool) -> Iterator[str]:
    x_axis, y_axis = scales.axes(plot)
    columns = width - _MARGIN
    dots = np.zeros((_HEIGHT, columns), np.int64)
    owner = np.full((_HEIGHT, columns), -1)
    for number, curve in enumerate(plot.curves):
        dashes = _DASHES[0 if color else number % len(_DASHES)]
        xs = x_axis.place(curve.x) * (2 * columns - 1)
        ys = (1.0 - y_axis.place(curve.y)) * (4 * _HEIGHT - 1)
        for step, (x, y) in enumerate(_path(xs, ys)):
            if dashes[step % len(dashes)]:
                dots[y // 4, x // 2] |= _DOTS[x % 2][y % 4]
                owner[y // 4, x // 2] = number
    yield paint(fit(one_line(plot.y_label), width).rstrip(), DIM, color)
    for row in range(_HEIGHT):
        share = 1.0 - row / (_HEIGHT - 1)
        label = scales.short(y_axis.value(share)) if row in (0, _HEIGHT // 2, _HEIGHT - 1) else ""
        parts = []
        for column in range(columns):
            mark = chr(0x2800 + int(dots[row, column])) if dots[row, column] else " "
            parts.append(paint(mark, _COLORS[owner[row, column] % len(_COLORS)], color and mark != " "))
        yield f"{label:>{_MARGIN - 2}} │{''.join(parts).rstrip()}"
    yield f"{' ' * (_MARGIN - 1)}└{'─' * columns}"
    yield " " * _MARGIN + _ticks(x_axis, columns)
    yield (
        " " * _MARGIN
        + fit(one_line(f"{plot.x_label}{' (logarithmic)' if plot.x_log else ''}"), columns).rstrip()
    )
    if len(plot.curves) > 1:
        yield from (" " * _MARGIN + line for line in _legend_lines(plot, columns, color))


def _legend_lines(plot: Plot, width: int, color: bool) -> Iterator[str]:
    """The curves' names, each after a piece of its line."""
    line, used = "", 0
    for number, curve in enumerate(plot.curves):
        dashes = _DASHES[0 if color else number % len(_DASHES)]
        on = [dashes[step % len(dashes)] for step in range(8)]
        sample = "".join(chr(0x2800 + 0x04 * on[at] + 0x20 * on[at + 1]) for at in range(0, 8, 2))
        name = fit(one_line(curve.name), width - 5).rstrip()
        size = cell_width(name) + 5
        if line and used + 2 + size > width:
            yield line
            line, used = "", 0
        gap = "  " if line else ""
        line += f"{gap}{paint(sample, _COLORS[number % len(_COLORS)], color)} {name}"
        used += len(gap) + size
    yield line


def _path(xs: np.ndarray, ys: np.ndarray) -> Iterator[tuple[int, int]]:
    """The dots of a polyline."""
    if not len(xs):
        return
    before = (round(float(xs[0])), round(float(ys[0])))
    yield before
    for x, y in zip(xs[1:], ys[1:], strict=True):
        now = (round(float(x)), round(float(y)))
        steps = max(abs(now[0] - before[0]), abs(now[1] - before[1]))
        for step in range(1, steps + 1):
            share = step / steps
            yield (
                round(before[0] + (now[0] - before[0]) * share),
                round(before[1] + (now[1] - before[1]) * share),
            )
        before = now


def _ticks(axis: scales.Axis, columns: int) -> str:
    line = [" "] * columns
    for value in axis.ticks():
        label = scales.short(value)
        at = round(float(axis.place(np.array([value]))[0]) * (columns - 1))
        at = max(0, min(columns - len(label), at - len(label) // 2))
        if all(character == " " for character in line[max(0, at - 1) : at + len(label) + 1]):
            line[at : at + len(label)] = label
    return "".join(line).rstrip()


def _heat_lines(heat: Heat, width: int, color: bool) -> Iterator[str]:
    room = width - _MARGIN
    columns = room // len(heat.x) * len(heat.x) or room  # whole columns per value, if there is room
    rows = min(2 * _HEIGHT if color else _HEIGHT, len(heat.y))
    rows += rows % 2 if color else 0
    across = np.minimum(np.arange(columns) * len(heat.x) // columns, len(heat.x) - 1)
    down = np.round(np.linspace(0, len(heat.y) - 1, rows)).astype(int)
    span = heat.high - heat.low or 1.0
    share = np.clip((heat.values[np.ix_(down, across)] - heat.low) / span, 0.0, 1.0)
    yield paint(fit(one_line(f"{heat.y_label}, downwards"), width).rstrip(), DIM, color)
    step = 2 if color else 1
    for row in range(0, rows, step):
        if color:
            upper, lower = (_levels(share[at], len(_RAMP)) for at in (row, row + 1))
            line = "".join(
                f"\x1b[38;5;{_RAMP[a]};48;5;{_RAMP[b]}m▀" for a, b in zip(upper, lower, strict=True)
            )
            line += RESET
        else:
            line = "".join(_SHADES[level] for level in _levels(share[row], len(_SHADES)))
        label = scales.short(float(heat.y[down[row]])) if row % (4 * step) == 0 else ""
        yield f"{label:>{_MARGIN - 2}} │{line}"
    axis = scales.Axis(float(heat.x[0]), float(heat.x[-1]), log=False)
    yield " " * _MARGIN + _ticks(axis, columns)
    ends = f"{one_line(heat.x_label)}; {scales.short(heat.low)} {_ramp(color)} {scales.short(heat.high)}"
    yield " " * _MARGIN + ends


def _ramp(color: bool) -> str:
    if not color:
        return _SHADES
    return "".join(f"\x1b[38;5;{number}m█" for number in _RAMP) + RESET


def _levels(share: np.ndarray, count: int) -> list[int]:
    return [min(count - 1, int(value * count)) for value in share]
