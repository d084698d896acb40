"""`ropechat inspect`: the probability of each token of a text."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ropechat.cli.common import load_chat_engine, model_options, template_options, text_argument
from ropechat.cli.inspect_output import (
    TOP_K,
    Failures,
    looking_up,
    name_of,
    output_of,
    output_options,
    read_file,
    write,
)
from ropechat.cli.inspect_score import (
    ScoreOptions,
    WatchedScores,
    open_stream,
    read_conversation,
    score_options,
    take_score_options,
)
from ropechat.conversation import Message, Role
from ropechat.trace import Pair

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropechat.engine.prompt import Bos, Special
    from ropechat.engine.score_input import ScoreItem
    from ropechat.inspector.reading import Reading

_EXAMPLES = """\b
Examples:
  ropechat inspect "The cat sat on the mat."
  ropechat inspect "The capital of France is" --look-up " Paris" --look-up " Lyon"
  ropechat inspect "The cat sat on the mat." -o cat.html
  echo "The capital of France is " > prompt.txt && ropechat inspect --given-file prompt.txt "Paris."
  echo '[{"role": "user", "content": "Hi"}]' | ropechat inspect --messages - --answer "Hello!"
  ropechat --help > help.txt && ropechat inspect -f help.txt --by line --sort bits --head 5
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
def inspect(
    text: str | None, top_k: int | None, special: "Special", bos: "Bos", chat: bool, **given: Any
) -> int:
    """Show the logprob, rank, entropy and candidates of each token of TEXT or of files (-: stdin).

    With --chat, tokens of the template have the role "template" and are excluded from sums; spans in jsonl
    refer to the rendered text, which is in the first line. To inspect the output of `ropechat template`, add
    --special tokens.

    A text above the trained length is scored in windows of that length: each token once, with at least half
    a window of context. Results are written while later windows are computed.

    With --messages, the texts of a conversation have the roles system, user and assistant, and sums cover the
    assistant's. With --given-file, only TEXT is shown and summed, and the file's text is its context.

    The exit code is 3 if one of several files failed; the others are written.
    """
    files: Sequence[Any] = given["files"]
    asked = take_score_options(given, text=text, files=files, chat=chat)
    is_chat = chat or asked.messages is not None
    if files and text is not None:
        raise click.UsageError("text: give TEXT or -f, not both")
    if is_chat and special == "tokens":
        raise click.UsageError("--special tokens: not possible with --chat, where TEXT stays text")
    if is_chat and bos != "auto":
        raise click.UsageError("--bos: not possible with --chat, where the template decides")
    if not is_chat and (given["template"] or given["template_vars"]):
        raise click.UsageError("--template and --template-var require --chat; add it or omit them")
    output = output_of(given, top_k)
    given.pop("files")
    sources: list[tuple[str, Callable[[], ScoreItem]]] = [
        (name_of(file), partial(_item, partial(read_file, file), asked, chat=chat)) for file in files
    ]
    if len(sources) <= 1:
        value = _item(lambda: text_argument(text, "text"), asked, chat=chat) if not files else sources[0][1]()
        sources = [(name_of(files[0]) if files else "", lambda: value)]  # read before the model is loaded
    engine = load_chat_engine(given, raw=not is_chat)
    failures = Failures(len(sources))

    def readings() -> Iterator["Reading"]:
        from ropechat.inspector.reading import Reading

        for name, read in sources:
            with failures.of(name):
                scores = WatchedScores(
                    open_stream(engine, name, read(), asked, top_k=output.top_k, special=special, bos=bos)
                )
                yield Reading(scores, name, looking_up(engine, scores.meta, output.look_up))

    write(readings(), engine, output, _title([name for name, _ in sources]))
    return failures.exit_code


def _item(read: "Callable[[], str]", asked: ScoreOptions, *, chat: bool) -> "ScoreItem":
    """What is scored: a conversation, or the text that `read` returns."""
    if asked.messages is not None:
        return read_conversation(asked.messages, asked.answer)
    if asked.given_file is not None:
        return Pair(read_file(asked.given_file), read())
    return [Message(Role.USER, read())] if chat else read()


def _title(names: Sequence[str]) -> str:
    """The title of the page."""
    return names[0] or "Inspected text" if len(names) == 1 else f"{len(names)} inspected texts"
