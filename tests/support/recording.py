"""Screens of a running app as one animated SVG that loads nothing. Equal rows are drawn once."""

from __future__ import annotations

from collections import defaultdict
from html import escape
from typing import Any

from picture import BASE, HEIGHT, WIDTH, Drawing, draw, frame

_CAPTION = 2  # rows below the screen
Spans = tuple[tuple[int, int], ...]  # of frames, from and before


class Recorder:
    """Collects screens. Each is shown for its time, then the recording begins again."""

    def __init__(self) -> None:
        self._classes: dict[str, str] = {}
        self._frames: list[tuple[list[str], float]] = []
        self._first: Drawing | None = None
        self._still = 0
        self.caption = ""

    def keep(self, app: Any, seconds: float, *, still: bool = False) -> None:
        """Add the screen as it is, or more time for an equal one. still: where motion is not wanted."""
        found = draw(app, self._classes)
        self._first = self._first or found
        rows = [*found.rows, self._drawn_caption(found)]
        if self._frames and self._frames[-1][0] == rows:
            self._frames[-1] = (rows, self._frames[-1][1] + seconds)
        else:
            self._frames.append((rows, seconds))
        if still:
            self._still = len(self._frames) - 1

    def _drawn_caption(self, drawing: Drawing) -> str:
        y, wide = len(drawing.rows) * HEIGHT, drawing.columns * WIDTH
        line = f'<path d="M0 {y + 8}H{wide:g}" stroke="{drawing.fore}" opacity=".25"/>'
        text = escape(self.caption, quote=False)
        return f'{line}<text x="{WIDTH}" y="{y + HEIGHT + BASE - 4}" fill="{drawing.fore}">{text}</text>'

    def _places(self) -> dict[str, Spans]:
        """When each drawn row is on the screen, by numbers of frames."""
        spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for number, (rows, _) in enumerate(self._frames):
            for row in filter(None, rows):
                if spans[row] and spans[row][-1][1] == number:
                    spans[row][-1] = (spans[row][-1][0], number + 1)
                else:
                    spans[row].append((number, number + 1))
        return {row: tuple(found) for row, found in spans.items()}

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return sum(seconds for _, seconds in self._frames)

    def svg(self) -> str:
        """The recording."""
        assert self._first is not None
        ends = [0.0]
        for _, seconds in self._frames:
            ends.append(ends[-1] + seconds)
        groups: dict[Spans, list[str]] = defaultdict(list)
        for row, spans in self._places().items():
            groups[spans].append(row)
        style = [
            f"g g{{visibility:hidden;animation:{ends[-1]:.2f}s step-end infinite}}",
            "g .still{visibility:visible}",
        ]
        drawn = []
        for number, (spans, rows) in enumerate(groups.items()):
            body = "\n".join(rows)
            if spans == ((0, len(self._frames)),):
                drawn.append(body)
                continue
            steps = {0.0: "hidden"}
            for begin, end in spans:
                steps |= {ends[begin]: "visible", ends[end]: "hidden"}
            steps.pop(ends[-1], None)
            keys = "".join(f"{100 * at / ends[-1]:.3f}%{{visibility:{how}}}" for at, how in steps.items())
            still = ' class="still"' if any(begin <= self._still < end for begin, end in spans) else ""
            style.append(f"@keyframes k{number}{{{keys}}}")
            drawn.append(f'<g style="animation-name:k{number}"{still}>{body}</g>')
        style.append("@media (prefers-reduced-motion:reduce){g g{animation:none}}")
        return frame(self._first, self._classes, "\n".join(drawn), style="".join(style), extra=_CAPTION)
