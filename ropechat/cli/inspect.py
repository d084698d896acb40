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
    wants_color,
)
from ropechat.cli.inspect_score import (
    WatchedScores,
    open_stream,
    read_prompt,
    score_options,
    take_score_options,
)

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine
    from ropechat.engine.prompt import Special
    from ropechat.trace import Scores

_TABLE_TOP_K = 5
_JSONL_TOP_K = 20


def _table(engine: "Engine", scores: "Scores") -> Iterator[str]:
    from ropechat.inspector import table

    width = shutil.get_terminal_size((100, 24)).columns

    def bytes_of(id: int) -> bytes:
        return engine.tokenizer.token_bytes(id) if engine.tokenizer.present else b""

    return table.render(scores, bytes_of, width, color=wants_color())


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
@score_options
def inspect(
    text: str | None, top_k: int | None, form: str, special: "Special", chat: bool, **given: Any
) -> None:
    """Show the logprob, rank, entropy and candidates of each token of TEXT (- or none: from stdin).

    With --chat, tokens of the template have the role "template" and are excluded from sums; spans in jsonl
    refer to the rendered text, which is in the first line. To inspect the output of `ropechat template`, add
    --special tokens.

    A text above the trained length is scored in windows of that length: each token once, with at least half
    a window of context.

    With --messages, the texts of a conversation have the roles system, user and assistant, and sums cover the
    assistant's. With --given-file, only TEXT is shown and summed, and the file's text is its context.

    \b
    Examples:
      ropechat inspect "Once upon a time"
      ropechat inspect --format jsonl - < book.txt | jq .surprisal_bits
      ropechat inspect --messages chat.json --answer "Yes."
      ropechat inspect --given-file prompt.txt " an answer"
    """
    asked = take_score_options(given)
    prompt = read_prompt(text, asked, chat=chat)
    is_chat = chat or asked.needs_template
    if is_chat and special == "tokens":
        raise click.UsageError("--special tokens: not possible with --chat, where TEXT stays text")
    if not is_chat and (given["template"] or given["template_vars"]):
        raise click.UsageError("--template and --template-var require --chat; add it or omit them")
    engine = load_chat_engine(given, raw=not is_chat)
    if top_k is None:
        top_k = _TABLE_TOP_K if form == "table" else _JSONL_TOP_K
    stream, out = open_stream(engine, prompt, asked, top_k=top_k, special=special), StdoutWriter()
    scores = WatchedScores(stream)
    if form == "table":
        for line in _table(engine, scores):
            out.raw_line(line)
        return
    from ropechat.inspector import jsonl

    for line in jsonl.lines(scores):
        out.write(line + "\n")
