"""`ropechat inspect`: the probability of each token of a text."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ropechat.cli.common import load_chat_engine, model_options, template_options, text_argument
from ropechat.cli.exit_codes import OK, say
from ropechat.cli.inside import inside_options, show_view, view_of
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
from ropechat.conversation import Message, Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropechat.engine.engine import Engine
    from ropechat.engine.prompt import Bos, Special
    from ropechat.inspector.reading import Reading
    from ropechat.trace import Trace

_EXAMPLES = """\b
Examples:
  ropechat inspect "The cat sat on the mat."
  ropechat inspect "The capital of France is" --look-up " Paris" --look-up " Lyon"
  ropechat inspect "The cat sat on the mat." -o cat.html
  ropechat inspect --lens --layers 0,2 "Once upon a time there was a little girl"
  ropechat inspect --attention -o heads.jsonl "Once upon a time there was a little girl"
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
@inside_options
def inspect(
    text: str | None, top_k: int | None, special: "Special", bos: "Bos", chat: bool, **given: Any
) -> int:
    """Show the logprob, rank, entropy and candidates of each token of TEXT or of files (-: stdin).

    With --chat, tokens of the template have the role "template" and are excluded from sums; spans in jsonl
    refer to the rendered text, which is in the first line. To inspect the output of `ropechat template`, add
    --special tokens.

    With --lens, tokens by layers: the best token of each layer and the rank of the text's token there. With
    --attention, the mean attention weights of each head. Both as table or jsonl, of one text.

    The exit code is 3 if one of several files failed; the others are written.
    """
    files: Sequence[Any] = given["files"]
    if files and text is not None:
        raise click.UsageError("text: give TEXT or -f, not both")
    if chat and special == "tokens":
        raise click.UsageError("--special tokens: not possible with --chat, where TEXT stays text")
    if chat and bos != "auto":
        raise click.UsageError("--bos: not possible with --chat, where the template decides")
    if not chat and (given["template"] or given["template_vars"]):
        raise click.UsageError("--template and --template-var require --chat; add it or omit them")
    output = output_of(given, top_k)
    view = view_of(given, output, top_k)
    given.pop("files")
    sources: list[tuple[str, Callable[[], str]]] = [
        (name_of(file), partial(read_file, file)) for file in files
    ]
    if not sources:
        value = text_argument(text, "text")
        sources = [("", lambda: value)]
    elif len(sources) == 1:
        value = read_file(files[0])  # before the model is loaded
        sources = [(name_of(files[0]), lambda: value)]
    engine = load_chat_engine(given, raw=not chat)
    if view is not None:
        value = sources[0][1]()
        show_view(engine, [Message(Role.USER, value)] if chat else value, special, bos, view, output)
        return OK
    failures = Failures(len(sources))

    def readings() -> Iterator["Reading"]:
        from ropechat.inspector.reading import Reading

        for name, read in sources:
            with failures.of(name):
                prompt = [Message(Role.USER, read())] if chat else read()
                trace = _score(engine, name, prompt, output.top_k, special, bos)
                yield Reading(trace, name, looking_up(engine, trace.meta, output.look_up))

    write(readings(), engine, output, _title([name for name, _ in sources]))
    return failures.exit_code


def _title(names: Sequence[str]) -> str:
    """The title of the page."""
    return names[0] or "Inspected text" if len(names) == 1 else f"{len(names)} inspected texts"


def _score(
    engine: "Engine", name: str, prompt: "str | list[Message]", top_k: int, special: "Special", bos: "Bos"
) -> "Trace":
    trace = engine.score(prompt, top_k=top_k, special=special, bos=bos)
    if trace.beyond_trained_length:
        place = f"{name}: " if name else ""
        say(
            f"note: {place}{len(trace)} tokens exceed the trained length of {trace.meta['trained_length']}: "
            "scores beyond it, and their part in the sums, are unreliable"
        )
    trace.meta.update(tokens=len(trace), beyond_trained_length=trace.beyond_trained_length)
    return trace
