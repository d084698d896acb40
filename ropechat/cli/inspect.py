"""`ropechat inspect`: the probability of each token of a text."""

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from ropechat.cli.common import (
    STREAM,
    encoding_options,
    model_options,
    name_of,
    output,
    read_text_file,
    template_options,
    text_argument,
)
from ropechat.cli.exit_codes import CHECK_FAILED, OK, SOME_FAILED, say
from ropechat.cli.inspect_options import (
    OutputOptions,
    ScoreOptions,
    inside_options,
    output_options,
    row_options,
    rules,
    score_options,
)
from ropechat.cli.inspect_reader import READER_OPTIONS, read_interactively, reader_option
from ropechat.cli.interrupt import Stop, finish_on_signal
from ropechat.cli.keep_prefix import keep_prefix_option, kept_prefix
from ropechat.cli.loading import load, take_model
from ropechat.cli.option_groups import (
    GroupedCommand,
    check_rules,
    given_flags,
    option,
    option_set,
    refuse_given,
    take,
)
from ropechat.cli.stages import (
    STAGE_SETTINGS,
    open_records,
    record_options,
    replay_trace,
    show_records,
    stage_options,
    take_sampling,
)
from ropechat.cli.status import ProgressLine, progress_option
from ropechat.conversation import Message, Role
from ropechat.errors import RequestError, RopechatError
from ropechat.inspector.spec import INSIDE, InspectSpec, InspectWatcher, NamedText
from ropechat.trace import Pair, TokenScore
from ropechat.util.progress import Progress

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine
    from ropechat.engine.prompt import Bos, Special
    from ropechat.engine.score_input import ScoreItem
    from ropechat.inspector.by_line import Sort
    from ropechat.inspector.by_word import Word

_EXAMPLES = """
  ropechat inspect "The cat sat on the mat."
  ropechat inspect "The cat sat on the mat." -o cat.html
  ropechat inspect "The capital of Italy is Madrid" --look-up " Rome"
  ropechat --help > help.txt
  ropechat inspect -f help.txt --by line --sort bits --rows 5
  ropechat inspect --by word --below 0.01 "The capital of Italy is Madrid."
  ropechat inspect --chart "The capital of Italy is Madrid, I think."
  ropechat inspect --stages --top-p 0.9 "The cat sat on the mat."
  ropechat inspect --lens --layers 0,2 "Once upon a time there was a girl"
  ropechat inspect --attention-map 1,2 "Zorba Quimby met Lena. Then Zorba"
  ropechat inspect --attention -o heads.jsonl "Once upon a time"
  ropechat run "The cat" --max-tokens 9 --trace cat.jsonl
  ropechat inspect --open cat.jsonl --replay
  printf "The capital of Italy is " | ropechat inspect --given-file - Rome
  echo '[{"role": "user", "content": "Hi"}]' > hi.json
  ropechat inspect --messages hi.json --answer "Hello!"
"""
_WITH_OPEN = (
    *("out", "overwrite", "form", "by", "sort", "head", "top_k"),
    *("below", "fail_below", "unit", "chart"),
)


@dataclass(frozen=True)
class _Mode:
    """What is inspected in another way than by scoring TEXT or files."""

    interactive: Path | str | None
    against_dtype: str | None
    opened: Path | str | None
    replay: bool
    stages: bool
    keep_prefix: str | None


class _Watcher(InspectWatcher):
    """Names the unsure spans, and counts them."""

    unsure_spans = 0

    def unsure(self, span: "Word") -> None:
        from ropechat.inspector.by_word import line_of

        self.unsure_spans += 1
        say(f"unsure: {line_of(span)}")

    @property
    def code(self) -> int:
        """The exit code."""
        return CHECK_FAILED if self.unsure_spans else OK


