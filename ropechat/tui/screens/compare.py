"""Two answers side by side: what they share, where they part, and what each costs in bits."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING, cast

from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from ropechat.text import clean
from ropechat.tree import bits, shared
from ropechat.tui.render.tint import BY_NAME
from ropechat.tui.screens.sheet import Sheet, bindings
from ropechat.tui.theme import tints

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

    from ropechat.trace import Step
    from ropechat.tree import Node, Tree
    from ropechat.tui.app import ChatApp

BARS = "▁▂▃▄▅▆▇█"
CURVE = 60  # cells of a curve at most
LABEL = 8  # cells before a curve
DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))  # of a Braille cell: left and right, from below


def totals(node: Node) -> str:
    """Tokens, bits and perplexity of an answer."""
    ppl = "–" if math.isnan(node.ppl) else f"{node.ppl:.2f}"
    return f"{len(node.steps):,} tok  Σ {node.bits:.1f} b  ppl {ppl}"


def curve(steps: Sequence[Step], cells: int = CURVE) -> str:
    """Bits per token as bars: each the mean of a stretch of the answer; a full bar is 8 bits."""
    cells = min(cells, len(steps))
    bars = []
    for cell in range(cells):
        stretch = steps[cell * len(steps) // cells : (cell + 1) * len(steps) // cells]
        mean = sum(map(bits, stretch)) / len(stretch)
        bars.append(BARS[min(len(BARS) - 1, int(mean))])
    return "".join(bars)


def cumulative(
    steps: Sequence[Step], length: int, total: float, cells: int = CURVE, rows: int = 2
) -> list[str]:
    """The sum of bits so far as a line of Braille dots, `rows` high.

    length, total: the tokens and bits that fill the width and the height, so that two curves can be compared.
    """
    sums = list(accumulate(map(bits, steps)))
    cells = min(cells, length)
    grid = [[0] * cells for _ in range(rows)]
    for column in range(2 * cells):
        at = (column + 1) * length // (2 * cells) - 1
        if not 0 <= at < len(sums):
            continue
        level = min(4 * rows - 1, int(sums[at] / (total or 1.0) * (4 * rows - 1) + 0.5))
        grid[rows - 1 - level // 4][column // 2] |= DOTS[column % 2][level % 4]
    return ["".join(chr(0x2800 + dots) if dots else " " for dots in row).rstrip() for row in grid]


def verdict(left: Node, right: Node) -> str:
    """What the comparison says, in one line."""
    common = shared(left.steps, right.steps)
    rest = f"{len(left.steps) - common} left and {len(right.steps) - common} right follow"
    difference = left.bits - right.bits
    side = "right" if difference > 0 else "left"
    same = abs(difference) < 0.05
    cheaper = "both cost the same" if same else f"{side} is {abs(difference):.1f} bits cheaper"
    return f"{common} tokens shared · {rest} · {cheaper}"


class CompareScreen(Sheet["str | None"]):
    """The two answers, tinted by surprisal from where they part; the result is the one to go on with."""

    BINDINGS = bindings("compare", "answer.compare")
    context = "compare"
    heading = "compare"
    items = (("↓ ↑", "scroll both"), "compare.keep_left", "compare.keep_right", "sheet.leave")

    def __init__(self, tree: Tree, left: Node, right: Node) -> None:
        super().__init__()
        self._chat = tree
        self._pair = left, right

    def compose(self) -> ComposeResult:
        """Two columns and a verdict."""
        with Vertical(id="compare", classes="sheet"):
            with Horizontal(id="sides"):
                for number, node in enumerate(self._pair):
                    with VerticalScroll(id=f"side{number}"):
                        yield Static(classes="head", markup=False)
                        yield Static(self._body(node), markup=False)
            yield Static(Content.styled(verdict(*self._pair), "bold"), id="verdict")
            yield self.key_line

    def on_mount(self) -> None:
        """Keys scroll both."""
        for side in self.query(VerticalScroll):
            side.can_focus = False

    def on_resize(self) -> None:
        """Curves as wide as a column."""
        cells = min(CURVE, self.app.size.width // 2 - LABEL - 6)
        for node, head in zip(self._pair, self.query(".head").results(Static), strict=True):
            head.update(self._head(node, min(max(4, cells), max(1, *(len(one.steps) for one in self._pair)))))

    def _head(self, node: Node, cells: int) -> Content:
        place, of = self._chat.place(node.id)
        longest = max(len(one.steps) for one in self._pair)
        total = max(one.bits for one in self._pair)
        upper, lower = cumulative(node.steps, longest, total, cells)
        return Content.assemble(
            (f"{place}/{of}  ", "bold $primary"),
            totals(node),
            ("\nb/tok   ", "$quiet"),
            curve(node.steps, max(1, cells * len(node.steps) // longest)),
            f"\n{'':{LABEL}}",
            (upper, "$primary"),
            ("\nsum     ", "$quiet"),
            (lower, "$primary"),
            "\n",
        )

    def _body(self, node: Node) -> Content:
        app = cast("ChatApp", self.app)
        styles = tints(app.current_theme.dark, app.native_ansi_color, app.no_color)
        common = shared(*(one.steps for one in self._pair))
        start = "".join(step.text for step in node.steps[:common])
        parts: list[tuple[str, str]] = [
            (clean(start), "$quiet"),
            (f"\n── token {common + 1} ──\n", "$primary"),
        ]
        tint = BY_NAME["surprisal"]
        for order, step in enumerate(node.steps[common:]):
            word = step.text.lstrip(" ")
            blank = step.text[: len(step.text) - len(word)] if order else ""
            parts += [(blank, ""), (clean(word), styles[tint.level(step, None)])]
        return Content.assemble(*parts)

    def action_move(self, by: int) -> None:
        """Both at once."""
        for side in self.query(VerticalScroll):
            side.scroll_relative(y=by, animate=False)

    def action_keep(self, side: int) -> None:
        """Go on with one of them."""
        self.dismiss(self._pair[side].id)
