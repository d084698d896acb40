"""How sure a model was of an answer that had to match a grammar: the same numbers for each door.

`choices` has the probability of each choice among them all, `confidence` that of the answer, and `allowed`
the probability that the choices had together before the grammar cut everything else: a small one means that
the prompt does not ask for these words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ropechat.engine.alternatives import MAX_ALTERNATIVES, Speller, Weighing, overlapping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ropechat.engine.prompt import PromptBuilder
    from ropechat.sampling.grammar import Grammar


def has_certainty(grammar: Grammar | None) -> bool:
    """Whether `CertaintyReader.of` can say something of answers that match a grammar."""
    return grammar is not None and grammar.kind == "choices"


@dataclass(frozen=True)
class Certainty:
    """How sure an answer is. weighings: what must be read before `record` can say it."""

    weighings: Sequence[Weighing]
    record: Callable[[], dict[str, Any]]


class CertaintyReader:
    """Says what must be read to know how sure an answer is. stop_ids: the ids that end a text."""

    def __init__(
        self, prompts: PromptBuilder, bytes_of: Callable[[int], bytes], stop_ids: Iterable[int]
    ) -> None:
        self._speller = Speller(prompts, bytes_of)
        self._stop_ids = sorted(stop_ids)

    def of(self, before: Sequence[int], text: str, grammar: Grammar) -> Certainty | None:
        """The certainty of an answer; None where there is none to know: see `has_certainty`.

        before: the ids of the prompt, and of a thought. text: the answer. None also for more than
        MAX_ALTERNATIVES choices, and where the tokenizer cannot spell one of them.
        """
        if not has_certainty(grammar):
            return None
        texts = list(dict.fromkeys(grammar.source))
        weighing = self._weighing(before, texts, self._stop_ids)
        if weighing is None:
            return None

        def record() -> dict[str, Any]:
            weights = weighing.result()
            shares = dict(zip(texts, weights.shares, strict=True))
            return {
                "confidence": shares.get(text),
                "allowed": weights.allowed,
                "choices": shares,
            }

        return Certainty([weighing], record)

    def _weighing(self, before: Sequence[int], texts: Sequence[str], ends: Sequence[int]) -> Weighing | None:
        """Weigh texts after these ids; None if that is not possible. ends: ids that end a text."""
        spelled = [self._speller.ids(text) for text in texts]
        known = [ids for ids in spelled if ids is not None]
        if len(known) < len(spelled) or not 0 < len(known) <= MAX_ALTERNATIVES or not before:
            return None
        return Weighing(before, known, overlapping(texts), ends)
