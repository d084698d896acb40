"""What is asked of a context and how the result is shown: one description for the command and Python."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropechat.conversation import Message, Role
from ropechat.engine.spec import ModelSpec
from ropechat.engine.validation import validate_messages
from ropechat.errors import RequestError
from ropechat.inspector.why.answer import TextQuestion
from ropechat.inspector.why.context import Context
from ropechat.inspector.why.parts import LEVELS, Level, Span
from ropechat.inspector.why.result import Asked, Why, WhyWatcher
from ropechat.inspector.why.search import Places, Search
from ropechat.sampling import Sampling
from ropechat.util.files import read_text, text_output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ropechat.engine.engine import Engine
    from ropechat.engine.prompt import Bos, Special

FORMS = {".txt": "table", ".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".html": "html"}
"""The forms of a result by suffix."""
_LONGEST = 60
_MOST_READINGS = 1_000_000


@dataclass(frozen=True)
class WhySpec:
    """A context, an answer to it, and how the parts of the context are examined.

    context: a text, a file, several files, or messages. answer: what follows the context; None: without `of`
    what the model would answer, at most max_tokens; with `of`, or if messages end with one of the assistant,
    the end of the context. of: the text in the answer whose probability is asked for (its first occurrence),
    or its (start, end) in characters; None: the whole answer. question: a text after the context, which is
    never changed. chat: texts, with the question, are a message of the user, by the model's chat template.
    by: the finest level of parts. replace: a text that comes in the place of each part, instead of leaving it
    out. only: leave out all but the part. every: score all parts of the level `by`; otherwise first coarse
    parts, then those within the strongest, for at most `budget` times the work of reading the context once
    (in short contexts, until 8,192 tokens are computed). special, bos: of texts, as for
    `Engine.score_stream`. form, width, color: of `pieces`. head: the parts that a table lists at most.

    A message whose text is left out keeps its place and is empty, so the template's own words stay the same.
    """

    context: str | Path | Sequence[Path] | Sequence[Message] | Sequence[Mapping[str, Any]]
    answer: str | None = None
    model: ModelSpec = field(default_factory=ModelSpec)
    of: str | Span | None = None
    question: str = ""
    chat: bool = False
    by: Level = "word"
    replace: str | None = None
    only: bool = False
    every: bool = False
    budget: float = 30.0
    max_tokens: int = 16
    special: Special = "text"
    bos: Bos = "auto"
    form: str = "table"
    head: int = 12
    width: int = 100
    color: bool = False

    def run(self, engine: Engine | None = None, watcher: WhyWatcher | None = None) -> Why:
        """Examine the context. engine: by default that of `model`.

        All numbers are in bits, at temperature 1, and those that scoring each changed context alone gives.
        Cancelled (`Engine.cancel`), the result has what is computed, and `complete` is False.
        Raises RequestError, ContextFullError if the context with the answer is longer than what the model was
        trained for, CancelledError before the whole context is scored, and as `Engine.score_many`.
        """
        self._check()
        engine, watcher = engine or self.model.load(), watcher or WhyWatcher()
        context, answer = self._given()
        places = Places(engine, context.text, self.special)
        if answer is None:
            answer = self._written(engine, context)
        asked = Asked(self.by, self.replace, self.only, self.every, self.budget, self.special, self.bos)
        question = TextQuestion(engine, context, answer, self._place(answer, watcher), asked)
        return Search(engine, question, places, asked, watcher).run()

    def write(self, out: Path, engine: Engine | None = None, *, overwrite: bool = False) -> None:
        """Write a file as `ropechat why -o` does, in the form of its suffix.

        Raises RequestError, BatchInputError if the file exists, FileAccessError, and as `run`.
        """
        from ropechat.batch.output import refuse_output  # imported here: rarely needed

        shown = replace(self, form=FORMS.get(out.suffix.lower(), self.form))
        refuse_output(out, self.files, overwrite=overwrite)
        with text_output(out) as write:
            for piece in shown.pieces(self.run(engine)):
                write(piece)

    def pieces(self, why: Why) -> Iterator[str]:
        """Yield a result in the form, in pieces; of a table, whole lines. Raises RequestError."""
        from ropechat.inspector.why import page, records, table

        make: dict[str, Callable[[], Iterator[str]]] = {
            "table": lambda: table.render(why, self.head, self.width, color=self.color),
            "csv": lambda: records.csv_lines(why),
            "json": lambda: records.json_object(why),
            "jsonl": lambda: records.json_lines(why),
            "html": lambda: page.render(why),
        }
        if self.form not in make:
            raise RequestError(f"form: must be one of {', '.join(make)} (got {self.form!r:.40})")
        return make[self.form]()

    @property
    def files(self) -> list[Path]:
        """The files of the context."""
        given = [self.context] if isinstance(self.context, str | Path) else self.context
        return [one for one in given if isinstance(one, Path)]

    def _check(self) -> None:
        if self.by not in LEVELS:
            raise RequestError(f"by: must be one of {', '.join(LEVELS)} (got {self.by!r:.40})")
        if self.only and self.replace is not None:
            raise RequestError("only: not possible with replace; omit one of them")
        if not 0 < self.budget <= _MOST_READINGS:
            raise RequestError(
                f"budget: must be above 0 and at most {_MOST_READINGS:,} (got {self.budget:g})"
            )

    def _given(self) -> tuple[Context, str | None]:
        """The context, and the answer if it is given or part of the context."""
        answer = self.answer
        if isinstance(self.context, str | Path) or self.files:
            named = [(str(file), read_text(file)) for file in self.files]
            named = named or [("", str(self.context))]
            if answer is None and isinstance(self.of, str) and not (self.question or self.chat):
                name, text = named.pop()
                at = text.rfind(self.of)
                if at < 0:
                    raise RequestError(f"of: must be in the context or in an answer (got {self.of!r:.60})")
                text, answer = text[:at], text[at : at + len(self.of)]
                named.append((name, text))
            return Context.of_texts(named, self.question, chat=self.chat), answer
        messages: Any = self.context
        messages = validate_messages(messages)
        if answer is None and not self.question and messages and messages[-1].role is Role.ASSISTANT:
            answer = messages.pop().content
        return Context.of_messages(messages, self.question), answer

    def _written(self, engine: Engine, context: Context) -> str:
        """What the model would answer at temperature 0."""
        think = "off" if engine.thinks else "auto"
        sampling = Sampling(temperature=0.0, max_tokens=self.max_tokens, think=think)
        prompt = context.prompt()
        if isinstance(prompt, str):
            _, tokens = engine.prompts.encode_prompt(prompt, self.special, self.bos)
            steps = engine.generate([token.id for token in tokens], sampling)
        else:
            steps = engine.reply(prompt, sampling)
        answer = "".join(step.text for step in steps)
        if not answer.strip():
            raise RequestError("answer: the model writes no text here; give an answer")
        return answer

    def _place(self, answer: str, watcher: WhyWatcher) -> Span:
        """What is asked of the answer, in characters."""
        if self.of is None:
            return 0, len(answer)
        if not isinstance(self.of, str):
            start, end = self.of
            if not 0 <= start < end <= len(answer):
                raise RequestError(f"of: must be within the answer, 0 to {len(answer)} (got {self.of})")
            return start, end
        start = answer.find(self.of)
        if start < 0 or not self.of:
            shown = answer if len(answer) <= _LONGEST else answer[:_LONGEST] + "…"
            raise RequestError(f"of: must be in the answer {shown!r} (got {self.of!r:.60})")
        if (count := answer.count(self.of)) > 1:
            watcher.note(f"note: of: the first of {count} places in the answer")
        return start, start + len(self.of)
