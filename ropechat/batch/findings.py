"""What the records of a run say together: how many choices were right, and how sure the answers are."""

import statistics
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

from ropechat.batch.forms import Records
from ropechat.batch.score import Accuracy
from ropechat.util.text import count_of

LOW = 0.1
"""Allowed answers with a smaller probability, before the grammar, are hardly what the prompt asks for."""
_WORD_TOKENS = 3  # of a scored choice, with what ends an answer
_WARNED = 0.05
"""The share of such rows from which on the summary has a warning."""


def _is_short(record: Mapping[str, Any]) -> bool:
    """Whether the choices are words; of long texts, whose probability is small, it says nothing."""
    return all(score["tokens"] <= _WORD_TOKENS for score in record.get("scores", ()))


class Allowed:
    """How probable the allowed answers were before the grammar, over the records that say it."""

    def __init__(self) -> None:
        self._allowed, self._confidence = array("d"), array("d")

    def add(self, record: Mapping[str, Any]) -> None:
        """Count a record."""
        if "allowed" in record and _is_short(record):
            self._allowed.append(record["allowed"])
        if record.get("confidence") is not None:
            self._confidence.append(record["confidence"])

    @property
    def low(self) -> int:
        """Records whose allowed answers were improbable."""
        return sum(value < LOW for value in self._allowed)

    def facts(self) -> dict[str, Any]:
        """What OUT.run.json says; {} without such records."""
        found: dict[str, Any] = {}
        if self._allowed:
            found |= {"allowed_median": statistics.median(self._allowed), "allowed_low": self.low}
        if self._confidence:
            found["confidence_mean"] = statistics.fmean(self._confidence)
        return found

    def line(self) -> str:
        """A warning if the prompts hardly ask for what is allowed, else ""."""
        rows, low = len(self._allowed), self.low
        if not rows or low < _WARNED * rows:
            return ""
        median = statistics.median(self._allowed)
        return (
            f"warning: in {low:,} of {count_of(rows, 'row')} the allowed answers had less than {LOW:.0%} of "
            f"the model's probability (median of all {100 * median:.3g}%): the prompt does not ask for these "
            "words; name them in it, or give examples, in the way the model writes them"
        )


class Findings:
    """Sums over records, filled as they pass. greedy: whether answers are drawn at temperature 0."""

    def __init__(self, *, greedy: bool = False) -> None:
        self.accuracy, self.allowed, self._greedy = Accuracy(), Allowed(), greedy
        self._rows = self._likelier = 0

    def add(self, record: Mapping[str, Any]) -> None:
        """Count a record."""
        self.accuracy.add(record)
        self.allowed.add(record)
        if self._greedy and "choices" in record and record["confidence"] is not None:
            self._rows += 1
            self._likelier += max(record["choices"].values()) > record["confidence"]

    def count(self, rows: Iterator[Records]) -> Iterator[Records]:
        """Yield the rows and count their records."""
        for records in rows:
            for record in records:
                self.add(record)
            yield records

    def facts(self) -> dict[str, Any]:
        """What OUT.run.json says."""
        return {**self.accuracy.facts(), **self.allowed.facts()}

    def lines(self) -> list[str]:
        """What the summary says."""
        return [line for line in (self.accuracy.line(), self.allowed.line(), self._choice_line()) if line]

    def _choice_line(self) -> str:
        """A note if token by token the answer became another choice than the likeliest."""
        if not self._likelier:
            return ""
        rows = count_of(self._rows, "row")
        return (
            f"note: in {self._likelier:,} of {rows} another choice is more probable than the answer, which "
            "is made token by token; --score ranks whole choices"
        )
