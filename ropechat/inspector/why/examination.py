"""An examination for a screen: small steps in the engine's thread, which show what they find and can stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropechat.errors import CancelledError
from ropechat.inspector.stoppable import Stoppable
from ropechat.inspector.why.result import Asked, Cost, WhyWatcher
from ropechat.inspector.why.search import Places, Search

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ropechat.engine.engine import Engine
    from ropechat.inspector.why.answer import Question
    from ropechat.inspector.why.result import PartScore, Why

    Ask = Callable[[Engine, Asked], Question]
    """Makes the question; called in the engine's thread."""

CHUNK = 4
"""Changed contexts of a step."""


class Examination(Stoppable, WhyWatcher):
    """Which parts of a context some tokens come from. `why` is what is found so far; None before that.

    done of work: as `WhyWatcher.progress`; cost: None until it is known. reading: tokens of the whole
    context, and how many seconds they take at most (None: not measured). error: why there is no result.
    version rises with every change. As the `Steps` of a `Worker`, it is computed by `step`.
    """

    def __init__(self, ask: Ask, asked: Asked) -> None:
        super().__init__("why")
        self.asked, self._ask = asked, ask
        self._search: Search | None = None
        self._work: Iterator[None] | None = None
        self.cost: Cost | None = None
        self.reading: tuple[int, float | None] = (0, None)
        self.done = self.work = self.version = 0
        self.error: BaseException | None = None
        self.is_done = False

    @property
    def why(self) -> Why | None:
        """What is found so far; None until the whole context is scored."""
        return None if self._search is None else self._search.result

    def step(self, engine: Engine) -> bool:
        """Score a few parts; False if there is nothing to do."""
        if self.is_done or self.is_stopped:
            return False
        try:
            with self.running(engine):
                if self._search is None:
                    question = self._ask(engine, self.asked)
                    self.reading = question.length, engine.speed.seconds_to_read(0, question.length)
                    self.version += 1
                    places = Places(engine, question.context.text, self.asked.special)
                    self._search = Search(engine, question, places, self.asked, self, CHUNK)
                if self._work is None:
                    self._work = self._search.work()
                next(self._work)
        except StopIteration:
            self._work = None
            self.is_done = not self.is_stopped
        except CancelledError:
            self._work = None
        except BaseException as error:  # a Rust panic is not an Exception
            self.error, self.is_done, self._work = error, True, None
        self.version += 1
        return not (self.is_done or self.is_stopped)

    def want(self, part: PartScore) -> None:
        """Divide a part next; afterwards a `Worker` must be woken."""
        if self._search is not None:
            self._search.want(part)
            self.go_on()

    def go_on(self) -> None:
        """Let further steps compute, after `stop` or the end."""
        self.resume()
        self.is_done = False
        self.version += 1

    # --- what the search tells ---

    def planned(self, cost: Cost) -> None:
        """Keep the cost."""
        self.cost = cost
        self.progress(0, cost.work)

    def progress(self, done: int, work: int) -> None:
        """Keep the progress."""
        self.done, self.work = done, work
        self.version += 1
