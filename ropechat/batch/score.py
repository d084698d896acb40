"""`ropechat batch --score`: the logprob of a completion, or of each of several choices, for each row."""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ropechat.batch.output import Sink
from ropechat.batch.reader import BatchRow
from ropechat.batch.records import error_record, finish_record
from ropechat.batch.report import BatchReport, Failures
from ropechat.batch.spec import BatchSpec, BatchWatcher
from ropechat.conversation import Message
from ropechat.engine.alternatives import Weights
from ropechat.errors import CancelledError, InternalError, RopechatError
from ropechat.trace import Pair, Score
from ropechat.util.records import finite
from ropechat.util.text import count_of

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine
    from ropechat.engine.score_input import ScoreItem


MAX_LABELS = 20
"""Most choices of all rows together for which there is a confusion table."""


def score_rows(
    engine: "Engine",
    rows: "Iterable[BatchRow | None]",
    sink: Sink,
    spec: BatchSpec,
    run_seed: int,
    total: int | None,
    watcher: BatchWatcher,
    early_stop: bool,
    has_row: Callable[[], bool],
) -> BatchReport:
    """As `compute_rows`: score rows and write a record for each.

    A text prompt is continued as it is; messages are rendered with the chat template. The report's tokens are
    the scored ones. A record depends on the model and its row only.
    """
    report, begun = BatchReport(total), time.monotonic()
    failures = Failures(report, sink, spec.max_errors, watcher.failure, early_stop=early_stop)
    waiting: deque[BatchRow] = deque()

    def items() -> "Iterator[list[ScoreItem | RopechatError] | None]":
        for row in rows:
            if row is None or not sink.begin(row, 1):
                continue
            waiting.append(row)
            yield list(_items(row))
            while waiting and not has_row():
                yield None

    try:
        for _, scores in engine.score_rows(items(), window=spec.window):
            report.made_tokens += sum(one.tokens for one in scores)
            row = waiting.popleft()
            error = next((one.error for one in scores if one.error is not None), None)
            if error is not None:
                failures.take(row, error_record(row, 0, error))
            else:
                sink.write(row, score_record(row, scores))
                report.ok += 1
                report.completion_tokens += sum(one.tokens for one in scores)
            report.elapsed, report.found = time.monotonic() - begun, sink.found
            watcher.progress(report)
    except CancelledError:
        report.cancelled = True
    report.elapsed, report.found = time.monotonic() - begun, sink.found
    return report


def _items(row: BatchRow) -> "Iterator[ScoreItem | RopechatError]":
    """Yield what is scored for a row: an item for each choice, or the row's error."""
    request = row.request
    if request is None:
        yield row.error or InternalError(f"line {row.line}: no request and no error")
        return
    content = request.content
    for choice in request.choices:
        if isinstance(content, str):
            yield Pair(content, choice)
        else:
            yield [part for part in content if isinstance(part, Message)], choice


def score_record(row: BatchRow, scores: Sequence[Score]) -> dict[str, Any]:
    """The record of a scored row."""
    request = row.request
    assert request is not None
    record: dict[str, Any] = {"id": row.id, "index": row.index, "sample": 0, "ok": True}
    cached = sum(score.cached_tokens for score in scores)
    if request.is_pair:
        return finish_record({**record, **_facts(scores[0])}, row, cached)
    best = max(range(len(scores)), key=lambda place: (scores[place].logprob, -place))
    per_byte = max(range(len(scores)), key=lambda place: (_per_byte(scores[place]), -place))
    weights = Weights(tuple(score.logprob for score in scores))
    record |= {
        "text": request.choices[best].strip(),
        "confidence": weights.shares[best],
        "allowed": min(1.0, weights.allowed),
        "scores": [_facts(score) for score in scores],
        "best": best,
        "best_per_byte": per_byte,
    }
    if request.answer is not None:
        right = request.answer
        record |= {"answer": request.choices[right].strip()}
        record |= {"correct": best == right, "correct_per_byte": per_byte == right}
    return finish_record(record, row, cached)


def _per_byte(score: Score) -> float:
    return score.logprob / score.bytes if score.bytes else -math.inf


def _facts(score: Score) -> dict[str, Any]:
    """What a record says about a completion; `joined` only if its first token began in the prompt."""
    facts: dict[str, Any] = {
        "logprob": finite(score.logprob),
        "tokens": score.tokens,
        "bytes": score.bytes,
        "bits_per_byte": finite(score.bits_per_byte),
        "is_greedy": score.is_greedy,
    }
    return {**facts, "joined": True} if score.joined else facts


class Accuracy:
    """How often the best choice is the right one, over the records with an answer."""

    def __init__(self) -> None:
        self.rows = self.correct = self.correct_per_byte = 0
        self.confusion: Counter[tuple[str, str]] = Counter()
        """How often (right choice, best choice) occurred, for up to `MAX_LABELS` choices."""
        self._labels: set[str] = set()

    def add(self, record: Mapping[str, Any]) -> None:
        """Count a record."""
        if "correct" in record:
            self.rows += 1
            self.correct += record["correct"]
            self.correct_per_byte += record["correct_per_byte"]
            pair = record.get("answer", ""), record.get("text", "")
            if len(self._labels) <= MAX_LABELS:
                self._labels.update(pair)
                self.confusion[pair] += 1

    def facts(self) -> dict[str, Any]:
        """What OUT.run.json says; {} without answers. The standard error is that of a mean (n - 1)."""
        if not self.rows:
            return {}
        return {
            "answered": self.rows,
            "accuracy": self.correct / self.rows,
            "accuracy_stderr": self._error(self.correct),
            "accuracy_per_byte": self.correct_per_byte / self.rows,
            "accuracy_per_byte_stderr": self._error(self.correct_per_byte),
            **({} if self.f1 is None else {"f1_macro": self.f1, "confusion": self._table()}),
        }

    @property
    def f1(self) -> float | None:
        """The mean over the choices of the harmonic mean of precision and recall; None for too many choices.

        A choice that is neither right nor best anywhere does not count.
        """
        if not self.rows or len(self._labels) > MAX_LABELS:
            return None
        found = []
        for label in sorted(self._labels):
            right = sum(count for (answer, _), count in self.confusion.items() if answer == label)
            said = sum(count for (_, best), count in self.confusion.items() if best == label)
            found.append(2 * self.confusion[label, label] / (right + said))
        return math.fsum(found) / len(found)

    def _table(self) -> dict[str, dict[str, int]]:
        """The right choice -> the best choice -> how often."""
        table: dict[str, dict[str, int]] = {}
        for (answer, best), count in sorted(self.confusion.items()):
            table.setdefault(answer, {})[best] = count
        return table

    def _error(self, correct: int) -> float | None:
        share = correct / self.rows
        return math.sqrt(share * (1 - share) / (self.rows - 1)) if self.rows > 1 else None

    def line(self) -> str:
        """The accuracy in a line of text; "" without answers."""
        if not self.rows:
            return ""
        shown = [
            f"{name} {correct / self.rows:.4f}{'' if error is None else f' ± {error:.4f}'}"
            for name, correct in (("accuracy", self.correct), ("per byte", self.correct_per_byte))
            for error in (self._error(correct),)
        ]
        if self.f1 is not None:
            shown.append(f"macro F1 {self.f1:.4f}")
        return f"{', '.join(shown)}; {count_of(self.rows, 'row')} with an answer"
