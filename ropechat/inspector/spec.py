"""What is inspected and how it is shown: one description for the command, Python and the screen."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ropechat.engine.spec import ModelSpec
from ropechat.errors import CancelledError, RequestError, RopechatError
from ropechat.inspector.cost import exactness, told_seconds, told_windows
from ropechat.inspector.look_up import Strings
from ropechat.inspector.scored_text import Observer, ScoredText
from ropechat.sampling import Sampling
from ropechat.util.files import read_text, text_output
from ropechat.util.text import count_of, one_line

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine
    from ropechat.engine.prompt import Bos, Special
    from ropechat.engine.score_input import ScoreItem
    from ropechat.inspector.by_line import Sort
    from ropechat.inspector.by_word import Word
    from ropechat.trace import LensRow

View = Literal["tokens", "words", "lines", "chart", "lens", "attention", "attention-map"]
INSIDE = ("lens", "attention", "attention-map")
"""Views of what is inside the model, of one text."""
Unit = Literal["bit", "nat"]


class Form(NamedTuple):
    """A form of tokens. top_k: candidates by default. pieces: of texts; the title is that of a page."""

    suffix: str
    top_k: int
    pieces: "Callable[[InspectSpec, Iterable[ScoredText], str], Iterator[str]]"


# Their modules are imported where they are used: of these, a run needs one.
def _table(spec: "InspectSpec", texts: Iterable[ScoredText], title: str) -> Iterator[str]:
    from ropechat.inspector import table

    for text in texts:
        yield from (f"{one_line(text.name)}\n",) if text.name else ()
        lines = table.render(text, spec.width, color=spec.color, unit=spec.unit)
        yield from (f"{line}\n" for line in lines)


def _jsonl(spec: "InspectSpec", texts: Iterable[ScoredText], title: str) -> Iterator[str]:
    from ropechat.inspector import records

    return (line for text in texts for line in records.json_lines(text))


def _csv(spec: "InspectSpec", texts: Iterable[ScoredText], title: str) -> Iterator[str]:
    from ropechat.inspector import records

    return records.csv_lines(texts, spec.candidates, len(spec.look_up))


def _html(spec: "InspectSpec", texts: Iterable[ScoredText], title: str) -> Iterator[str]:
    from ropechat.inspector import trace_page

    return trace_page.render(texts, title)


def _svg(spec: "InspectSpec", texts: Iterable[ScoredText], title: str) -> Iterator[str]:
    from ropechat.inspector import strip

    return strip.render(texts)


TOKENS = {
    "table": Form(".txt", 5, _table),
    "jsonl": Form(".jsonl", 20, _jsonl),
    "csv": Form(".csv", 5, _csv),
    "html": Form(".html", 5, _html),
    "svg": Form(".svg", 0, _svg),
}
FORMS: Mapping[View, Sequence[str]] = {
    "tokens": tuple(TOKENS),
    "words": ("table", "jsonl", "csv"),
    "lines": ("table", "jsonl", "csv"),
    "chart": ("table", "html", "svg"),
    "lens": ("table", "jsonl", "html"),
    "attention": ("table", "jsonl"),
    "attention-map": ("table", "jsonl", "html"),
}
BY_SUFFIX = {form.suffix: name for name, form in TOKENS.items()}
_MAX_DISTANCE = 255
"""Largest distance whose mean weight is in the JSON records of attention."""


class NamedText(NamedTuple):
    """A text that is read when it is its turn. read: raises RopechatError if it cannot be read."""

    name: str
    read: "Callable[[], ScoreItem]"


class InspectWatcher(Observer):
    """What a run tells to whom it is of interest; the methods of this class do nothing."""

    def unsure(self, span: "Word") -> None:
        """Called with the spans of words below `fail_below`, after each text."""

    def failure(self, name: str, error: RopechatError) -> None:
        """Called for each of several texts that cannot be scored; the others are written."""

    def looked(self, tokens: int) -> None:
        """Called with the number of tokens that a lens or an attention map has looked at so far."""


@dataclass(frozen=True)
class InspectSpec:
    """Texts, a model, and what is shown of them.

    texts: as for `Engine.score_stream`, or files. special to by_author, sampling: as there; sampling adds
    what the stages of the sampler do to each token. roles: that sums cover. view: a row per token, word or
    line, a chart along the texts, or of one text what each layer predicts (lens), where each head attends, or
    where the tokens of one head attend (attention-map). form: one of FORMS of the view. layers: of a lens or
    attention. attended: (layer, head) of an attention-map. top_k: candidates per token, by default as
    many as the form says. sort, head: of words and lines. below: only words with a smaller probability.
    fail_below: the watcher is told of such words, in each view of scores. look_up: strings whose probability
    is shown in each place; look_up_whole: of all their tokens, not the first one. width, color, unit: of a
    table or chart; records have both units.
    """

    texts: "Sequence[ScoreItem | Path | NamedText]" = ()
    model: ModelSpec = field(default_factory=ModelSpec)
    special: "Special" = "text"
    bos: "Bos" = "auto"
    window: int | None = None
    stride: int | None = None
    one_sequence: bool = False
    by_author: bool = False
    sampling: Sampling | None = None
    roles: Sequence[str] | None = None
    view: View = "tokens"
    form: str = "table"
    layers: Sequence[int] | None = None
    attended: tuple[int, int] = (0, 0)
    top_k: int | None = None
    sort: "Sort" = "line"
    head: int | None = None
    below: float | None = None
    fail_below: float | None = None
    look_up: Sequence[str] = ()
    look_up_whole: bool = False
    width: int = 100
    color: bool = False
    unit: Unit = "bit"

    def write(self, out: Path, engine: "Engine | None" = None, *, overwrite: bool = False) -> None:
        """Write a file as `ropechat inspect -o` does, in the form of its suffix.

        engine: by default that of `model`. Raises RequestError, BatchInputError if the file exists,
        FileAccessError, and as `ModelSpec.load` and `Engine.score_stream`.
        """
        from ropechat.batch.output import refuse_output  # imported here: rarely needed

        form = BY_SUFFIX.get(out.suffix.lower(), self.form)
        refuse_output(out, self.texts, overwrite=overwrite)
        with text_output(out) as write:
            for piece in replace(self, form=form).pieces(engine or self.model.load()):
                write(piece)

    def pieces(self, engine: "Engine", watcher: InspectWatcher | None = None) -> Iterator[str]:
        """Yield the output in pieces, while later tokens are computed; of a table, whole lines.

        Raises RequestError if the form is not of the view, and as `Engine.score_stream`.
        """
        watcher = watcher or InspectWatcher()
        if self.form not in FORMS[self.view]:
            raise RequestError(f"form: must be one of {', '.join(FORMS[self.view])} (got {self.form!r:.40})")
        if self.view in INSIDE:
            return self._inside(engine, watcher)
        names = [self._named(text).name for text in self.texts]
        title = names[0] or "Inspected text" if len(names) == 1 else f"{len(names)} inspected texts"
        return self.render(self._scored(engine, watcher), title)

    @property
    def candidates(self) -> int:
        """Candidates per token."""
        if self.top_k is not None:
            return max(2, self.top_k) if self.view == "chart" else self.top_k  # the runner-up may be second
        return {"tokens": TOKENS[self.form].top_k, "words": 0, "lines": 0}.get(self.view, 5)

    def _named(self, text: "ScoreItem | Path | NamedText") -> NamedText:
        if isinstance(text, NamedText):
            return text
        if isinstance(text, Path):
            return NamedText(str(text), lambda: read_text(text))
        return NamedText("", lambda: text)

    def _scored(self, engine: "Engine", watcher: InspectWatcher) -> Iterator[ScoredText]:
        """Yield the texts; the tokens of each are computed while it is iterated over."""
        strings = Strings(engine, self.look_up, whole=self.look_up_whole) if self.look_up else None
        failed = 0
        for name, read in map(self._named, self.texts):
            if watcher.is_stopped:
                return
            try:
                text = self._score(engine, name, read(), strings, watcher)
            except CancelledError:
                raise
            except RopechatError as error:
                failed += 1
                if failed == len(self.texts):
                    raise  # nothing to show
                watcher.failure(name, error)
                continue
            yield text

    def _score(
        self, engine: "Engine", name: str, item: "ScoreItem", strings: Strings | None, watcher: InspectWatcher
    ) -> ScoredText:
        from ropechat.engine.score_input import is_answered  # imported here, while the weights load

        stream = engine.score_stream(
            item,
            top_k=self.candidates,
            special=self.special,
            bos=self.bos,
            by_author=self.by_author,
            sampling=self.sampling,
            look_up=() if strings is None else strings.first_ids,
            window=self.window,
            stride=self.stride,
            one_sequence=self.one_sequence,
        )
        if self.roles is not None:
            stream.meta["roles"] = tuple(self.roles)
        stream.meta["only_counted"] = self.by_author and is_answered(item)
        if note := _note(stream.meta):
            if (size := stream.meta["window"]) is not None:
                note += told_windows(engine, stream.meta["tokens"], size, stream.meta["stride"])
            watcher.note(note.replace(": ", f": {name}: ", 1) if name else note)
        return ScoredText(stream, name, engine.token_bytes, strings, stream.before, self.watch(name, watcher))

    def watch(self, name: str, watcher: InspectWatcher) -> Observer:
        """What observes a text of this name, so that the watcher is told of its unsure spans."""
        if self.fail_below is None:
            return watcher
        from ropechat.inspector.by_word import UnsureWatch

        return UnsureWatch(watcher, name, self.fail_below, watcher.unsure)

    def render(self, texts: Iterable[ScoredText], title: str) -> Iterator[str]:
        """The output of scored texts in pieces. title: of a page."""
        if self.view == "chart":
            from ropechat.inspector import chart

            return chart.render(texts, title, self.form, self.unit, self.width, color=self.color)
        if self.view not in ("words", "lines"):
            return TOKENS[self.form].pieces(self, texts, title)
        from ropechat.inspector import by_line, by_word

        if self.view == "lines":
            lines = (line for text in texts for line in by_line.lines_of(text))
            shown = by_line.chosen(lines, self.sort, self.head)
            table = partial(by_line.table, width=self.width, unit=self.unit)
            return by_line.render(shown, self.form, table, by_line.record, by_line.COLUMNS)
        words = (word for text in texts for word in by_word.words_of(text))
        kept = words if self.below is None else by_word.unsure(words, self.below)
        rows = by_line.chosen(kept, self.sort, self.head)
        word_table = partial(by_word.table, width=self.width, unit=self.unit)
        return by_line.render(rows, self.form, word_table, by_word.record, by_word.COLUMNS)

    def _inside(self, engine: "Engine", watcher: InspectWatcher) -> Iterator[str]:
        """The pieces of a lens or attention of the text."""
        from ropechat.inspector import attention, lens, lens_page, look_up

        if len(self.texts) != 1:
            raise RequestError(f"{self.view}: must be of one text (got {len(self.texts)})")
        item: Any = self._named(self.texts[0]).read()
        text, tokens = engine.prompts.encode_prompt(item, self.special, self.bos)
        ids, spell, facts = [token.id for token in tokens], engine.token_bytes, engine.facts
        if len(ids) > (trained := facts["max_position_embeddings"]):
            watcher.note(
                f"note: {len(ids)} tokens exceed the trained length of {trained}: what is shown beyond it is "
                "unreliable"
            )
        named = {name: facts[name] for name in ("dtype", "kv_dtype", "isa")}
        meta = {"model": engine.name, "revision": engine.revision, **named, "ids": ids, "text": text}
        every = range(facts["num_hidden_layers"])
        layers = sorted(set(every if self.layers is None else self.layers))
        if self.form == "table" and self.layers is None:
            layers = lens.layers_that_fit(every, len(ids), self.width)
        logits = len(layers) if self.view == "lens" else 0
        work = len(ids) * (1.0 + logits * engine.lm_head_share)
        watcher.note(f"note: {_work(work, len(ids))}{told_seconds(engine, work)}{exactness(engine)}")
        if self.view == "attention":
            is_table = self.form == "table"
            found = engine.attention_by_distance(
                ids, self.layers, max_distance=1 if is_table else _MAX_DISTANCE
            )
            return attention.table(found) if is_table else attention.json_lines(found, meta)
        if self.view == "attention-map":
            return self._map(engine, ids, meta, watcher)
        strings = tuple(self.look_up)
        asked = [look_up.ids_of(engine, string)[0] for string in strings]
        rows = engine.lens(ids, layers, 1 if self.form == "table" else self.candidates, look_up=asked)
        rows = _until_stopped(rows, watcher)
        if self.form == "jsonl":
            return lens.json_lines(rows, meta, spell, strings)
        if self.form == "html":
            title = f"{engine.name}: layer by layer"
            return lens_page.render(rows, ids, layers, title, spell, facts["vocab_size"], strings)
        at = lens.layout(layers, len(ids), self.width, color=self.color, strings=strings)
        return lens.table(rows, ids, spell, at)

    def _map(
        self, engine: "Engine", ids: Sequence[int], meta: dict[str, Any], watcher: InspectWatcher
    ) -> Iterator[str]:
        """The pieces of an attention map; after a stop of the tokens that were computed."""
        from ropechat.inspector import attention_map

        (layer, head), spell = self.attended, engine.token_bytes
        attention_map.check(len(ids), self.form)
        weights, notes = attention_map.compute(
            engine, ids, layer, head, lambda: watcher.is_stopped, watcher.looked
        )
        ids = ids[: len(weights)]
        if self.form == "jsonl":
            told = {**meta, "layer": layer, "head": head, "notes": notes}
            return attention_map.json_lines(weights, ids, spell, told)
        if self.form == "html":
            title = f"{engine.name}: layer {layer}, head {head}"
            return attention_map.render(weights, ids, spell, title)
        return attention_map.lines(weights, ids, spell, self.width, color=self.color)


def _work(work: float, tokens: int) -> str:
    """What a look inside takes, in tokens of reading."""
    more = "" if work < tokens + 1 else f", the work of reading {work:,.0f}"
    return f"{count_of(tokens, 'token')}{more}"


def _until_stopped(rows: "Iterable[LensRow]", watcher: InspectWatcher) -> "Iterator[LensRow]":
    """Yield rows until the watcher stops them, and tell it of each token."""
    at = -1
    try:
        for row in rows:
            if watcher.is_stopped and row.i != at:
                return
            yield row
            if row.i != at:
                watcher.looked(at := row.i)
    except CancelledError:
        if not watcher.is_stopped:
            raise


def _note(meta: Mapping[str, Any]) -> str:
    """What is said of a long text in windows, or of one that exceeds the trained length; "" for others."""
    trained, window, count = meta["trained_length"], meta["window"], meta["tokens"]
    if window is not None:
        tokens = f"{count:,} tokens" if count is not None else "a long text"
        windows = f"note: {tokens} in windows of {window:,}, stride {meta['stride']:,}"
        return f"{windows}; the model was trained for {trained:,}"
    if not meta["beyond_trained_length"]:
        return ""
    return (
        f"warning: {count:,} tokens exceed the trained length of {trained:,}: scores beyond it, and "
        "their part in the sums, are unreliable; omit --one-sequence"
    )
