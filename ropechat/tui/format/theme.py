"""Colours: our themes, the themes for terminals with few colours or none, and the styles of tints."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from textual.theme import BUILTIN_THEMES, Theme

if TYPE_CHECKING:
    from collections.abc import Mapping

_ANSI = {"rule": "ansi_bright_black", "quiet": "ansi_default"}

DARK = Theme(
    name="ropechat-dark",
    primary="#d9a766",
    secondary="#7fa7c9",
    accent="#d9a766",
    warning="#e0b060",
    error="#e07a70",
    success="#8fb573",
    foreground="#d5d8dc",
    background="#14171b",
    surface="#14171b",
    panel="#20252b",
    dark=True,
    variables={
        "rule": "#333a43",
        "quiet": "#8b939d",
        "input-selection-background": "#d9a766 30%",
        "scrollbar": "#333a43",
        "scrollbar-hover": "#4a535e",
        "scrollbar-active": "#5c6773",
        "scrollbar-background": "#14171b",
        "scrollbar-background-hover": "#14171b",
        "scrollbar-background-active": "#14171b",
    },
)
LIGHT = Theme(
    name="ropechat-light",
    primary="#8a5a12",
    secondary="#2f5f86",
    accent="#8a5a12",
    warning="#8a5a12",
    error="#a8322a",
    success="#3f6b25",
    foreground="#24292f",
    background="#fbfaf7",
    surface="#fbfaf7",
    panel="#efede7",
    dark=False,
    variables={
        "rule": "#d3cfc4",
        "quiet": "#656c75",
        "scrollbar": "#d3cfc4",
        "scrollbar-background": "#fbfaf7",
    },
)
ANSI_DARK, ANSI_LIGHT = (
    replace(BUILTIN_THEMES[name], name=f"ropechat-{name}", variables=BUILTIN_THEMES[name].variables | _ANSI)
    for name in ("ansi-dark", "ansi-light")
)
OWN_THEMES = (DARK, LIGHT, ANSI_DARK, ANSI_LIGHT)
DEFAULTS = {"rule": "#6b727c", "quiet": "#868d96"}  # for Textual's own themes

_TINT_DARK = ("", "on #2b2a22", "on #47391f", "on #74491d", "#fff4e4 on #a3452b")
_TINT_LIGHT = ("", "on #f4ecd6", "on #f0d9a5", "on #edb978", "#1d1208 on #e58f6b")
_TINT_16 = ("", "yellow", "black on yellow", "bright_white on magenta", "bold bright_white on red")
_NAMES_16 = {"black", "yellow", "magenta", "red", "bright_white"}
_TINT_NONE = ("", "underline", "bold underline", "reverse", "bold reverse")


def tint_styles(dark: bool, ansi: bool, colourless: bool = False) -> tuple[str, ...]:
    """The style of each tint level as text; without colours: underline and reverse."""
    if colourless:
        return _TINT_NONE
    return _TINT_16 if ansi else _TINT_DARK if dark else _TINT_LIGHT


def against_style(dark: bool, ansi: bool, colourless: bool = False) -> str:
    """The style of what makes a token less probable, beside `tint_styles`."""
    if colourless:
        return "italic"
    return "bright_white on blue" if ansi else "on #23405a" if dark else "on #cfe0ee"


def for_content(style: str) -> str:
    """A style of `tint_styles`, which has Rich's names, with Textual's names of the terminal's colours."""
    return " ".join(f"ansi_{word}" if word in _NAMES_16 else word for word in style.split())


def choose_theme(environ: Mapping[str, str], wanted: str = "auto") -> str:
    """The name of the first theme: the wanted one, or with few colours one of the terminal's own.

    With NO_COLOR the theme is always of the terminal's own colours, dark or light as wanted.
    """
    if name := environ.get("TEXTUAL_THEME"):
        return name
    if "NO_COLOR" in environ:
        return ANSI_LIGHT.name if wanted.endswith("light") else ANSI_DARK.name
    if wanted != "auto":
        return f"ropechat-{wanted}" if f"ropechat-{wanted}" in {own.name for own in OWN_THEMES} else wanted
    return DARK.name if _many_colours(environ) else ANSI_DARK.name


def setting_of(name: str) -> str:
    """The setting that chooses a theme."""
    return name.removeprefix("ropechat-")


def _many_colours(environ: Mapping[str, str]) -> bool:
    if environ.get("COLORTERM", "").strip().lower() in ("truecolor", "24bit"):
        return True
    term = environ.get("TERM", "")
    return any(
        mark in term for mark in ("256color", "direct", "kitty", "ghostty", "alacritty", "wezterm", "foot")
    )
