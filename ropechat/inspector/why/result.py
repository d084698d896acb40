"""What is asked of a context, and what was found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ropechat.inspector.stoppable import Watcher

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ropechat.engine.prompt import Bos, Special
    from ropechat.inspector.why.context import Context
    from ropechat.inspector.why.parts import Level, Part, Span
    from ropechat.trace import Trace


class Asked(NamedTuple):
    """How a context is examined. The fields are those of `WhySpec`."""

    by: Level = "word"
    replace: str | None = None
    only: bool = False
    every: bool = False
    budget: float = 30.0
    special: Special = "text"
    bos: Bos = "auto"


class Cost(NamedTuple):
    """What an examination takes at most.

    parts: that are scored first. work: tokens whose computation takes as long. seconds: expected; None
    without a measured speed.
    """

    parts: int
    work: int
    seconds: float | None


class WhyWatcher(Watcher):
    """Hears of an examination while it is computed."""

    def planned(self, cost: Cost) -> None:
        """Called once, when the answer is scored with the whole context."""

    def progress(self, done: int, work: int) -> None:
        """Called after each scoring, with how much of `Cost.work` is done."""


@dataclass(eq=False)
class PartScore:
    """A part of a context, and how it changes the answer.

    bits: by which the answer's surprisal grows without the part, or with another text in its place; with
    `only`, what the part alone saves of it. None if it was not scored; error: why. tokens: of the part.
    depth: 0 for the parts of the whole context. parts: that it was divided into. skipped: whether it has
    finer parts, and none of them was scored.
    """

    part: Part
    depth: int
    tokens: int
    bits: float | None = None
    error: str = ""
    skipped: bool = False
    parts: list[PartScore] = field(default_factory=list)

    @property
    def span(self) -> Span:
        """(start, end) in `Why.text`, in characters."""
        return self.part.span

    @property
    def change(self) -> float:
        """The bits without their sign; 0 if it was not scored."""
        return abs(self.bits or 0.0)

    def walk(self) -> Iterator[PartScore]:
        """The part, then those within it, in the order of the text."""
        yield self
        for one in self.parts:
            yield from one.walk()


@dataclass
class Why:
    """What was found.

    parts: of the whole context, in its order, each with those that it was divided into. bits: surprisal of
    what is asked with the whole context; without: without any of it (None: not possible). answer: the text
    that was scored; trace: its tokens with the whole context, of which tokens[slice(*inside)] are asked.
    words: the bytes of the ids in it. total: tokens of the prompt with the answer. scorings, computed:
    contexts that were scored, and their tokens that were not cached. limited: whether the budget kept it from
    parts that are strong enough. complete: False if it was cancelled.
    """

    context: Context
    asked: Asked
    answer: str
    trace: Trace
    inside: tuple[int, int]
    bits: float
    total: int
    words: Mapping[int, bytes]
    without: float | None = None
    parts: list[PartScore] = field(default_factory=list)
    scorings: int = 0
    computed: int = 0
    limited: bool = False
    complete: bool = True

    @property
    def text(self) -> str:
        """The texts of the context, which spans refer to."""
        return self.context.text

    def walk(self) -> Iterator[PartScore]:
        """All parts, each before those within it, in the order of the text."""
        for one in self.parts:
            yield from one.walk()

    @property
    def finest(self) -> list[PartScore]:
        """The parts that were not divided, which together are the context, in its order."""
        return [one for one in self.walk() if not one.parts]

    @property
    def skipped(self) -> list[PartScore]:
        """Those of `finest` that have finer parts."""
        return [one for one in self.finest if one.skipped]

    @property
    def strongest(self) -> list[PartScore]:
        """The scored parts of `finest`, those with the most bits first."""
        scored = [(one.bits, one) for one in self.finest if one.bits is not None]
        return [one for _, one in sorted(scored, key=lambda pair: -pair[0])]

    @property
    def scale(self) -> float:
        """The largest change that one of `finest` makes, in bits; 0 without one."""
        return max((one.change for one in self.finest), default=0.0)
