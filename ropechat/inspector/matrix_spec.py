"""Which prompts and answers a matrix has and how it is shown: one description for the command and Python."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ropechat.engine.spec import ModelSpec
from ropechat.errors import RequestError
from ropechat.inspector.cost import exactness, told_seconds
from ropechat.inspector.matrix import Matrix, Row, fill
from ropechat.inspector.stoppable import Watcher
from ropechat.util.files import text_output

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine
    from ropechat.engine.prompt import Bos, Special
    from ropechat.engine.score_input import ScoreItem
    from ropechat.inspector.spec import Unit

MAX_CELLS = 1_000_000


# The modules of forms are imported where they are used: a run needs one.
def _table(spec: "MatrixSpec", matrix: Matrix) -> Iterator[str]:
    from ropechat.inspector import matrix_view

    return (f"{line}\n" for line in matrix_view.lines(matrix, spec.width, spec.unit, color=spec.color))


def _jsonl(spec: "MatrixSpec", matrix: Matrix) -> Iterator[str]:
    from ropechat.inspector import matrix_view

    return matrix_view.json_lines(matrix)


def _csv(spec: "MatrixSpec", matrix: Matrix) -> Iterator[str]:
    from ropechat.inspector import matrix_view

    return matrix_view.csv_lines(matrix)


def _html(spec: "MatrixSpec", matrix: Matrix) -> Iterator[str]:
    from ropechat.inspector import matrix_page

    return matrix_page.render(matrix, "Prompts by answers")


FORMS: dict[str, Callable[["MatrixSpec", Matrix], Iterator[str]]] = {
    "table": _table,
    "jsonl": _jsonl,
    "csv": _csv,
    "html": _html,
}
BY_SUFFIX = {".txt": "table", ".jsonl": "jsonl", ".csv": "csv", ".html": "html"}


class MatrixWatcher(Watcher):
    """What a matrix tells to whom it is of interest: also the error of a cell, as a note."""

    def scored(self, cells: int) -> None:
        """Called with the number of cells after each one."""


@dataclass(frozen=True)
class MatrixSpec:
    """Prompts, answers, a model, and how the matrix of them is shown.

    chat: prompts are user messages, answers the assistant's; else an answer continues the text of a prompt.
    special, bos: of texts, as for `Engine.score_stream`. form: one of FORMS. width, color, unit: of a table.
    """

    prompts: Sequence[str]
    answers: Sequence[str]
    model: ModelSpec = field(default_factory=ModelSpec)
    chat: bool = False
    special: "Special" = "text"
    bos: "Bos" = "auto"
    form: str = "table"
    width: int = 100
    color: bool = False
    unit: "Unit" = "bit"

    def write(self, out: Path, engine: "Engine | None" = None, *, overwrite: bool = False) -> None:
        """Write a file as `ropechat matrix -o` does, in the form of its suffix.

        engine: by default that of `model`. Raises BatchInputError if the file exists, FileAccessError, and as
        `ModelSpec.load` and `run`.
        """
        from ropechat.batch.output import refuse_output  # imported here: rarely needed

        refuse_output(out, [], overwrite=overwrite)
        spec = replace(self, form=BY_SUFFIX.get(out.suffix.lower(), self.form))
        with text_output(out) as write:
            for piece in spec.pieces(spec.run(engine or self.model.load())):
                write(piece)

    def pieces(self, matrix: Matrix) -> Iterator[str]:
        """The output in pieces; of a table, whole lines. Raises RequestError for its form."""
        if self.form not in FORMS:
            raise RequestError(f"form: must be one of {', '.join(FORMS)} (got {self.form!r:.40})")
        return FORMS[self.form](self, matrix)

    def check(self) -> None:
        """Raise RequestError for prompts or answers that make no matrix."""
        for name, texts in (("prompts", self.prompts), ("answers", self.answers)):
            if not texts:
                raise RequestError(f"{name}: must have at least one text (got none)")
            if "" in texts:
                raise RequestError(
                    f"{name}: must have at least one character each (number {texts.index('') + 1} has none)"
                )
        if (cells := len(self.prompts) * len(self.answers)) > MAX_CELLS:
            raise RequestError(f"prompts, answers: must make at most {MAX_CELLS:,} cells (got {cells:,})")

    def run(self, engine: "Engine", watcher: MatrixWatcher | None = None) -> Matrix:
        """Score the answers. Raises RequestError, CancelledError, and the error of a cell if all failed."""
        self.check()
        watcher = watcher or MatrixWatcher()
        for note in self._notes(engine):
            watcher.note(note)
        matrix = Matrix(
            [Row(prompt, self.answers) for prompt in self.prompts], self.answers, engine.trace_facts(0)
        )
        fill(
            engine,
            matrix,
            self._item,
            watcher.scored,
            lambda error: watcher.note(f"error: {error}"),
            lambda: watcher.is_stopped,
            special=self.special,
            bos=self.bos,
        )
        return matrix

    def _item(self, prompt: str, answer: str) -> "ScoreItem":
        from ropechat.conversation import Message, Role
        from ropechat.trace import Pair

        return ([Message(Role.USER, prompt)], answer) if self.chat else Pair(prompt, answer)

    def _notes(self, engine: "Engine") -> Iterator[str]:
        """What the matrix costs, how exact it is, and a trap of spaces."""
        from ropechat.engine.prefill import common_prefix  # imported here, while the weights load

        def ids(text: str) -> list[int]:
            return [token.id for token in engine.prompts.encode_prompt(text, self.special, self.bos)[1]]

        prompts = sorted(map(ids, self.prompts))
        read = sum(map(len, prompts)) - sum(len(common_prefix(*pair)) for pair in pairwise(prompts))
        read += len(prompts) * sum(len(ids(answer)) for answer in self.answers)
        cells = len(self.prompts) * len(self.answers)
        yield f"note: {cells:,} cells, about {read:,} tokens{told_seconds(engine, read)}{exactness(engine)}"
        if (
            not self.chat
            and all(a[0].isalnum() for a in self.answers)
            and all(p[-1].isalnum() for p in self.prompts)
        ):
            yield "note: no space is between prompts and answers; where a word is meant, begin it with one"
