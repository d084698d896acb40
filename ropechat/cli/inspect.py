"""`ropechat inspect`: the probability of each token of a text."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from ropechat.cli.common import model_options, template_options
from ropechat.cli.exit_codes import OK
from ropechat.cli.inside import inside_options, show_view, view_of
from ropechat.cli.inspect_output import (
    TOP_K,
    Failures,
    looked_up_strings,
    name_of,
    output_of,
    output_options,
    read_file,
    write,
)
from ropechat.cli.inspect_reader import read_interactively, reader_option, refuse_with_reader
from ropechat.cli.inspect_score import (
    ScoreOptions,
    WatchedScores,
    open_stream,
    prompt_of,
    read_prompt,
    refuse_with_view,
    score_options,
    take_score_options,
)
from ropechat.cli.interrupt import Stop, finish_on_signal
from ropechat.cli.keep_prefix import keep_prefix_option, kept_prefix
from ropechat.cli.loading import load, take_model
from ropechat.cli.stages import (
    check_stage_output,
    refuse_with_open,
    show_trace,
    stage_options,
    take_stage_options,
)
from ropechat.cli.status import ProgressLine, progress_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropechat.conversation import Message
    from ropechat.engine.prompt import Bos, Special
    from ropechat.engine.score_input import ScoreItem
    from ropechat.inspector.scored_text import ScoredText

_EXAMPLES = """\b
Examples:
  ropechat inspect "The cat sat on the mat."
  ropechat inspect "The capital of Italy is Madrid" --look-up " Rome" --look-up " Lyon" --top-k 1
  ropechat inspect "The cat sat on the mat." -o cat.html
  ropechat inspect --lens --layers 0,2 "Once upon a time there was a little girl"
  ropechat inspect --attention -o heads.jsonl "Once upon a time there was a little girl"
  ropechat --help > help.txt && ropechat inspect -f help.txt --by line --sort bits --head 5
  ropechat inspect --stages --temperature 0.7 --top-p 0.9 "The cat sat on the mat."
  ropechat inspect --stages --top-k 0 --format csv "The cat sat on the mat."
  ropechat run "The cat" --max-tokens 9 --trace cat.jsonl && ropechat inspect --open cat.jsonl --replay
  printf "The capital of Italy is " | ropechat inspect --given-file - Rome
  echo '[{"role": "user", "content": "Hi"}]' | ropechat inspect --messages - --answer "Hello!"
