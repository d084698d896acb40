"""What a batch reads, asks and tells: one description for the command, Python and other machines."""

import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ropechat.batch.line import Content
from ropechat.batch.reader import BatchReader, RowOptions
from ropechat.batch.report import BatchReport
from ropechat.conversation import Message, Role
from ropechat.engine.fitting import Side
from ropechat.engine.spec import ModelSpec
from ropechat.models.resolve import resolve
from ropechat.sampling import Sampling

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine
    from ropechat.engine.preview import ModelPreview
    from ropechat.engine.scheduler import Prompt


@dataclass(frozen=True)
class PromptOptions:
    """How rows become prompts.

    raw: no chat template. system: a system message for rows without one. samples: answers per row.
    logprobs: candidates to record per token; None records no logprobs. agree: results have the most frequent
    answer of each row, and how far the samples agree. stop: texts that end the answer of a row without own
    ones. truncate: which side of the longest text of a prompt is cut if the prompt does not fit.
    """

    raw: bool = False
    system: str | None = None
    samples: int = 1
    logprobs: int | None = None
    agree: bool = False
    stop: tuple[str, ...] = ()
    truncate: Side | None = None

    def prompt(self, content: Content, *, raw: bool = False) -> "Prompt":
        """The prompt of a row for the engine. raw: use no chat template for this row."""
        raw = raw or self.raw
        if isinstance(content, str):
            if raw:
                return (self.system or "") + content
            content = [Message(Role.USER, content)]
        messages = [part for part in content if isinstance(part, Message)]
        if not messages:
            return [part for part in content if isinstance(part, int)]
        if self.system is not None and messages[0].role is not Role.SYSTEM:
            messages = [Message(Role.SYSTEM, self.system), *messages]
        return "".join(message.content for message in messages) if raw else messages


@dataclass(frozen=True)
class BatchSpec:
    """Rows, a model, and how each row is answered.

    source: a file or an open stream. input_format: its format; None: by its suffix. rows: how rows are read.
    prompts: how they become prompts. sampling: of rows that set nothing of it; of the settings in `unset`
    the model's own value goes before. window: rows in one forward pass. max_errors: more failed rows end the
    run. timeout: seconds after which a row fails. fail_below: a row fails, but keeps its answer,
    if a part of it has a smaller probability: see `ropechat.inspector.unsure`. ray: compute on the Ray
    cluster of this address, "" for that of this machine; any_isa: whose nodes may have different instruction
    sets. excel: CSV results have a BOM, and the delimiter of the source.
    """

    source: Path | IO[bytes]
    model: ModelSpec = field(default_factory=ModelSpec)
    input_format: str | None = None
    rows: RowOptions = field(default_factory=RowOptions)
    prompts: PromptOptions = field(default_factory=PromptOptions)
    sampling: Sampling = field(default_factory=Sampling)
    unset: frozenset[str] = frozenset()
    window: int = 16
    max_errors: int | None = None
    timeout: float | None = None
    fail_below: float | None = None
    ray: str | None = None
    any_isa: bool = False
    excel: bool = False

    def reader(self) -> BatchReader:
        """The rows. Raises BatchInputError."""
        return BatchReader(self.source, form=self.input_format, options=self.rows)

    def for_engine(self, engine: "Engine | ModelPreview") -> "BatchSpec":
        """This spec with the engine's recommended settings where the run sets none."""
        own = engine.recommended(self.sampling.think)
        own = {name: value for name, value in own.items() if name in self.unset}
        return replace(self, sampling=replace(self.sampling, **own)) if own else self  # type: ignore[arg-type]

    def records_of(self, rows: int | None) -> int | None:
        """How many records so many rows have; None if that is not known."""
        return rows if rows is None or self.rows.score else rows * self.prompts.samples


class BatchWatcher:
    """What a run tells to whom it is of interest; the methods of this class do nothing."""

    def find(self, model: ModelSpec) -> ModelSpec:
        """The spec with the path of the model. Raises as `resolve`."""
        return replace(model, name=str(resolve(model.name)))

    def load(self, model: ModelSpec, sampling: Sampling) -> "Engine":
        """Load a model that was found. Raises as `ModelSpec.load`."""
        return model.load()

    def during(self, engine: "Engine | None") -> contextlib.AbstractContextManager[None]:
        """Entered while rows are computed. engine: None if other processes compute them."""
        return contextlib.nullcontext()

    def progress(self, report: BatchReport) -> None:
        """Called after each forward pass and each record."""

    def failure(self, text: str) -> None:
        """Called with the message of each failed row."""

    def tell(self, text: str) -> None:
        """Called with notes."""

    def clear(self) -> None:
        """Called when no row is computed any more."""

    def stopped(self, where: str, *, resumable: bool) -> None:
        """Called when a run ends early. where: what has the results so far, and how many."""
