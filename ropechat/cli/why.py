"""`ropechat why`: which parts of a context an answer comes from."""

import shutil
from pathlib import Path
from typing import Any

import click

from ropechat.cli.common import (
    STREAM,
    FileName,
    Real,
    encoding_options,
    format_of,
    format_option,
    messages_option,
    model_options,
    out_option,
    output,
    overwrite_option,
    read_text_file,
    template_options,
    text_argument,
    wants_color,
)
from ropechat.cli.exit_codes import say
from ropechat.cli.interrupt import Stop, finish_on_signal
from ropechat.cli.loading import load, take_model
from ropechat.cli.option_groups import GroupedCommand, Rule, check_rules, option, option_set
from ropechat.cli.status import ProgressLine, progress_option
from ropechat.inspector.why.parts import LEVELS
from ropechat.inspector.why.result import Cost, WhyWatcher
from ropechat.inspector.why.spec import FORMS, WhySpec
from ropechat.util.progress import Progress
from ropechat.util.text import count_of, format_duration

_EXAMPLES = """
  ropechat why "It rains. Peter has an umbrella. He is" --answer " wet"
  ropechat why -f minutes.txt --of Sunday --by sentence -o why.html
  ropechat why -f a.txt -f b.txt --question "It was a" --answer " cat"
  ropechat why --messages chat.json --by sentence --only --format csv
"""
_TEXT_WIDTH = 100  # of a table in a file
_ASKED = (
    *("answer", "of", "question", "chat", "by", "replace", "only", "every", "budget", "max_tokens"),
    *("special", "bos", "head"),
)
"""The options that are fields of `WhySpec`."""
_RULES = (
    Rule("text", excludes="files messages", hint="give one of them"),
    Rule("files", excludes="messages", hint="give one of them"),
    Rule("messages", excludes="chat special bos", hint="the template decides"),
    Rule("chat", excludes="special bos", hint="the template decides"),
    Rule("template template_vars", requires="chat messages"),
    Rule("only", excludes="replace"),
    Rule("every", excludes="budget"),
    Rule("max_tokens", excludes="answer"),
)

context_options = option_set(
    option(
        "-f",
        "--file",
        "files",
        multiple=True,
        type=FileName(),
        metavar="FILE",
        help="Read a text from a file; - is stdin. Repeatable.",
    ),
    messages_option,
    option("--question", metavar="TEXT", default="", help="A text after the context; it always stays."),
    option(
        "--answer",
        metavar="TEXT",
        help="What follows the context [default: what the model writes at temperature 0].",
    ),
    option(
        "--of",
        metavar="TEXT",
        help="The part of the answer that is asked about [default: all]; without --answer, its last place in "
        "the context, which then ends there.",
    ),
    option(
        "--max-tokens",
        type=click.IntRange(1),
        metavar="N",
        default=16,
        show_default=True,
        help="Without --answer: tokens of the answer that the model writes, at most.",
    ),
    option(
        "--chat",
        is_flag=True,
        help="Render the context and the question with the chat template, as a message.",
    ),
    title="Context",
)
parts_options = option_set(
    option(
        "--by",
        type=click.Choice(LEVELS),
        default="word",
        show_default=True,
        help="The finest parts that are looked into; text: whole messages or files.",
    ),
    option("--replace", metavar="TEXT", help="Put TEXT in the place of a part instead of leaving it out."),
    option("--only", is_flag=True, help="Leave out all but a part."),
    option(
        "--every",
        is_flag=True,
        expert=True,
        help="Look into all parts down to those of --by, however long it takes.",
    ),
    option(
        "--budget",
        type=Real(above=True),
        metavar="TIMES",
        default=30.0,
        show_default=True,
        expert=True,
        help="Work to spend, as so many times the reading of the whole context.",
    ),
    title="Parts",
)


class _Watcher(WhyWatcher):
    """Says what it costs, and remembers how far it is. stop: whether a signal has ended it."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self.at: Progress | None = None

    @property
    def is_stopped(self) -> bool:
        return self._stop.arrived

    def note(self, text: str) -> None:
        say(text)

    def planned(self, cost: Cost) -> None:
        time = "" if cost.seconds is None else f", {format_duration(cost.seconds)}"
        say(
            f"note: {count_of(cost.parts, 'part')} at first; at most the work of reading "
            f"{cost.work:,} tokens{time}"
        )
        self.progress(0, cost.work)

    def progress(self, done: int, work: int) -> None:
        self.at = Progress("scoring", done, work)


@click.command(cls=GroupedCommand, epilog=_EXAMPLES)
@click.argument("text", required=False)
@context_options
@parts_options
@option_set(
    option(
        "--rows",
        "head",
        old=["--head"],
        type=click.IntRange(0),
        metavar="N",
        default=12,
        show_default=True,
        help="The N parts that the table has.",
    ),
    out_option(FORMS),
    overwrite_option,
    format_option(FORMS.values(), "table"),
    progress_option,
    title="Output",
)
@template_options
@encoding_options
@model_options
def why(
    text: str | None,
    files: "tuple[Path | str, ...]",
    messages: str | None,
    form: str | None,
    out: Path | str,
    overwrite: bool,
    progress: str,
    **given: Any,
) -> None:
    """Show which parts of TEXT, of files or of a conversation an answer comes from.

    Each part is left out in turn, and the answer is scored again: the bits that it costs more are what the
    part gives to it. First messages, files or paragraphs; then the sentences and words of those that change
    the answer most, until --budget is spent. What was not looked into is listed at the end.

    The numbers are exact: those that scoring the changed text alone gives. Of two places that say the same,
    each alone costs little; --only shows what each gives by itself.
    """
    check_rules(*_RULES)
    kind = format_of(form, out, FORMS)
    to_file = isinstance(out, Path)
    if isinstance(out, Path):
        from ropechat.batch.output import refuse_output  # imported here: rarely needed

        refuse_output(out, files, overwrite=overwrite)
    asked = {name: given.pop(name) for name in _ASKED}
    spec = WhySpec(
        _context(text, files, messages),
        **asked,
        form=kind,
        width=_TEXT_WIDTH if to_file else shutil.get_terminal_size((100, 24)).columns,
        color=not to_file and wants_color(),
    )
    line = ProgressLine(progress)
    engine = load(take_model(given, raw=not (spec.chat or messages)).find(), line=line)
    with finish_on_signal(engine) as stop:
        watcher = _Watcher(stop)
        with line.watch(lambda: watcher.at or engine.progress.read()):
            found = spec.run(engine, watcher)
        with output(out, lines=kind == "table") as write:
            for piece in spec.pieces(found):
                write(piece)


def _context(text: str | None, files: "tuple[Path | str, ...]", messages: str | None) -> Any:
    """What is divided. Raises UsageError, RequestError, FileAccessError."""
    if messages is not None:
        from ropechat.cli.template import read_messages

        return read_messages(messages)
    if not files:
        return text_argument(text, "text")
    if files == (STREAM,):
        return read_text_file(STREAM)
    if STREAM in files:
        raise click.UsageError("-f -: must be the only file")
    return list(files)
