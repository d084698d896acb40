"""Two to four answers side by side: what they share, where they part, and how probable each is in bits."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from ropechat.chat import presets
from ropechat.conversation import common_prefix_length, spoken, surprisal_bits, thought_length
from ropechat.tui.format.lists import describe_node
from ropechat.tui.format.theme import for_content, tint_styles
from ropechat.tui.render.sparkline import MAX_CELLS, cumulative_curve, sparkline
from ropechat.tui.render.tint import BY_NAME
from ropechat.tui.screens.dialog import Dialog, bindings
from ropechat.util.text import clean, one_line
from ropechat.util.width import fit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events
    from textual.app import ComposeResult

    from ropechat.conversation import ConversationTree, Node
    from ropechat.tui.commands.keymap import Keymap

NARROWEST = 36  # cells of a column if there are more than two
MARGIN = 4  # cells of a column that are not text: line, edges, scrollbar; and of the dialog
LABEL = 12  # cells before a curve
ROOMY = 40  # rows of a screen with higher curves
TAIL = 3  # rows of what they share


def totals(node: Node, width: int) -> str:
    """Tokens, bits and perplexity of an answer; without the perplexity where it would not fit."""
    ppl = "–" if math.isnan(node.ppl) else f"{node.ppl:.2f}"
    sums = f"{len(node.steps):,} tok  {node.bits:.1f} bits"
    whole = f"{sums}  ppl {ppl}"
    return whole if len(whole) <= width else sums


def parts(node: Node, width: int) -> str:
    """Tokens and bits of thought and answer, in short where there is little room; "" without a thought."""
    count = thought_length(node.steps)
    if not count:
        return ""
    both = {"thought": node.steps[:count], "answer": node.steps[count:]}
    bits = {name: math.fsum(map(surprisal_bits, steps)) for name, steps in both.items()}
    whole = " · ".join(f"{name} {len(steps):,} tok {bits[name]:.1f} bits" for name, steps in both.items())
    return whole if len(whole) <= width else " · ".join(f"{name} {sum:.1f}" for name, sum in bits.items())


def count_shared_tokens(nodes: Sequence[Node]) -> int:
    """The number of tokens that all answers begin with."""
    return min(common_prefix_length(nodes[0].steps, node.steps) for node in nodes[1:])


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]])


def numbers(tree: ConversationTree, nodes: Sequence[Node]) -> list[int]:
    """The number of each answer: its version, where all are versions of one answer; else counted from 1."""
    if len({node.parent for node in nodes}) == 1:
        return [tree.sibling_position(node.id)[0] for node in nodes]
    return list(range(1, len(nodes) + 1))


def short_seeds(nodes: Sequence[Node]) -> list[str]:
    """The seed of each answer in four hexadecimal digits; nothing where all are the same."""
    seeds = [node.sampling.seed if node.sampling is not None else None for node in nodes]
    known = len(set(seeds)) > 1
    return ["" if seed is None or not known else f"seed {seed & 0xFFFF:04x}" for seed in seeds]


def describe_comparison(nodes: Sequence[Node], names: Sequence[int]) -> str:
    """What the comparison says of the answers with these numbers."""
    common = count_shared_tokens(nodes)
    follow = _listed([f"{len(node.steps) - common:,}" for node in nodes])
    words = [f"{common:,} token{'s' * (common != 1)} shared", f"{follow} follow"] if common else []
    if len({node.model for node in nodes}) > 1:
        return " · ".join([*words, "by different models: their bits cannot be compared"])
    each = [node.bits / node.scored if node.scored else 0.0 for node in nodes]
    first, *others = sorted(range(len(nodes)), key=lambda place: each[place])
    if max(each) - min(each) < 0.005:
        words.append("equally likely per token")
    else:
        less = ", ".join(f"{names[place]} ({each[place]:.2f})" for place in others)
        words.append(f"likeliest: {names[first]} ({each[first]:.2f} bits/token), then {less}")
    if any(node.scored < len(node.steps) for node in nodes):
        words.append("tokens without a probability count 0 bits")
    return " · ".join(words)


class CompareScreen(Dialog["str | None"]):
    """The answers, tinted by surprisal from where they part; the result is the one to continue.

    As many columns as have room, two at least; the others are shown as they are chosen.
    """

    BINDINGS = bindings("compare", "answer.compare")
    context = "compare"
    heading = "compare"
    items = (("↓ ↑", "scroll"), ("← →", "choose"), "sheet.leave")

    def __init__(self, tree: ConversationTree, nodes: Sequence[Node], keymap: Keymap) -> None:
        super().__init__(keymap)
        self._chat, self._answers = tree, list(nodes)
        self._numbers = numbers(tree, nodes)
        self._seeds = short_seeds(nodes)
        self._common = count_shared_tokens(nodes)
        self._thinks = any(thought_length(node.steps) for node in nodes)
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
            yield Static(
                Content.styled(describe_comparison(self._answers, self._numbers), "bold"), id="verdict"
            )
            yield self.key_hints

    def on_mount(self) -> None:
        for side in self.query(VerticalScroll):
            side.can_focus = False
        key = self.keymap.first
        digits = [key(f"compare.keep_{number}") for number in self._numbers if number < 10]
        keep = (" ".join([key("compare.keep"), *digits]), "continue")
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
                body.styles.width = (
                    self._width
                )  # the same for all: the shared text must wrap in the same places
                body.update(self._body(node))
        self._show()

    def _show(self) -> None:
        """Bring the chosen column into sight, and say which one it is."""
        columns, count = self._columns, len(self._answers)
        self._first = min(max(self._first, self._chosen - columns + 1), self._chosen, count - columns)
        last = self._first + columns
        self.title_with(
            f"{self._first + 1} {'to' if columns > 2 else 'and'} {last} of {count}, ← → for the others"
            if columns < count
            else ""
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
        name = self._named(node, place) + " ◂" * here
        writer = f"  {node.model}" if len(models) > 1 else ""
        drawn = self._seeds[place]
        if node.sampling is not None:
            settings = presets.describe_sampling(dataclasses.replace(node.sampling, seed=None))
            drawn = f"{drawn} · {settings}" if drawn else settings
        return Content.assemble(
            (self._cut(name + writer), "bold $primary" if here else ""),
            f"\n{self._cut(totals(node, self._width))}\n",
            (f"{self._cut(parts(node, self._width))}\n" if self._thinks else "", "$quiet"),
            (self._cut(drawn), "$quiet"),
            ("\nbits/token  ", "$quiet"),
            sparkline(node.steps, max(1, cells * len(node.steps) // max(1, longest))),
            ("".join(f"\n{'':{LABEL}}{row}" for row in upper), "$primary"),
            ("\nbits so far ", "$quiet"),
            (lowest, "$primary"),
            "\n",
        )

    def _named(self, node: Node, place: int) -> str:
        """The heading of a column, with one number."""
        if self._numbers != list(range(1, len(self._answers) + 1)) or self._same_question:
            return describe_node(self._chat, node)
        return f"{place + 1}: {node.model}"

    @property
    def _same_question(self) -> bool:
        return len({node.parent for node in self._answers}) == 1

    def _cut(self, text: str) -> str:
        """Cut a text to the width of a column."""
        return fit(one_line(text), self._width).rstrip()

    def _body(self, node: Node) -> Content:
        app = self.app
        styles = tint_styles(app.current_theme.dark, app.native_ansi_color, app.no_color)
        styles = tuple(map(for_content, styles))
        start = clean("".join(map(spoken, node.steps[: self._common])))
        end = start[-TAIL * self._width :]
        before = "… " + end.partition(" ")[2] if len(end) < len(start) else start
        shown: list[tuple[str, str]] = [
            (f"{before}\n" if before else "", "$quiet"),
            (f"── token {self._common + 1:,} ──\n", "$primary"),
        ]
        tint, answer = BY_NAME["surprisal"], thought_length(node.steps)
        for index, step in enumerate(node.steps[self._common :], self._common):
            said = spoken(step)
            word = said.lstrip(" ")
            blank = said[: len(said) - len(word)] if index > self._common else ""
            if index == answer > self._common:
                shown.append(("\n── answer ──\n", "$primary"))
            shown += [(blank, ""), (clean(word), styles[tint.level(step, None)])]
        return Content.assemble(*shown)

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
        if number and number not in self._numbers:
            listed = _listed([str(one) for one in self._numbers])
            self.say(f"the answers here are {listed}")
        else:
            place = self._numbers.index(number) if number else self._chosen
            self.dismiss(self._answers[place].id)
