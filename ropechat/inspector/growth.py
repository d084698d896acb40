"""A tree of continuations for a screen: computed in the engine's thread, grown further on request."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ropechat.inspector.stoppable import Stoppable
from ropechat.inspector.tree import MAX_DEPTH, Limits, Tree, grow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ropechat.engine.engine import Engine
    from ropechat.trace import TokenDistribution

    Place = Callable[[Engine], tuple[Sequence[int], Sequence[int]]]
    """Gives the ids before a place and those that stand there."""

DEEPER = 4
"""Tokens by which `more` makes paths longer."""


class Growth(Stoppable):
    """The tree of one place. limits: of its next computation; added: nodes that it has so far."""

    def __init__(self, place: Place, limits: Limits | None = None) -> None:
        super().__init__("continuations")
        self._place, self.limits, self.added = place, limits or Limits(), 0
        self._rows: dict[tuple[int, ...], TokenDistribution] = {}

    def __call__(self, engine: Engine) -> Tree:
        """The tree; after `stop` what is there. Raises CancelledError if it had not begun, and as `grow`."""
        with self.running(engine):
            prompt, given = self._place(engine)
            room = max(1, engine.context + 1 - len(prompt))
            limits = replace(self.limits, depth=min(self.limits.depth, room))
            return grow(
                engine,
                prompt,
                limits,
                given=given,
                on_node=self._count,
                is_stopped=lambda: self.is_stopped,
                rows=self._rows,
            )

    def more(self) -> None:
        """Let the next computation have twice as many nodes, and longer paths. Rows are computed once."""
        self.limits = replace(
            self.limits, nodes=2 * self.limits.nodes, depth=min(MAX_DEPTH, self.limits.depth + DEEPER)
        )
        self.resume()

    def resume(self) -> None:
        """Let the next computation go on where one was stopped."""
        super().resume()
        self.added = 0

    def _count(self, nodes: int) -> None:
        self.added = nodes