"""


@click.command(epilog=_EXAMPLES)
@click.argument("text", required=False)
@model_options
@click.option(
    "--top-k",
    type=click.IntRange(0, 1000),
    help=f"Candidates per position [default: {TOP_K['jsonl']} as jsonl, else {TOP_K['table']}].",
)
@output_options
@click.option(
    "--special",
    type=click.Choice(["text", "tokens"]),
    default="text",
    show_default=True,
    help="Whether the name of a control token in TEXT, such as <|endoftext|>, is text or the token.",
)
@click.option(
    "--bos",
    type=click.Choice(["auto", "yes", "no"]),
    default="auto",
    show_default=True,
    help="Whether a text begins with the BOS token; auto: as the model's tokenizer says.",
)
@click.option("--chat", is_flag=True, help="Render TEXT with the chat template, as a user message.")
@template_options
@score_options
@stage_options
@inside_options
@reader_option
@keep_prefix_option("the text of --given-file")
@progress_option
def inspect(
    text: str | None, top_k: int | None, special: "Special", bos: "Bos", chat: bool, **given: Any
) -> int:
    """Show the probability, rank, entropy and candidates of each token of TEXT or of files (-: stdin).

    Surprisal and entropy are in bits, logprobs in nats.

    With --chat, tokens of the template have the role "template" and are excluded from sums; spans in jsonl
    refer to the rendered text, which is in the first line. To inspect the output of `ropechat template`, add
    --special tokens.

    Numbers are those of the types that the model runs with; --dtype f32 --kv-dtype f32 gives the model's own.

    A text above the trained length is scored in windows of that length: each token once, with at least half
    a window of context.

    With --messages, the texts of a conversation have the roles system, user and assistant, and sums cover the
    assistant's. With --given-file, only TEXT is shown and summed, and the file's text is its context.

    With --stages, each token has what every stage of the sampler leaves and which stage cuts it; the last
    line says how many of the tokens the settings can produce. --open shows a trace that `run --trace` or
    `inspect --format jsonl` wrote.

    With --lens, tokens by layers: the best token of each layer and the rank of the text's token there. With
    --attention, the mean attention weights of each head. Both of one text, as table or jsonl; --lens also as
    html.

    The exit code is 3 if one of several files failed (the others are written), or if --replay finds a draw
    that does not follow from its record.
    """
    if given["interactive"] is not None:
        refuse_with_reader(text)
    line = ProgressLine(given.pop("progress"))
    settings, opened, replay = take_stage_options(given)
    keep_prefix = given.pop("keep_prefix")
    asked, against = take_score_options(given), given.pop("against_dtype")
    if against is not None and given["interactive"] is None:
        raise click.UsageError("--against-dtype: requires -i; two models on one text are `ropechat compare`")
    if keep_prefix is not None and asked.given_file is None:
        raise click.UsageError("--keep-prefix: requires --given-file, whose text is kept")
    if opened is not None:
        if text is not None or given["files"] or asked.messages is not None or given["look_up"]:
            raise click.UsageError("--open: not possible with a text or --look-up; give only the trace")
        refuse_with_open(replay=replay)
        return show_trace(opened, output_of(given, top_k), top_k, replay=replay)
    if (file := given.pop("interactive")) is not None:
        return read_interactively(file, asked.window, against, given)
    sources = _sources(text, given["files"], asked, chat=chat)
    is_chat = chat or asked.needs_template
    if is_chat and special == "tokens":
        raise click.UsageError("--special tokens: not possible with --chat, where TEXT stays text")
    if is_chat and bos != "auto":
        raise click.UsageError("--bos: not possible with --chat, where the template decides")
    if not is_chat and (given["template"] or given["template_vars"]):
        raise click.UsageError("--template and --template-var require --chat; add it or omit them")
    output = output_of(given, top_k)
    view = view_of(given, output, top_k)
    check_stage_output(settings, output.form, by_line=output.by_line, view=view is not None)
    if view is not None:
        refuse_with_view(asked, view.name, len(sources))
    if len(sources) == 1:
        name, read = sources[0]
        item = read()  # before the model is loaded
        sources = [(name, lambda: item)]
    engine = load(take_model(given, raw=not is_chat).find(), line=line)
    if view is not None:
        show_view(engine, cast("str | list[Message]", sources[0][1]()), special, bos, view, output)
        return OK
    stop: Stop | None = None
    failures, strings = Failures(len(sources)), looked_up_strings(engine, output)

    def readings() -> Iterator["ScoredText"]:
        from ropechat.inspector.scored_text import ScoredText

        for name, read in sources:
            if stop is not None and stop.arrived:
                return
            with failures.of(name):
                stream = open_stream(
                    engine,
                    read(),
                    asked,
                    top_k=output.top_k,
                    special=special,
                    bos=bos,
                    sampling=settings,
                    look_up=() if strings is None else strings.first_ids,
                    name=name,
                )
                watched = WatchedScores(stream, line, engine.progress.read, appears=output.streams, stop=stop)
                yield ScoredText(
                    watched, name, strings, stream.before, lambda: stop is not None and stop.arrived
                )

    with contextlib.ExitStack() as contexts:
        contexts.enter_context(kept_prefix(engine, keep_prefix))
        if isinstance(output.out, Path) and not output.out.is_char_device():
            stop = contexts.enter_context(finish_on_signal(engine))
        write(readings(), engine.token_bytes, output, _title([name for name, _ in sources]), stop)
    return failures.exit_code


def _sources(
    text: str | None, files: "Sequence[Path | str]", asked: ScoreOptions, *, chat: bool
) -> "list[tuple[str, Callable[[], ScoreItem]]]":
    """What is scored: names, and functions that read. Raises UsageError."""
    if not files:
        return [("", lambda: read_prompt(text, asked, chat=chat))]
    if text is not None or asked.messages is not None:
        raise click.UsageError("-f: not possible with TEXT or --messages; give one of them")
    return [
        (name_of(file), lambda file=file: prompt_of(read_file(file), asked, chat=chat))  # type: ignore[misc]
        for file in files
    ]


def _title(names: Sequence[str]) -> str:
    """The title of the page."""
    return names[0] or "Inspected text" if len(names) == 1 else f"{len(names)} inspected texts"