class _Progress(_Watcher):
    """Shows how far the scores are, unless they appear on the terminal themselves.

    streams: whether the scores are written to stdout as they come. stop: ends the scores when it has arrived.
    """

    def __init__(self, line: ProgressLine, engine: "Engine", *, streams: bool) -> None:
        self._line, self._engine = line, engine
        self._appears = streams and line.mode == "line" and sys.stdout is not None and sys.stdout.isatty()
        self.stop: Stop | None = None
        self.failed = False

    @property
    def is_stopped(self) -> bool:
        return self.stop is not None and self.stop.arrived

    def note(self, text: str) -> None:
        say(text)

    def failure(self, name: str, error: RopechatError) -> None:
        self.failed = True
        text = str(error)
        say(f"error: {text if text.startswith(name) else f'{name}: {text}'}")

    def scoring(self, meta: Mapping[str, Any]) -> contextlib.AbstractContextManager[object]:
        self._meta, self._count, self._end = meta, 0, 0
        self._known = Progress("scoring", 0, meta["tokens"])
        self._bytes = len((meta["text"] or "").encode("utf-8", "replace"))
        self._shown = contextlib.ExitStack()
        self._shown.enter_context(self._line.watch(self._read))
        return self._shown

    def scored(self, token: TokenScore) -> None:
        self._count, self._end = self._count + 1, token.span[1]
        if self.stop is not None:
            self.stop.tokens += 1
        if self._appears:
            self._shown.close()

    def looked(self, tokens: int) -> None:
        if self.stop is not None:
            self.stop.tokens = tokens

    def _read(self) -> Progress:
        """How much is scored: in tokens, or in bytes of a text whose tokens are not counted yet.

        The engine counts the tokens of one sequence layer by layer, but no more than a few windows of a text.
        """
        if self._meta["window"] is None:
            if (found := self._engine.progress.read()) is not None:
                self._known = found._replace(stage="scoring")
            return self._known
        tokens = self._meta["tokens"]
        if tokens is None and self._bytes and self._count:
            return Progress("scoring", self._end, self._bytes, "bytes")
        return Progress("scoring", self._count, tokens)


@click.command(cls=GroupedCommand, epilog=_EXAMPLES)
@click.argument("text", required=False)
@score_options
@option_set(
    option("--chat", is_flag=True, help="Render TEXT with the chat template, as a user message."),
    keep_prefix_option("the text of --given-file"),
    title="Texts",
)
@encoding_options
@template_options
@row_options
@stage_options
@inside_options
@record_options
@reader_option
@output_options
@option_set(progress_option, title="Output")
@model_options
def inspect(text: str | None, special: "Special", bos: "Bos", chat: bool, **given: Any) -> int:
    """Show the probability, rank, entropy and candidates of each token of TEXT or of files (-: stdin).

    \b
    It has four jobs:
      score   TEXT or files: tokens, words or lines, charts, sampler stages
      inside  what layers predict, where heads attend: --lens, --attention
      open    what was recorded, here or by another program: --open, --replay
      read    a file in a reader: -i

    Surprisal and entropy are in bits, unless --unit names nats; logprobs are in nats. Numbers are those of
    the types that the model runs with; --dtype f32 --kv-dtype f32 gives the model's own.

    Score: sums cover the text, or with --messages the assistant's texts; what a chat template writes has the
    role "template". With --given-file, only TEXT is shown and summed, and the file's text is its context. A
    text above the trained length is scored in windows of that length: each token once, with at least half a
    window of context. With --stages, each token has what every stage of the sampler leaves and which stage
    cuts it. The probability of a word is the product over its tokens. To inspect the output of `ropechat
    template`, add --special tokens.

    Inside: of one text, as table or jsonl; --lens and --attention-map also as html.

    Open: a record is shown without a model, in each view but those of the inside, --look-up and --stages, for
    which -m reads its text again. Its format is found by its content.

    The exit code is 3 if one of several files failed (the others are written), or if --replay finds a draw
    that does not follow from its record; 1 if --fail-below found a word.
    """
    mode, asked, shown = take(_Mode, given), take(ScoreOptions, given), take(OutputOptions, given)
    line = ProgressLine(given.pop("progress"))
    if mode.interactive is not None:
        refuse_given("-i", READER_OPTIONS)
    if mode.opened is not None and mode.replay:
        refuse_given("--replay", ("opened", "replay", "progress"))
    check_rules(*rules(" ".join(STAGE_SETTINGS)))
    if shown.below is not None and shown.by != "word":
        raise click.UsageError("--below: requires --by word; add it")
    if "" in shown.look_up:
        raise click.UsageError("--look-up: must have at least one character")
    sourced = take_sampling(given) if mode.stages else None
    spec = InspectSpec(
        special=special,
        bos=bos,
        window=asked.window,
        stride=asked.stride,
        one_sequence=asked.one_sequence,
        by_author=asked.messages is not None,
        sampling=None if sourced is None else sourced.sampling,
        roles=asked.roles,
        view=shown.view,
        form=shown.format(stages=mode.stages),
        layers=shown.layers,
        attended=(0, 0) if shown.attention_map is None else (shown.attention_map[0], shown.attention_map[1]),
        top_k=shown.top_k,
        sort=cast("Sort", shown.sort or "line"),
        head=shown.head,
        below=shown.below,
        fail_below=shown.fail_below,
        unit=shown.unit,
        look_up=shown.look_up,
        look_up_whole=shown.look_up_whole,
        width=shown.width,
        color=shown.color,
    )
    if mode.opened is not None:
        if mode.replay:
            return replay_trace(mode.opened)
        needs_model = "--stages" if mode.stages else shown.needs_model
        if not needs_model:
            refuse_given("--open", ("opened", "progress", *_WITH_OPEN))
            shown.refuse_existing()
            told = _Watcher()
            show_records(mode.opened, spec, shown.out, told)
            return told.code
        if "model" not in given_flags():
            raise click.UsageError(
                f"{needs_model}: needs a model, which a record is not; add -m: it reads the record's text"
            )
    if mode.interactive is not None:
        return read_interactively(mode.interactive, asked.window, mode.against_dtype, given)
    shown.refuse_existing()
    texts = (
        _texts(text, shown.files, asked, chat=chat) if mode.opened is None else _recorded(mode.opened, asked)
    )
    if spec.view in INSIDE and len(texts) > 1:
        raise click.UsageError(f"--{spec.view}: must be of one text (got {len(texts)})")
    if len(texts) == 1:
        name, item = texts[0].name, texts[0].read()  # before the model is loaded
        texts = [NamedText(name, lambda: item)]
    engine = load(take_model(given, raw=not (chat or spec.by_author)).find(), line=line)
    if sourced is not None:
        spec = replace(spec, sampling=sourced.with_own(engine.own_sampling).sampling)
    streams = shown.out == STREAM and spec.sort == "line" and spec.form in ("table", "jsonl", "csv")
    watcher = _Progress(line, engine, streams=streams)
    with contextlib.ExitStack() as contexts:
        contexts.enter_context(kept_prefix(engine, mode.keep_prefix))
        if isinstance(shown.out, Path) and not shown.out.is_char_device():
            watcher.stop = contexts.enter_context(finish_on_signal(engine))
        write = contexts.enter_context(output(shown.out, lines=spec.form == "table", stop=watcher.stop))
        for piece in replace(spec, texts=texts).pieces(engine, watcher):
            write(piece)
    return SOME_FAILED if watcher.failed else watcher.code


