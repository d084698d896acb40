"""`ropechat inspect`: the probability of each token of a text."""

import shutil
from collections.abc import Iterator
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
from ropechat.cli.inside import inside_options, show
from ropechat.conversation import Message, Role

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine
    from ropechat.engine.prompt import Special
    from ropechat.trace import Trace

_TABLE_TOP_K = 5
_JSONL_TOP_K = 20


def _table(engine: "Engine", trace: "Trace") -> Iterator[str]:
    from ropechat.inspector import table

    width = shutil.get_terminal_size((100, 24)).columns

    def bytes_of(id: int) -> bytes:
        return engine.tokenizer.token_bytes(id) if engine.tokenizer.present else b""

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
@inside_options
def inspect(
    text: str | None, top_k: int | None, form: str, special: "Special", chat: bool, **given: Any
) -> None:
    """Show the logprob, rank, entropy and candidates of each token of TEXT (- or none: from stdin).

    With --chat, tokens of the template have the role "template" and are excluded from sums; spans in jsonl
    refer to the rendered text, which is in the first line. To inspect the output of `ropechat template`, add
    --special tokens.

    With --lens, tokens by layers: the best token of each layer and the rank of the text's token there. With
    --attention, the mean attention weights of each head.

    \b
    Examples:
      ropechat inspect --lens "Once upon a time there was a little girl"
      ropechat inspect --lens --layers 0,2 --format jsonl "Once upon a time" > lens.jsonl
      ropechat inspect --attention --layers 0 "Once upon a time there was a little girl"
    """
    value = text_argument(text, "text")
    if given["layers"] and not given["view"]:
        raise click.UsageError("--layers: requires --lens or --attention; add one or omit it")
    if chat and special == "tokens":
        raise click.UsageError("--special tokens: not possible with --chat, where TEXT stays text")
    if not chat and (given["template"] or given["template_vars"]):
        raise click.UsageError("--template and --template-var require --chat; add it or omit them")
    engine = load_chat_engine(given, raw=not chat)
    if top_k is None:
        top_k = _TABLE_TOP_K if form == "table" else _JSONL_TOP_K
    prompt = [Message(Role.USER, value)] if chat else value
    if given["view"]:
        show(engine, prompt, special, given["view"], given["layers"], top_k, form)
        return
    trace, out = engine.score(prompt, top_k=top_k, special=special), StdoutWriter()
    if trace.beyond_trained_length:
        say(
            f"note: {len(trace)} tokens exceed the trained length of {trace.meta['trained_length']}: scores "
            "beyond it, and their part in the sums, are unreliable"
        )
    if form == "table":
        for line in _table(engine, trace):
            out.raw_line(line)
        return
    from ropechat.inspector import jsonl

    for line in jsonl.lines(trace):
        out.write(line + "\n")
