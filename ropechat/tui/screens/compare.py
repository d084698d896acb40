"""Two to four answers side by side: what they share, where they part, and how probable each is in bits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from ropechat.chat import presets
from ropechat.conversation import common_prefix_length
from ropechat.tui.format.lists import describe_node
from ropechat.tui.format.theme import tint_styles
from ropechat.tui.render.sparkline import MAX_CELLS, cumulative_curve, sparkline
from ropechat.tui.render.tint import BY_NAME
from ropechat.tui.render.width import fit
from ropechat.tui.screens.dialog import Dialog, bindings
from ropechat.util.text import clean, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events
    from textual.app import ComposeResult

    from ropechat.conversation import ConversationTree, Node
    from ropechat.tui.commands.keymap import Keymap

NARROWEST = 36  # cells of a column where more than two stand side by side
MARGIN = 4  # cells of a column that are not text: line, edges, scrollbar; and of the dialog
LABEL = 12  # cells before a curve
ROOMY = 40  # rows of a screen with higher curves
TAIL = 3  # rows of what they share


def totals(node: Node, width: int) -> str:
    """Tokens, bits and perplexity of an answer; closer together where they would not fit."""
    ppl = "–" if math.isnan(node.ppl) else f"{node.ppl:.2f}"
    whole = f"{len(node.steps):,} tok  {node.bits:.1f} bits  ppl {ppl}"
    return whole if len(whole) <= width else whole.replace("  ", " ").replace(" bits", "b")


def in_common(nodes: Sequence[Node]) -> int:
    """The number of tokens that all answers begin with."""
    return min(common_prefix_length(nodes[0].steps, node.steps) for node in nodes[1:])


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]])


def verdict(nodes: Sequence[Node]) -> str:
    """What the comparison says; the answers are counted from 1."""
    common = in_common(nodes)
    follow = _listed([f"{len(node.steps) - common:,}" for node in nodes])
    words = [f"{common:,} token{'s' * (common != 1)} shared", f"{follow} follow"]
    if len({node.model for node in nodes}) > 1:
        return " · ".join([*words, "by different models: their bits cannot be compared"])
    first, *others = sorted(range(len(nodes)), key=lambda place: nodes[place].bits)
    more = {place: nodes[place].bits - nodes[first].bits for place in others}
    if max(more.values()) < 0.05:
        words.append("equally likely")
    else:
        less = ", ".join(f"{place + 1} (+{by:.1f} bits)" for place, by in more.items())
        words.append(f"likeliest: {first + 1}, then {less}")
    if any(node.scored < len(node.steps) for node in nodes):
        words.append("tokens without a probability count 0 bits")
    return " · ".join(words)


class CompareScreen(Dialog["str | None"]):
    """The answers, tinted by surprisal from where they part; the result is the one to continue.

    As many columns as have room, two at least; the others come into sight as they are chosen.
    """

    BINDINGS = bindings("compare", "answer.compare")
    context = "compare"
    heading = "compare"
    items = (("↓ ↑", "scroll"), ("← →", "choose"), "sheet.leave")

    def __init__(self, tree: ConversationTree, nodes: Sequence[Node], keymap: Keymap) -> None:
        super().__init__(keymap)
        self._chat, self._answers = tree, list(nodes)
        self._common = in_common(nodes)
        self._chosen = len(nodes) - 1
        self._first = 0  # the column at the left
        self._width = 0  # cells of text in a column

    def compose(self) -> ComposeResult:
        with Vertical(id="compare", classes="sheet"):
            with Horizontal(id="sides"):
                for _ in self._answers:
                    with VerticalScroll(classes="side"):
                        yield Static(classes="head", markup=False)
                        yield Static(classes="body", markup=False)
            yield Static(Content.styled(verdict(self._answers), "bold"), id="verdict")
            yield self.key_hints

    def on_mount(self) -> None:
        for side in self.query(VerticalScroll):
            side.can_focus = False
        key = self.keymap.first
        numbers = f"{key('compare.keep_1')}-{key(f'compare.keep_{len(self._answers)}')}"
        keep = (f"{key('compare.keep')} {numbers}", "continue")
        self.key_hints.show_keys((*self.items[:2], keep, self.items[-1]))

    @property
    def _columns(self) -> int:
        return min(len(self._answers), max(2, self.app.size.width // NARROWEST))

    def on_resize(self) -> None:
        """Show as many columns as fit."""
        width = (self.app.size.width - MARGIN) // self._columns - MARGIN
        if width != self._width:
            self._width = max(4, width)
            for node, body in zip(self._answers, self.query(".body").results(Static), strict=True):
                body.styles.width = self._width  # the same for all: what they share must wrap alike
                body.update(self._body(node))
        self._show()

    def _show(self) -> None:
        """Bring the chosen column into sight, and say which one it is."""
        columns, count = self._columns, len(self._answers)
        self._first = min(max(self._first, self._chosen - columns + 1), self._chosen, count - columns)
        last = self._first + columns
        self.title_with(
            f"{self._first + 1} to {last} of {count}, → ← for the others" if columns < count else ""
        )
        sides = zip(self.query(".side"), self.query(".head").results(Static), self._answers, strict=True)
        for place, (side, head, node) in enumerate(sides):
            side.display = self._first <= place < last
            side.set_class(place > self._first, "-next")
            head.update(self._head(node, place))

    def _head(self, node: Node, place: int) -> Content:
        longest = max(len(one.steps) for one in self._answers)
        cells = min(MAX_CELLS, max(4, self._width - LABEL), max(1, longest))
        total = max(one.bits for one in self._answers)
        rows = 4 if self.app.size.height >= ROOMY else 2
        *upper, lowest = cumulative_curve(node.steps, longest, total, cells, rows)
        here = place == self._chosen
        models = {one.model for one in self._answers}
        name = f"{place + 1}: {describe_node(self._chat, node)}" + " ◂" * here
        writer = f"  {node.model}" if len(models) > 1 else ""
        drawn = "" if node.sampling is None else presets.describe_sampling(node.sampling)
        return Content.assemble(
            (self._cut(name + writer), "bold $primary" if here else ""),
            f"\n{self._cut(totals(node, self._width))}\n",
            (self._cut(drawn), "$quiet"),
            ("\nbits/token  ", "$quiet"),
            sparkline(node.steps, max(1, cells * len(node.steps) // max(1, longest))),
            ("".join(f"\n{'':{LABEL}}{row}" for row in upper), "$primary"),
            ("\nbits so far ", "$quiet"),
            (lowest, "$primary"),
            "\n",
        )

    def _cut(self, text: str) -> str:
        """Cut a text to the width of a column."""
        return fit(one_line(text), self._width).rstrip()

    def _body(self, node: Node) -> Content:
        app = self.app
        styles = tint_styles(app.current_theme.dark, app.native_ansi_color, app.no_color)
        start = clean("".join(step.text for step in node.steps[: self._common]))
        end = start[-TAIL * self._width :]
        before = "… " + end.partition(" ")[2] if len(end) < len(start) else start
        parts: list[tuple[str, str]] = [
            (f"{before}\n" if before else "", "$quiet"),
            (f"── token {self._common + 1:,} ──\n", "$primary"),
        ]
        tint = BY_NAME["surprisal"]
        for order, step in enumerate(node.steps[self._common :]):
            word = step.text.lstrip(" ")
            blank = step.text[: len(step.text) - len(word)] if order else ""
            parts += [(blank, ""), (clean(word), styles[tint.level(step, None)])]
        return Content.assemble(*parts)

    def on_click(self, event: events.Click) -> None:
        """Choose the column under the mouse; the chosen one is continued by a double click."""
        for place, side in enumerate(self.query(VerticalScroll)):
            if side.display and side.region.contains(event.screen_x, event.screen_y):
                if event.chain > 1 and place == self._chosen:
                    self.action_keep()
                else:
                    self.action_choose(place - self._chosen)

    def action_move(self, by: int) -> None:
        """Scroll all columns."""
        for side in self.query(VerticalScroll):
            side.scroll_relative(y=by, animate=False)

    def action_choose(self, by: int) -> None:
        """Choose the next or previous column."""
        self._chosen = min(max(0, self._chosen + by), len(self._answers) - 1)
        self._show()

    def action_keep(self, number: int = 0) -> None:
        """Continue with the chosen answer, or with that of a number."""
        place = number - 1 if number else self._chosen
        if place < len(self._answers):
            self.dismiss(self._answers[place].id)
        else:
            self.say(f"there are {len(self._answers)} answers here")
