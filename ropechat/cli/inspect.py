"""`ropechat inspect`: the probability of each token of a text."""

import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from ropechat.cli.common import (
    StdoutWriter,
    load_chat_engine,
    model_options,
    template_options,
    text_argument,
    wants_color,
)
from ropechat.cli.exit_codes import say
from ropechat.cli.stages import (
    open_trace,
    replay_trace,
    stage_options,
    take_open_options,
    take_stage_settings,
)
from ropechat.conversation import Message, Role

if TYPE_CHECKING:
    from pathlib import Path

    from ropechat.engine.prompt import Special
    from ropechat.trace import Trace

_TABLE_TOP_K = 5
_JSONL_TOP_K = 20


def _table(bytes_of: Callable[[int], bytes], trace: "Trace") -> Iterator[str]:
    from ropechat.inspector import table

    width = shutil.get_terminal_size((100, 24)).columns
    return table.render(trace, bytes_of, width, color=wants_color())


@click.command()
@click.argument("text", required=False)
@model_options
@click.option(
    "--top-k",
    type=click.IntRange(0, 1000),
    help=f"Candidates per position [default: {_TABLE_TOP_K} in a table, {_JSONL_TOP_K} as jsonl].",
)
@click.option("--format", "form", type=click.Choice(["table", "jsonl"]), default="table", show_default=True)
@click.option(
    "--special",
    type=click.Choice(["text", "tokens"]),
    default="text",
    show_default=True,
    help="Whether the name of a control token in TEXT, such as <|endoftext|>, is text or the token.",
)
@click.option("--chat", is_flag=True, help="Render TEXT with the chat template, as a user message.")
@template_options
@stage_options
def inspect(
    text: str | None,
    top_k: int | None,
    form: str,
    special: "Special",
    chat: bool,
    **given: Any,
) -> int | None:
    """Show the logprob, rank, entropy and candidates of each token of TEXT (- or none: from stdin).

    With --chat, tokens of the template have the role "template" and are excluded from sums; spans in jsonl
    refer to the rendered text, which is in the first line. To inspect the output of `ropechat template`, add
    --special tokens.

    --stages shows what each stage of the sampler leaves at each token, which stage cuts the token of the
    text, and how many of the tokens the settings can produce. --open shows a trace that `run --trace` or
    `inspect --format jsonl` wrote; --replay ends with exit code 3 if a draw does not follow from its record.

    \b
    Examples:
      ropechat inspect "The sun is shining."
      ropechat inspect --stages --temperature 0.7 --top-p 0.9 "The sun is shining."
      ropechat inspect --stages --format jsonl "The sun is shining."
      ropechat run "The sun" --max-tokens 9 --trace t.jsonl
      ropechat inspect --open t.jsonl --replay
    """
    opened, replay = take_open_options(given)
    if opened is not None:
        return _show_opened(opened, text, form, replay)
    settings = take_stage_settings(given)
    value = text_argument(text, "text")
    if chat and special == "tokens":
        raise click.UsageError("--special tokens: not possible with --chat, where TEXT stays text")
    if not chat and (given["template"] or given["template_vars"]):
        raise click.UsageError("--template and --template-var require --chat; add it or omit them")
    engine = load_chat_engine(given, raw=not chat)
    if top_k is None:
        top_k = _TABLE_TOP_K if form == "table" else _JSONL_TOP_K
    prompt = [Message(Role.USER, value)] if chat else value
    trace, out = engine.score(prompt, top_k=top_k, special=special, sampling=settings), StdoutWriter()
    if trace.beyond_trained_length:
        say(
            f"note: {len(trace)} tokens exceed the trained length of {trace.meta['trained_length']}: scores "
            "beyond it, and their part in the sums, are unreliable"
        )
    if form == "table":
        for line in _table(engine.token_bytes, trace):
            out.raw_line(line)
        return None
    _write_jsonl(trace, out)
    return None


def _write_jsonl(trace: "Trace", out: StdoutWriter) -> None:
    from ropechat.inspector import jsonl

    for line in jsonl.lines(trace):
        out.write(line + "\n")


def _show_opened(file: "Path | str", text: str | None, form: str, replay: bool) -> int | None:
    """Show or replay a recorded trace; no model is loaded."""
    if text is not None:
        raise click.UsageError("text: must be absent with --open, which shows the text of the trace")
    opened, out = open_trace(file), StdoutWriter()
    if replay:
        return replay_trace(opened, out)
    if form == "jsonl":
        _write_jsonl(opened.trace, out)
        return None
    for line in _table(opened.bytes_of, opened.trace):
        out.raw_line(line)
    return None
