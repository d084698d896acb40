"""Plots and heat maps as SVG: polylines and rectangles, no script, nothing from outside."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import numpy as np

from ropechat.inspector.rope import scales, term
from ropechat.inspector.rope.blocks import Heat, Plot
from ropechat.util.text import one_line
from ropechat.util.width import cell_width

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ropechat.inspector.rope.blocks import View

_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 22, 38
_LEGEND_LINE, _LINE, _CHARACTER = 16, 16, 6.8
_TEXT_COLUMNS = 100
_MOST_ROWS, _MOST_COLUMNS, _LEVELS = 128, 256, 21
STYLE = """
svg{font:12px ui-monospace,Menlo,Consolas,monospace;background:#fff;color:#1b1f24}
text{fill:currentColor}.axis,.grid,.line{fill:none;stroke:currentColor}.grid{stroke-opacity:.15}
.line{stroke-width:1.6}.s1{stroke:#0969da}.s2{stroke:#bc4c00}.s3{stroke:#8250df}.s4{stroke:#1a7f37}
.s5{stroke:#cf222e}.s6{stroke:#57606a}.h{font-weight:bold}
@media (prefers-color-scheme:dark){svg{background:#0d1117;color:#e6edf3}.s1{stroke:#58a6ff}.s2{stroke:#f0883e}
.s3{stroke:#bc8cff}.s4{stroke:#3fb950}.s5{stroke:#ff7b72}.s6{stroke:#8b949e}}
"""


def document(views: Iterable[View], title: str) -> Iterator[str]:
    """Yield one SVG file: the views from top to bottom, notes and tables as lines of text."""
    parts: list[str] = []
    top = 24.0
    parts.append(_text(8, top, title, "h"))
    for view in views:
        top += 1.5 * _LINE
        parts.append(_text(8, top, view.title, "h"))
        top += _LINE / 2
        for block in view.blocks:
            if isinstance(block, Plot | Heat):
                body, height = _drawn(block)
                parts.append(f'<g transform="translate(0 {top:.0f})">{body}</g>')
                top += height
                continue
            for line in term.block_lines(block, _TEXT_COLUMNS):
                top += _LINE
                parts.append(_text(8, top, line))
            top += _LINE / 2
    width = max(_WIDTH, int(_TEXT_COLUMNS * 7.4) + 16)
    height = top + 16
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" '
        f'viewBox="0 0 {width} {height:.0f}"><style>{STYLE}</style>\n'
    )
    yield from (part + "\n" for part in parts)
    yield "</svg>\n"


def figure(block: Plot | Heat) -> str:
    """One plot or heat map as an <svg> element for a page whose style knows axis, grid, line and s1 to s6."""
    body, height = _drawn(block)
    label = _escaped(block.name)
    size = f"0 0 {_WIDTH} {height:.0f}"
    return f'<svg class="plot" viewBox="{size}" role="img" aria-label="{label}">{body}</svg>\n'


def _drawn(block: Plot | Heat) -> tuple[str, float]:
    return _plot(block) if isinstance(block, Plot) else _heat(block)


def _plot(plot: Plot) -> tuple[str, float]:
    x_axis, y_axis = scales.axes(plot)
    across, down = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    parts = [_text(4, 14, plot.y_label)]
    for value in y_axis.ticks():
        y = _TOP + down * (1 - float(y_axis.place(np.array([value]))[0]))
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}h{across}"/>')
        parts.append(_text(_LEFT - 6, y + 4, scales.short(value), anchor="end"))
    parts += _x_ticks(x_axis, across, _TOP, down)
    parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}v{down}h{across}"/>')
    for number, curve in enumerate(plot.curves):
        xs = _LEFT + across * x_axis.place(curve.x)
        ys = _TOP + down * (1.0 - y_axis.place(curve.y))
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
        parts.append(f'<polyline class="line s{number % 6 + 1}" points="{points}"/>')
    label = f"{plot.x_label}{' (logarithmic)' if plot.x_log else ''}"
    parts.append(_text(_LEFT + across / 2, _HEIGHT - 4, label, anchor="middle"))
    x, y = float(_LEFT), float(_HEIGHT)
    for number, curve in enumerate(plot.curves if len(plot.curves) > 1 else ()):
        size = 34 + _CHARACTER * cell_width(curve.name) + 14
        if x > _LEFT and x + size > _WIDTH:
            x, y = float(_LEFT), y + _LEGEND_LINE
        parts.append(f'<path class="line s{number % 6 + 1}" d="M{x:.0f} {y + 8:.0f}h24"/>')
        parts.append(_text(x + 30, y + 12, curve.name))
        x += size
    return "".join(parts), y + (_LEGEND_LINE + 8 if len(plot.curves) > 1 else 8)


def _x_ticks(axis: scales.Axis, across: float, top: float, down: float) -> list[str]:
    parts = []
    for value in axis.ticks():
        x = _LEFT + across * float(axis.place(np.array([value]))[0])
        parts.append(f'<path class="grid" d="M{x:.1f} {top}v{down:.1f}"/>')
        parts.append(_text(x, top + down + 16, scales.short(value), anchor="middle"))
    return parts


def _heat(heat: Heat) -> tuple[str, float]:
    down_at = np.unique(np.linspace(0, len(heat.y) - 1, min(_MOST_ROWS, len(heat.y))).astype(int))
    across_at = np.unique(np.linspace(0, len(heat.x) - 1, min(_MOST_COLUMNS, len(heat.x))).astype(int))
    values = heat.values[np.ix_(down_at, across_at)]
    share = np.clip((values - heat.low) / ((heat.high - heat.low) or 1.0), 0.0, 1.0)
    levels = np.minimum((share * _LEVELS).astype(int), _LEVELS - 1)
    across, down = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    parts = [_text(4, 14, f"{heat.y_label}, downwards; {heat.name}: {heat.low:g} blue, {heat.high:g} red")]
    scale = f"translate({_LEFT} {_TOP}) scale({across / len(across_at):.4f} {down / len(down_at):.4f})"
    parts.append(f'<g transform="{scale}" shape-rendering="crispEdges">')
    for level in np.unique(levels):
        path = "".join(_runs(levels == level))
        parts.append(f'<path fill="{_color(int(level))}" d="{path}"/>')
    parts.append("</g>")
    for row in np.unique(np.linspace(0, len(down_at) - 1, 5).astype(int)):
        y = _TOP + down * (row + 0.5) / len(down_at)
        parts.append(_text(_LEFT - 6, y + 4, scales.short(float(heat.y[down_at[row]])), anchor="end"))
    for column in np.unique(np.linspace(0, len(across_at) - 1, 9).astype(int)):
        x = _LEFT + across * (column + 0.5) / len(across_at)
        parts.append(
            _text(x, _TOP + down + 16, scales.short(float(heat.x[across_at[column]])), anchor="middle")
        )
    parts.append(_text(_LEFT + across / 2, _HEIGHT - 4, heat.x_label, anchor="middle"))
    return "".join(parts), _HEIGHT + 8.0


def _runs(mask: np.ndarray) -> Iterator[str]:
    """Rectangles of one row's height that cover a mask."""
    for row, line in enumerate(mask):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], line.astype(np.int8), [0]])))
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            yield f"M{start} {row}h{end - start}v1h{start - end}z"


def _color(level: int) -> str:
    """From blue over white to red."""
    share = level / (_LEVELS - 1) * 2 - 1
    ends = (178, 24, 43) if share > 0 else (33, 102, 172)
    return "#" + "".join(f"{round(247 + (end - 247) * abs(share)):02x}" for end in ends)


def _text(x: float, y: float, text: str, css: str = "", *, anchor: str = "") -> str:
    css = f' class="{css}"' if css else ""
    anchor = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{css}{anchor} xml:space="preserve">{_escaped(text)}</text>'


def _escaped(text: str) -> str:
    return html.escape(one_line(text))
