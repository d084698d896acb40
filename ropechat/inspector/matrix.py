"""A matrix of prompts by answers: how probable each answer is after each prompt."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ropechat.errors import CancelledError, RequestError, RopechatError
from ropechat.inspector.draws import RecordedDraws
from ropechat.inspector.scored_text import LN2

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine
    from ropechat.engine.score_input import ScoreItem
    from ropechat.trace import Score


@dataclass(frozen=True)
class Cell:
    """An answer after a prompt. logprob: of all its tokens, in nats. bytes: of the text that they cover.

    is_greedy: whether each token is the most probable one. first_rank: that of its first token over the
    vocabulary; None if unknown.
    """

    logprob: float
    tokens: int
    bytes: int
    is_greedy: bool
    first_logprob: float | None = None
    first_rank: int | None = None

    @property
    def bits(self) -> float:
        """Surprisal in bits."""
        return 0.0 - self.logprob / LN2

    @property
    def bits_per_byte(self) -> float | None:
        """Surprisal in bits per byte; None without bytes."""
        return self.bits / self.bytes if self.bytes else None


@dataclass
class Row:
    """A prompt with its answers. cells: None where nothing was computed. target: the right answer's place."""

    prompt: str
    answers: Sequence[str]
    cells: list[Cell | None] = field(default_factory=list)
    target: int | None = None

    def __post_init__(self) -> None:
        self.cells = self.cells or [None] * len(self.answers)

    @property
    def is_complete(self) -> bool:
        """Whether every answer is scored, without which ranks and shares mean nothing."""
        return None not in self.cells

    def rank(self, place: int) -> int | None:
        """1 + the number of answers that are more probable here; None in an incomplete row."""
        own = self.cells[place]
        if own is None or not self.is_complete:
            return None
        return 1 + sum(other.logprob > own.logprob for other in self.cells if other is not None)

    def share(self, place: int) -> float | None:
        """The part that an answer has of the probability of all; None in an incomplete row."""
        own, known = self.cells[place], [one.logprob for one in self.cells if one is not None]
        if own is None or not self.is_complete or (best := max(known)) == -math.inf:
            return None
        return math.exp(own.logprob - best) / math.fsum(math.exp(one - best) for one in known)


@dataclass
class Matrix:
    """Rows of prompts. answers: of all rows; None if each has its own. meta: model, types and the like."""

    rows: list[Row]
    answers: Sequence[str] | None
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def columns(self) -> int:
        """The most answers of a row."""
        return max((len(row.answers) for row in self.rows), default=0)

    @property
    def count(self) -> int:
        """How many cells are computed."""
        return sum(cell is not None for row in self.rows for cell in row.cells)

    def mean_share(self, place: int) -> float | None:
        """The mean of an answer's shares over the complete rows; None without any."""
        shares = [
            share for row in self.rows if place < len(row.cells) and (share := row.share(place)) is not None
        ]
        return math.fsum(shares) / len(shares) if shares else None

    def correct(self) -> tuple[int, int] | None:
        """In how many complete rows the right answer is the most probable, and of how many; None: unknown."""
        judged = [row.rank(row.target) for row in self.rows if row.target is not None and row.is_complete]
        return (judged.count(1), len(judged)) if judged else None


def fill(
    engine: "Engine",
    matrix: Matrix,
    item: Callable[[str, str], "ScoreItem"],
    on_cell: Callable[[int], object],
    on_error: Callable[[str], object],
    is_stopped: Callable[[], bool],
    **encoding: Any,
) -> None:
    """Score the cells of a matrix, row by row; what prompts have in common is computed once.

    item: prompt and answer as `Engine.score_many` takes them. on_cell: called with the number of cells so
    far; on_error with the message of a cell that cannot be scored, which stays empty. is_stopped: whether a
    cancel ends the matrix with what is computed. encoding: of `score_many`. Raises CancelledError.
    """
    places = [(row, place) for row in matrix.rows for place in range(len(row.answers))]
    items = (item(row.prompt, row.answers[place]) for row, place in places)
    failed = list[RopechatError]()
    try:
        for index, score in engine.score_many(items, **encoding):
            row, place = places[index]
            if score.error is None:
                row.cells[place] = _cell(score)
            else:
                failed.append(score.error)
                if len(failed) == len(places):
                    raise score.error  # nothing to show
                on_error(f"prompt {matrix.rows.index(row) + 1}, answer {place + 1}: {score.error}")
            on_cell(index + 1)
            if is_stopped():
                break
    except CancelledError:
        if not is_stopped():
            raise


def _cell(score: "Score") -> Cell:
    first = score.trace.tokens[0]
    return Cell(score.logprob, score.tokens, score.bytes, score.is_greedy, first.logprob, first.rank)


def of_records(answers: Iterable[tuple[str, RecordedDraws]]) -> Matrix:
    """The matrix of recorded scores, such as the samples of lm-evaluation-harness.

    Answers that follow one another with the same prompt are a row. Raises RequestError without a prompt.
    """
    rows, before = list[Row](), None
    meta = dict[str, Any]()
    for name, draws in answers:
        prompt, doc = draws.meta.get("given"), draws.meta.get("doc")
        if not prompt:
            raise RequestError(
                f"{name}: must have the prompt of its answer, as samples of lm_eval do (got none)"
            )
        if doc is None or doc != before:
            rows.append(Row(prompt, [], target=draws.meta.get("target")))
        rows[-1].answers = [*rows[-1].answers, draws.meta["text"]]
        rows[-1].cells.append(_recorded(draws))
        before = doc
        meta = meta or {fact: draws.meta.get(fact) for fact in ("model", "engine", "stage")}
    for row in rows:
        row.target = row.target if row.target is not None and row.target < len(row.answers) else None
    same = rows and all(row.answers == rows[0].answers for row in rows)
    return Matrix(rows, rows[0].answers if same else None, meta)


def _recorded(draws: RecordedDraws) -> Cell | None:
    """The cell of a recorded answer; None if a token has no logprob."""
    known = [token.logprob for token in draws if token.logprob is not None]
    if len(known) < len(draws):
        return None
    greedy = all(token.rank == 1 for token in draws)
    return Cell(math.fsum(known), len(draws), len(draws.meta["text"].encode()), greedy)