def _texts(
    text: str | None, files: "Sequence[Path | str]", asked: ScoreOptions, *, chat: bool
) -> list[NamedText]:
    """What is scored. Reading raises UsageError, RequestError, FileAccessError."""
    if not files:
        return [NamedText("", lambda: _prompt(text, asked, chat=chat))]

    def named(file: Path | str) -> NamedText:
        return NamedText(name_of(file), lambda: _item(read_text_file(file, empty=False), asked, chat=chat))

    return [*map(named, files)]


def _recorded(file: Path | str, asked: ScoreOptions) -> list[NamedText]:
    """The texts of recorded answers."""
    found = [(name, recorded.meta["text"] or "") for name, recorded in open_records(file)]
    if asked.given_file is None:
        say(f"note: {name_of(file)}: the text is read without its prompt, which --given-file adds")
    return [NamedText(name, partial(_item, text, asked, chat=False)) for name, text in found]


def _prompt(text: str | None, asked: ScoreOptions, *, chat: bool) -> "ScoreItem":
    """What is scored of the command line."""
    if asked.messages is not None:
        from ropechat.cli.template import read_messages

        if asked.messages == asked.answer == STREAM:
            raise click.UsageError("--answer: stdin is read by --messages already")
        messages = read_messages(asked.messages)
        return messages if asked.answer is None else (messages, text_argument(asked.answer, "--answer"))
    if asked.given_file == STREAM and text in (None, STREAM):
        raise click.UsageError("text: stdin is read by --given-file already; give TEXT or -f")
    value = text_argument(text, "text")
    if value == text and len(value) < 256 and "\0" not in value and os.path.isfile(value):
        say(f"note: text: the name of a file was given, and the name is scored; its text: -f {value}")
    if not value and not chat and asked.given_file is None:
        raise RequestError("text: must have at least one character (got none)")
    return _item(value, asked, chat=chat)


def _item(value: str, asked: ScoreOptions, *, chat: bool) -> "ScoreItem":
    """A text as it is scored: alone, as a user message or as a continuation."""
    if asked.given_file is not None:
        return Pair(read_text_file(asked.given_file, empty=False), value)
    return [Message(Role.USER, value)] if chat else value
