"""What a part of the screen looks like, row by row, against a file in tests/tui/snapshots.

ROPECHAT_SNAPSHOTS=write writes the files again; look at the difference before you keep it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "tui" / "snapshots"


def drawn(widget: Any) -> str:
    """Each row of a widget, and below it the styles: column, then what differs from plain."""
    return _drawn(widget.render_line(y) for y in range(widget.size.height))


def shown(c: Any, widget: Any) -> str:
    """The same of what a running chat shows where a widget stands, with all that is in it."""
    x, y, width, height = widget.region
    return _drawn(strip.crop(x, x + width) for strip in c.strips()[y : y + height])


def _drawn(strips: Iterable[Any]) -> str:
    lines: list[str] = []
    for strip in strips:
        lines.append(f"|{strip.text.rstrip()}")
        column = 0
        for text, style, _ in strip:
            if style and text.strip() and (words := _named(style)):
                lines.append(f"  {column}: {words}")
            column += len(text)
    return "\n".join(lines) + "\n"


def _named(style: Any) -> str:
    flags = [name for name in ("bold", "italic", "underline", "reverse", "strike") if getattr(style, name)]
    fore = f"{style.color.name}" if style.color else ""
    back = f"on {style.bgcolor.name}" if style.bgcolor else ""
    return " ".join(word for word in (*flags, fore, back) if word)


def compare(name: str, found: str) -> None:
    file = FOLDER / f"{name}.txt"
    if os.environ.get("ROPECHAT_SNAPSHOTS") == "write":
        FOLDER.mkdir(exist_ok=True)
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8"), f"{name} looks different; look at the difference"
