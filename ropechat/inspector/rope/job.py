"""The views of a loaded model as jobs that another thread runs and that can be stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropechat.inspector.stoppable import Stoppable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ropechat.engine.engine import Engine
    from ropechat.inspector.rope.blocks import View
    from ropechat.inspector.rope.report import ViewOptions

TOKENS = {"shift": 128}
"""Tokens that a view measures at most: the shift test has two arrays of tokens x vocabulary."""
MOST_TOKENS = 512


class Measurement(Stoppable):
    """One view of a loaded model on a text; call it with the engine, in the engine's thread.

    ids: gives the tokens of the text, of which the first ones are measured.
    """

    def __init__(self, name: str, ids: Callable[[Engine], Sequence[int]], options: ViewOptions) -> None:
        super().__init__("positions")
        self.name, self._ids, self._wishes = name, ids, options

    def __call__(self, engine: Engine) -> list[View]:
        """The views. Raises CancelledError after `stop`, and as `report.weight_views`."""
        from ropechat.inspector.rope import report  # imports numpy, so late

        ids = list(self._ids(engine)[: TOKENS.get(self.name, MOST_TOKENS)])
        with self.running(engine):
            found = []
            for view in report.weight_views(engine, ids, (self.name,), self._wishes):
                self.check()
                found.append(view)
            return found
