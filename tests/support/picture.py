"""A screen of a running app as a small SVG that loads nothing: no fonts, no scripts."""

from __future__ import annotations

import re
from html import escape
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.color import ColorType
from rich.terminal_theme import MONOKAI, TerminalTheme

WIDTH, HEIGHT, BASE = 12.04, 23, 18  # of a cell, and where letters stand in it, at 20 px of DejaVu Sans Mono
EDGE = 10  # around the screen
FONTS = "'DejaVu Sans Mono',Menlo,Consolas,'Liberation Mono',monospace"
PLAIN = {"background": "#101214", "foreground": "#d5d8dc"}  # of a terminal that has its own colours
_WORDS = re.compile(r"\S+(?: \S+)*")  # what one blank parts stays together


class Drawing(NamedTuple):
    """A screen. rows: the elements of each row. back: the colour behind them."""

    rows: list[str]
    columns: int
    back: str
    fore: str


def draw(app: Any, classes: dict[str, str]) -> Drawing:
    """What the terminal would show now. classes: names of looks, of this and of other screens."""
    update = app.screen._compositor.render_update(full=True, screen_stack=app._background_screens)
    back, fore = (_hex(app.theme_variables[name], own) for name, own in PLAIN.items())
    rows: list[str] = []
    for y, strips in enumerate(update.strips):
        drawn, x = list[str](), 0
        for segment in (segment for strip in strips for segment in strip):
            if segment.text and not segment.control:
                drawn += _segment(segment.text, segment.style, x, y, (back, fore), classes)
                x += cell_len(segment.text)
        rows.append("\n".join(drawn))
    return Drawing(rows, app.size.width, back, fore)


def frame(drawing: Drawing, classes: dict[str, str], inside: str, *, style: str = "", extra: int = 0) -> str:
    """The SVG around elements of the size of a screen. extra: rows below it."""
    wide, high = drawing.columns * WIDTH + 2 * EDGE, (len(drawing.rows) + extra) * HEIGHT + 2 * EDGE
    looks = "".join(f".{name}{{{look}}}" for look, name in classes.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high}" width="{wide:g}">\n'
        f"<style>text{{font:20px {FONTS};white-space:pre}}{looks}{style}</style>\n"
        f'<rect width="{wide:g}" height="{high}" rx="8" fill="{drawing.back}"/>\n'
        f'<g transform="translate({EDGE},{EDGE})">\n{inside}\n</g>\n</svg>\n'
    )


def svg(app: Any) -> str:
    """What the terminal would show now, as a picture."""
    classes: dict[str, str] = {}
    drawing = draw(app, classes)
    return frame(drawing, classes, "\n".join(filter(None, drawing.rows)))


def _hex(colour: str, own: str) -> str:
    return colour if colour.startswith("#") else own


def _segment(
    text: str, style: Any, x: int, y: int, plain: tuple[str, str], classes: dict[str, str]
) -> list[str]:
    """A stretch of one style: its background, then its words."""
    back, fore = plain[0], plain[1]
    if style is not None:
        back, fore = _colour(style.bgcolor, back), _colour(style.color, fore)
        if style.reverse:
            back, fore = fore, back
    found = []
    if back != plain[0]:
        wide = cell_len(text) * WIDTH
        found.append(
            f'<rect x="{x * WIDTH:.1f}" y="{y * HEIGHT}" width="{wide:.1f}" height="{HEIGHT}" fill="{back}"/>'
        )
    look = f"fill:{fore}" + _look(style)
    for match in _WORDS.finditer(text):
        name = classes.setdefault(look, f"a{len(classes)}")
        left, wide = (x + cell_len(text[: match.start()])) * WIDTH, cell_len(match[0]) * WIDTH
        found.append(
            f'<text class="{name}" x="{left:.1f}" y="{y * HEIGHT + BASE}" textLength="{wide:.1f}">'
            f"{escape(match[0], quote=False)}</text>"
        )
    return found


def _look(style: Any) -> str:
    if style is None:
        return ""
    lines = [name for name, on in (("underline", style.underline), ("line-through", style.strike)) if on]
    return (
        (";font-weight:bold" if style.bold else "")
        + (";font-style:italic" if style.italic else "")
        + (f";text-decoration:{' '.join(lines)}" if lines else "")
        + (";opacity:.6" if style.dim else "")
    )


def _colour(colour: Any, default: str, theme: TerminalTheme = MONOKAI) -> str:
    if colour is None or colour.type is ColorType.DEFAULT:
        return default
    return str(colour.get_truecolor(theme).hex)
