"""The views of a loaded model as jobs that another thread runs and that can be stopped."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from ropechat.errors import CancelledError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ropechat.engine.engine import Engine
    from ropechat.inspector.rope.blocks import View
    from ropechat.inspector.rope.report import ViewOptions

TOKENS = {"shift": 128}
"""Tokens that a view measures at most: the shift test has two arrays of tokens x vocabulary."""
MOST_TOKENS = 512


class Measurement:
    """One view of a loaded model on a text; call it with the engine, in the engine's thread.

    ids: gives the tokens of the text, of which the first ones are measured.
    """

    def __init__(self, name: str, ids: Callable[[Engine], Sequence[int]], options: ViewOptions) -> None:
        self.name, self._ids, self._wishes = name, ids, options
        self._lock = Lock()
        self._engine: Engine | None = None  # while this computes
        self._is_stopped = False

    def __call__(self, engine: Engine) -> list[View]:
        """The views. Raises CancelledError after `stop`, and as `report.weight_views`."""
        from ropechat.inspector.rope import report  # imports numpy, so late

        ids = list(self._ids(engine)[: TOKENS.get(self.name, MOST_TOKENS)])
        with self._lock:
            self._check()
            self._engine = engine
        try:
            found = []
            for view in report.weight_views(engine, ids, (self.name,), self._wishes):
                self._check()
                found.append(view)
            return found
        finally:
            with self._lock:
                self._engine = None

    def stop(self) -> None:
        """End the computation within one layer of the model, or keep it from beginning; from any thread.

        Other requests of the engine continue: the thread of this one runs no other at the same time.
        """
        with self._lock:
            self._is_stopped = True
            if self._engine is not None:
                self._engine.cancel()

    def _check(self) -> None:
        if self._is_stopped:
            raise CancelledError("positions: stopped")
