"""Loss curves as SVG: `python -m training.curves OUT.svg NAME=log.json ...`."""

import json
import sys
from pathlib import Path

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 150, 30, 50
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
DASHES = ("", "7 4", "2 3", "9 3 2 3")
Curve = list[tuple[int, float]]


def curve_of(file: Path, value: str = "held_out") -> Curve:
    """(step, loss) of a log of train.py."""
    return [(entry["step"], entry[value]) for entry in json.loads(file.read_text(encoding="utf-8"))]


def _ticks(low: float, high: float, step: float) -> list[float]:
    first = int(low / step) + (low > int(low / step) * step)
    return [at * step for at in range(first, int(high / step + 1e-9) + 1)]


class Plane:
    """From steps and losses to places in the picture."""

    def __init__(self, curves: dict[str, Curve]) -> None:
        losses = [loss for curve in curves.values() for _, loss in curve]
        self.last = max(step for curve in curves.values() for step, _ in curve)
        self.low, self.high = min(losses) * 0.95, max(losses) * 1.02

    def x(self, step: float) -> float:
        """Column of a step."""
        return LEFT + (WIDTH - LEFT - RIGHT) * step / self.last

    def y(self, loss: float) -> float:
        """Row of a loss."""
        return TOP + (HEIGHT - TOP - BOTTOM) * (self.high - loss) / (self.high - self.low)


def _axes(plane: Plane) -> list[str]:
    lines = []
    gap = next(gap for gap in (0.05, 0.1, 0.25, 0.5, 1, 2) if (plane.high - plane.low) / gap <= 9)
    for loss in _ticks(plane.low, plane.high, gap):
        y = plane.y(loss)
        lines.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{loss:g}</text>')
    stride = next(stride for stride in (20, 50, 100, 200, 500, 1000, 2000) if plane.last / stride <= 8)
    for step in range(0, plane.last + 1, stride):
        x = plane.x(step)
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{step}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    lines.append(f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">step</text>')
    lines.append(f'<text x="{LEFT}" y="18">held-out loss, nats per token</text>')
    return lines


def svg(curves: dict[str, Curve]) -> str:
    """The picture of up to four curves; colour and dashes both tell them apart."""
    plane = Plane(curves)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13" fill="#222">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        *_axes(plane),
    ]
    styles = zip(COLOURS, DASHES, strict=True)
    for row, ((name, curve), (colour, dash)) in enumerate(zip(curves.items(), styles, strict=False)):
        points = " ".join(f"{plane.x(step):.1f},{plane.y(loss):.1f}" for step, loss in curve)
        style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
        lines.append(f'<polyline points="{points}" {style}/>')
        x, y = WIDTH - RIGHT + 12, TOP + 20 + 24 * row
        lines.append(f'<polyline points="{x},{y - 4} {x + 28},{y - 4}" {style}/>')
        lines.append(f'<text x="{x + 34}" y="{y}">{name}</text>')
    return "\n".join([*lines, "</svg>\n"])


def main() -> None:
    """Draw the logs that are named."""
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    pairs = [argument.partition("=") for argument in sys.argv[2:]]
    curves = {name: curve_of(Path(file)) for name, _, file in pairs}
    Path(sys.argv[1]).write_text(svg(curves), encoding="utf-8")


if __name__ == "__main__":
    main()
