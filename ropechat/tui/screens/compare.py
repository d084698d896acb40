"""Two answers side by side: what they share, where they part, and what each costs in bits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, cast

from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from ropechat.text import clean
from ropechat.tree import bits, shared
from ropechat.tui.render.tint import BY_NAME
from ropechat.tui.theme import tints

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

    from ropechat.trace import Step
    from ropechat.tree import Node, Tree
    from ropechat.tui.app import ChatApp

BARS = "▁▂▃▄▅▆▇█"
CURVE = 34  # cells of a curve


def totals(node: Node) -> str:
    """Tokens, bits and perplexity of an answer."""
    ppl = "–" if math.isnan(node.ppl) else f"{node.ppl:.2f}"
    each = f"{node.bits / node.scored:.2f} b/tok" if node.scored else "–"
    return f"{len(node.steps)} tok  Σ {node.bits:.1f} b\n{each}  ppl {ppl}"


def curve(steps: Sequence[Step], cells: int = CURVE) -> str:
    """Bits per token as bars: each the mean of a stretch of the answer; a full bar is 8 bits."""
    if not steps:
        return ""
    cells = min(cells, len(steps))
    bars = []
    for cell in range(cells):
        stretch = steps[cell * len(steps) // cells : (cell + 1) * len(steps) // cells]
        mean = sum(map(bits, stretch)) / len(stretch)
        bars.append(BARS[min(len(BARS) - 1, int(mean))])
    return "".join(bars)


def verdict(left: Node, right: Node) -> str:
    """What the comparison says, in one line."""
    common = shared(left.steps, right.steps)
    rest = f"{len(left.steps) - common} left and {len(right.steps) - common} right come after"
    difference = left.bits - right.bits
    side = "right" if difference > 0 else "left"
    cheaper = f"{side} is {abs(difference):.1f} bits cheaper under this model" if difference else "same bits"
    return f"{common} tokens shared · {rest} · {cheaper}"


class CompareScreen(ModalScreen[None]):
    """The two answers, tinted by surprisal from where they part."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,equals_sign", "dismiss", show=False),
        Binding("j,down", "scroll(1)", show=False),
        Binding("k,up", "scroll(-1)", show=False),
    ]

    def __init__(self, tree: Tree, left: str, right: str) -> None:
        super().__init__()
        self._chat = tree
        self._pair = tree[left], tree[right]

    def compose(self) -> ComposeResult:
        """Two columns and a verdict."""
        left, right = self._pair
        common = shared(left.steps, right.steps)
        with Vertical(id="compare", classes="sheet"):
            with Horizontal(id="sides"):
                for node in self._pair:
                    with VerticalScroll():
                        yield Static(self._head(node))
                        yield Static(self._body(node, common))
            yield Static(Content.styled(verdict(left, right), "bold"))
            yield Static(Content.styled("j k scroll both   esc back", "$quiet"))

    def _head(self, node: Node) -> Content:
        place, of = self._chat.place(node.id)
        name = f"{place}/{of}  {totals(node)}\n"
        return Content.assemble((name, "$primary"), (f"{curve(node.steps)}\n", "$quiet"))

    def _body(self, node: Node, common: int) -> Content:
        app = cast("ChatApp", self.app)
        styles = tints(app.current_theme.dark, app.native_ansi_color, app.no_color)
        start = "".join(step.text for step in node.steps[:common])
        parts: list[tuple[str, str]] = [(clean(start), "$quiet"), ("⑂", "bold $primary")]
        tint = BY_NAME["surprisal"]
        parts += [(clean(step.text), styles[tint.level(step, None)]) for step in node.steps[common:]]
        return Content.assemble(*parts)

    def action_scroll(self, by: int) -> None:
        """Both at once."""
        for side in self.query(VerticalScroll):
            side.scroll_relative(y=by, animate=False)
