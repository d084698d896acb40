"""Which tree of continuations is made and how it is shown: one description for the command and Python."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ropechat.engine.spec import ModelSpec
from ropechat.errors import RequestError
from ropechat.inspector.stoppable import Watcher
from ropechat.inspector.tree import Limits, Tree, grow
from ropechat.util.files import read_text, text_output
from ropechat.util.text import format_duration

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine
    from ropechat.engine.prompt import Bos, Special
    from ropechat.engine.score_input import ScoreItem


# The modules of forms are imported where they are used: a run needs one.
def _table(spec: "TreeSpec", tree: Tree) -> Iterator[str]:
    from ropechat.inspector import tree_view

    return (f"{line}\n" for line in tree_view.lines(tree, spec.width, color=spec.color))


def _jsonl(spec: "TreeSpec", tree: Tree) -> Iterator[str]:
    from ropechat.inspector import tree_view

    return tree_view.json_lines(tree)


def _csv(spec: "TreeSpec", tree: Tree) -> Iterator[str]:
    from ropechat.inspector import tree_view

    return tree_view.csv_lines(tree)


def _html(spec: "TreeSpec", tree: Tree) -> Iterator[str]:
    from ropechat.inspector import tree_page

    return tree_page.render(tree, "What could follow")


def _svg(spec: "TreeSpec", tree: Tree) -> Iterator[str]:
    from ropechat.inspector import tree_page

    return tree_page.svg(tree)


FORMS: dict[str, Callable[["TreeSpec", Tree], Iterator[str]]] = {
    "table": _table,
    "jsonl": _jsonl,
    "csv": _csv,
    "html": _html,
    "svg": _svg,
}
BY_SUFFIX = {".txt": "table", ".jsonl": "jsonl", ".csv": "csv", ".html": "html", ".svg": "svg"}


_LONG_S, _MANY = 2.0, 200
"""Seconds, and nodes of a model whose speed is not known, from which the cost is told before."""


class TreeWatcher(Watcher):
    """What a search tells to whom it is of interest; it is asked before each node whether it is stopped."""

    def added(self, nodes: int) -> None:
        """Called with the number of nodes after each new one."""


@dataclass(frozen=True)
class TreeSpec:
    """A prompt, a model, and how far its continuations are followed.

    prompt: a text, ids, messages, or messages and the beginning of an answer; or a file. special, bos: as for
    `Engine.score_stream`. at: the tree begins in the place of this token of the prompt (`#` in the tables of
    `inspect`) and marks what stands there; by default after the last one. nodes, depth, top_k, mass: as in
    `Limits`. form: one of FORMS. width, color: of a table.
    """

    prompt: "ScoreItem | Path"
    model: ModelSpec = field(default_factory=ModelSpec)
    special: "Special" = "text"
    bos: "Bos" = "auto"
    at: int | None = None
    nodes: int = Limits.nodes
    depth: int = Limits.depth
    top_k: int = Limits.top_k
    mass: float = Limits.mass
    form: str = "table"
    width: int = 80
    color: bool = False

    def write(self, out: Path, engine: "Engine | None" = None, *, overwrite: bool = False) -> None:
        """Write a file as `ropechat tree -o` does, in the form of its suffix.

        engine: by default that of `model`. Raises BatchInputError if the file exists, FileAccessError, and as
        `ModelSpec.load` and `grow`.
        """
        from ropechat.batch.output import refuse_output  # imported here: rarely needed

        refuse_output(out, [self.prompt], overwrite=overwrite)
        spec = replace(self, form=BY_SUFFIX.get(out.suffix.lower(), self.form))
        with text_output(out) as write:
            for piece in spec.pieces(engine or self.model.load()):
                write(piece)

    def pieces(self, engine: "Engine", watcher: TreeWatcher | None = None) -> Iterator[str]:
        """The output in pieces; of a table, whole lines. Raises RequestError for its form, and as `grow`."""
        if self.form not in FORMS:
            raise RequestError(f"form: must be one of {', '.join(FORMS)} (got {self.form!r:.40})")
        return FORMS[self.form](self, self.grow(engine, watcher))

    def grow(self, engine: "Engine", watcher: TreeWatcher | None = None) -> Tree:
        """The tree. Raises RequestError, ContextFullError, TokenizerError, ChatTemplateError."""
        from ropechat.engine.score_input import encode_item  # imported here, while the weights load

        watcher = watcher or TreeWatcher()
        limits = Limits(self.nodes, self.depth, self.top_k, self.mass)
        limits.check()
        prompt = read_text(self.prompt, empty=False) if isinstance(self.prompt, Path) else self.prompt
        given = encode_item(engine.prompts, prompt, self.special, self.bos)
        tokens = [token for piece in given.pieces for token in piece]
        if not tokens:
            raise RequestError("prompt: must have at least one token (got none)")
        at = len(tokens) if self.at is None else self.at
        if not 1 <= at <= len(tokens):
            raise RequestError(f"at: must be from 1 to {len(tokens)}, the tokens of the prompt (got {at})")
        text = given.text
        if text is not None and at < len(tokens):
            text = text.encode("utf-8", "surrogatepass")[: tokens[at].span[0]].decode("utf-8", "replace")
        ids = [token.id for token in tokens]
        for note in _notes(engine, ids[:at], limits):
            watcher.note(note)
        return grow(
            engine,
            ids[:at],
            limits,
            given=ids[at:],
            meta={"text": text, "at": at, "depth": self.depth, "nodes": self.nodes, "mass": self.mass},
            on_node=watcher.added,
            is_stopped=lambda: watcher.is_stopped,
        )


def _notes(engine: "Engine", prompt: Sequence[int], limits: Limits) -> Iterator[str]:
    """What the search costs, if that is worth a word, and what is unreliable."""
    (read, seconds), rate = engine.prefill_estimate(prompt), engine.speed.decode
    cost = f"note: reads {read:,} tokens, then computes up to {limits.nodes:,} nodes"
    if seconds is None or rate is None:
        if limits.nodes > _MANY:
            yield cost
    elif (expected := seconds + limits.nodes / rate) >= _LONG_S:
        yield f"{cost}: about {format_duration(expected)} at most"
    trained = engine.facts["max_position_embeddings"]
    if (whole := len(prompt) + limits.depth) > trained:
        yield (
            f"note: {whole:,} tokens exceed the trained length of {trained:,}: what is shown beyond it is "
            "unreliable"
        )
