"""How probable each of several texts was in one place: of allowed answers, of the values of a field.

The probability of a text is the product over its tokens, which are those that it has at the beginning of a
line. A text that begins another one counts together with its end, so that no two of them overlap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from ropechat.engine.scoring import Window
from ropechat.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ropechat.engine import _core
    from ropechat.engine.prompt import PromptBuilder

MAX_ALTERNATIVES = 256
"""Most texts that are weighed against each other: each may take a row of a forward pass."""
_KEPT_SPELLINGS = 4096


@dataclass(frozen=True)
class Weights:
    """How probable each of several texts was. logprobs: raw, in nats, in the order of the texts."""

    logprobs: tuple[float, ...]

    @property
    def allowed(self) -> float:
        """Their probability together, before a grammar allowed nothing else."""
        return math.fsum(map(math.exp, self.logprobs))

    @property
    def shares(self) -> list[float]:
        """The probability of each among them: their sum is 1. Without any probability each has the same."""
        best = max(self.logprobs)
        if best == -math.inf:
            return [1 / len(self.logprobs)] * len(self.logprobs)
        parts = [math.exp(logprob - best) for logprob in self.logprobs]
        whole = math.fsum(parts)
        return [part / whole for part in parts]


class Speller:
    """The tokens of short texts, which are the same wherever a text is."""

    def __init__(self, prompts: PromptBuilder, bytes_of: Callable[[int], bytes]) -> None:
        self._prompts, self._bytes_of = prompts, bytes_of
        self._known: dict[str, tuple[int, ...] | None] = {}

    def ids(self, text: str) -> tuple[int, ...] | None:
        """The ids that spell a text; None if the tokenizer has none for exactly this text."""
        if not text:
            return ()
        if text not in self._known:
            if len(self._known) >= _KEPT_SPELLINGS:
                self._known.clear()
            try:
                ids = self._prompts.line_ids(text)
            except RequestError:  # no Unicode, or too long
                ids = ()
            exact = b"".join(map(self._bytes_of, ids)) == text.encode("utf-8", "surrogatepass")
            self._known[text] = ids if ids and exact else None
        return self._known[text]


class Weighing:
    """Weighs texts that may follow `before`: which rows are needed, and what they say.

    spelled: the ids of each text. ended: those of the texts, by index, that count with an end; ends: the ids
    that end them. windows: the sequences to score, each with the ids to look up.
    """

    def __init__(
        self,
        before: Sequence[int],
        spelled: Sequence[tuple[int, ...]],
        ended: Collection[int] = (),
        ends: Sequence[int] = (),
    ) -> None:
        self._start, self._spelled, self._ended, self._ends = len(before), spelled, ended, tuple(ends)
        self._rows: dict[tuple[int, ...], dict[int, float]] = {}
        wanted: dict[tuple[int, ...], dict[int, None]] = {}  # a dict for its order
        for index, ids in enumerate(spelled):
            for place, id in enumerate(ids):
                wanted.setdefault(ids[:place], {})[id] = None
            if index in ended:
                wanted.setdefault(ids, {}).update(dict.fromkeys(self._ends))
        self.windows: list[Window] = []
        covered: set[tuple[int, ...]] = set()
        for path in sorted(wanted, key=len, reverse=True):
            if path in covered or not wanted[path]:
                continue
            along = [path[:place] for place in range(len(path) + 1)]
            covered.update(along)
            looked_up = dict.fromkeys(id for node in along for id in wanted.get(node, ()))
            window = Window([*before, *path, next(iter(wanted[path]))], self._start, 0, [], is_last=False)
            window.owner, window.look_up, window.path = self, tuple(looked_up), path
            self.windows.append(window)

    def take(self, window: Window, event: _core.Event) -> None:
        """Take the row of a window's event: what follows the part of its path before that position."""
        node = window.path[: event.position - self._start]
        found = zip(window.look_up, event.looked_up, strict=True)
        self._rows[node] = {id: logprob for id, (logprob, _) in found}

    def result(self) -> Weights:
        """The weights, once all windows are read."""
        logprobs = []
        for index, ids in enumerate(self._spelled):
            parts = [self._rows[ids[:place]][id] for place, id in enumerate(ids)]
            if index in self._ended:
                whole = math.fsum(math.exp(self._rows[ids][id]) for id in self._ends)
                parts.append(math.log(whole) if whole > 0 else -math.inf)
            logprobs.append(math.fsum(parts) if -math.inf not in parts else -math.inf)
        return Weights(tuple(logprobs))


def overlapping(texts: Sequence[str]) -> set[int]:
    """The indexes of the texts that begin another one."""
    found, order = set(), sorted(range(len(texts)), key=lambda index: texts[index])
    for one, other in pairwise(order):
        if texts[other].startswith(texts[one]):
            found.add(one)
    return found
