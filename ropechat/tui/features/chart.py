"""The chart below the transcript: how sure the model was at each token of an answer, or of two versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropechat.inspector.chart import Course, extend
from ropechat.tui.features.reading import ReadingFeature
from ropechat.tui.features.turns import TurnsFeature
from ropechat.tui.render.blocks import AnswerBlock
from ropechat.tui.render.cursor import TokenPlace
from ropechat.tui.ui import SIDE_PANEL, ChatUi, Feature, command
from ropechat.tui.widgets.chart_panel import Line
from ropechat.util.text import token_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropechat.trace import Step

LOW = 34  # fewest rows of a narrow screen that has room for the inspector and the chart


class ChartFeature(Feature):
    """The commands of the chart. It shows the answer under the cursor, or the newest, and follows both."""

    def __init__(self, ui: ChatUi) -> None:
        super().__init__(ui)
        self.panel, self.reading, self.turns = ui.chart, ui[ReadingFeature], ui[TurnsFeature]
        self._courses: dict[str, tuple[Sequence[Step], Course]] = {}  # by node, with the steps that were read
        self._other = ""  # the version that is drawn too
        self._drawn: tuple[object, ...] = ()

    @command("answer.chart")
    def toggle(self) -> None:
        """Show or hide the chart."""
        self.panel.display = not self.panel.display
        if self.panel.display and self._is_low:
            self.reading.close()
        self._drawn = ()
        self.ui.refresh()
        self.ui.app.call_after_refresh(self._keep_in_sight)

    def _keep_in_sight(self) -> None:
        if (token := self.transcript.cursor) is not None:
            self.transcript.bring_into_sight(token)

    @property
    def _is_low(self) -> bool:
        """Whether the screen has no room for the inspector beside the chart."""
        size = self.ui.app.size
        return size.width < SIDE_PANEL and size.height < LOW

    @command("answer.chart_both")
    def _next_version(self) -> str:
        """Draw the next version of the answer too; after the last one none."""
        block = self._block()
        tree = self.session.tree
        if block is None or block.node not in tree.nodes:
            return "there is no answer yet"
        complete = (node for node in tree.siblings(block.node) if tree.continued(node.id) is None)
        others = ["", *(node.id for node in complete if node.steps and node.id != block.node)]
        if len(others) == 1:
            return f"no other answer to this question; {self.turns.way_to('answer.regenerate')} writes one"
        at = others.index(self._other) if self._other in others else 0
        self._other = others[(at + 1) % len(others)]
        if not self.panel.display:
            self.toggle()
        self.ui.refresh()
        return ""

    def pick(self, index: int) -> None:
        """Go to the token of a column."""
        if (block := self._block()) is not None and index < len(block.steps):
            self.transcript.move_to(TokenPlace(block, index), clicked=True)

    def refresh(self) -> None:
        """Draw what changed."""
        if not self.panel.display:
            return
        if self.ui.inspector.display and self._is_low:  # it was opened after the chart
            self.panel.display = False
            return
        block, cursor = self._block(), self.transcript.cursor
        index = cursor.index if cursor is not None else -1
        node = block.node if block is not None else ""
        known = self.session.tree.nodes.get(node)
        steps = known.steps if known is not None else ()
        other = self._other if self._is_beside(node) else ""
        state = (node, len(steps), index, other)
        if state == self._drawn:
            return
        self._drawn = state
        lines = [Line(self._name(node) if other else "", self._course(node, steps).values)] if steps else []
        if other:
            lines.append(Line(self._name(other), self._course(other, self.session.tree[other].steps).values))
        about = token_name(steps[index].id, steps[index].bytes) if 0 <= index < len(steps) else ""
        self.panel.show(lines, index, about)

    def _is_beside(self, node: str) -> bool:
        """Whether the other version still is one of this answer."""
        nodes = self.session.tree.nodes
        found = nodes.get(self._other)
        return (
            found is not None and node in nodes and node != self._other and found.parent == nodes[node].parent
        )

    def _block(self) -> AnswerBlock | None:
        """The answer under the cursor, or the newest with tokens."""
        if (cursor := self.transcript.cursor) is not None:
            return cursor.block
        blocks = (one for one in reversed(self.transcript.blocks) if isinstance(one, AnswerBlock))
        return next((one for one in blocks if one.steps), None)

    def _name(self, node: str) -> str:
        number, count = self.session.tree.sibling_position(node)
        return f"version {number} of {count}"

    def _course(self, node: str, steps: Sequence[Step]) -> Course:
        """The curves of an answer; only its new tokens are read."""
        known, course = self._courses.get(node, (steps, Course("")))
        if known is not steps or len(course.at) > len(steps):
            course = Course("")
        extend(course, steps[len(course.at) :])
        self._courses = {id: kept for id, kept in self._courses.items() if id in (node, self._other)}
        self._courses[node] = steps, course
        return course
