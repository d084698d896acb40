"""`ropechat tree`: the likeliest continuations of a text, best first."""

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropechat.cli.common import (
    STREAM,
    FileName,
    encoding_options,
    format_of,
    format_option,
    messages_option,
    model_options,
    out_option,
    output,
    overwrite_option,
    read_text_file,
    refuse_existing,
    template_options,
    text_argument,
    wants_color,
)
from ropechat.cli.exit_codes import OK
from ropechat.cli.interrupt import Stop, finish_on_signal
from ropechat.cli.loading import load, take_model
from ropechat.cli.option_groups import GroupedCommand, Rule, check_rules, option, option_set
from ropechat.cli.status import ProgressLine, progress_option
from ropechat.errors import RequestError
from ropechat.inspector.tree_spec import BY_SUFFIX, FORMS, TreeSpec, TreeWatcher
from ropechat.util.progress import Progress

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine
    from ropechat.engine.score_input import ScoreItem

_EXAMPLES = """
  ropechat tree "The capital of Italy is"
  ropechat tree --chat "Is Rome in Italy? Answer yes or no." --nodes 20
  ropechat tree "The capital of Italy is Madrid" --at 5 --depth 3
  ropechat tree "The capital of Italy is" -o rome.html
"""
_RULES = (
    Rule("text", excludes="file messages", hint="give one of them"),
    Rule("file", excludes="messages", hint="give one of them"),
    Rule("answer", requires="messages", hint="add it, or give the text with -f"),
    Rule("chat", excludes="messages", hint="use --messages alone"),
    Rule("special bos", excludes="chat messages", hint="the template decides"),
    Rule("template template_vars", requires="chat messages"),
)
_WIDTH = 80  # of a table in a file


class _Watcher(TreeWatcher):
    """Shows how far the search is. stop: ends it when it has arrived."""

    def __init__(self, line: ProgressLine, engine: "Engine", nodes: int) -> None:
        self._line, self._engine, self._nodes, self._done = line, engine, nodes, 0
        self.stop: Stop | None = None

    @property
    def is_stopped(self) -> bool:
        return self.stop is not None and self.stop.arrived

    def note(self, text: str) -> None:
        self._line.note(text)

    def added(self, nodes: int) -> None:
        self._done = nodes
        if self.stop is not None:
            self.stop.tokens = nodes

    def read(self) -> Progress:
        """The progress of the search; before the first node, that of the prefill in tokens."""
        found = self._engine.progress.read() if not self._done else None
        return found or Progress("searching", self._done, self._nodes, "nodes")


_text_options = option_set(
    option("-f", "--file", type=FileName(), metavar="FILE", help="Read TEXT from a file; - is stdin."),
    option("--chat", is_flag=True, help="Render TEXT with the chat template: how answers may begin."),
    messages_option,
    option("--answer", metavar="TEXT", help="With --messages: the beginning of the answer; - is stdin."),
    option(
        "--at",
        type=click.IntRange(1),
        metavar="N",
        help="Begin in the place of token N, # in the table of inspect, and mark what stands there "
        "[default: after the text].",
    ),
    title="Text",
)
_tree_options = option_set(
    option(
        "--nodes",
        type=click.IntRange(1, 100_000),
        metavar="N",
        default=TreeSpec.nodes,
        show_default=True,
        help="Tokens of the whole tree, at most.",
    ),
    option(
        "--depth",
        type=click.IntRange(1),
        metavar="N",
        default=TreeSpec.depth,
        show_default=True,
        help="Tokens of a path, at most.",
    ),
    option(
        "--candidates",
        "top_k",
        old=["--top-k"],
        type=click.IntRange(1, 1000),
        metavar="N",
        default=TreeSpec.top_k,
        show_default=True,
        help="Continuations of each token, at most.",
    ),
    option(
        "--mass",
        type=click.FloatRange(0, 1, min_open=True),
        metavar="P",
        default=TreeSpec.mass,
        show_default=True,
        expert=True,
        help="End when the complete paths, of full depth or at the end of a text, have this probability.",
    ),
    title="Tree",
)
_output_options = option_set(
    out_option(BY_SUFFIX),
    overwrite_option,
    format_option(FORMS, "table"),
    progress_option,
    title="Output",
)


@click.command(cls=GroupedCommand, epilog=_EXAMPLES)
@click.argument("text", required=False)
@_text_options
@_tree_options
@_output_options
@template_options
@encoding_options
@model_options
def tree(
    text: str | None,
    file: Path | str | None,
    chat: bool,
    messages: str | None,
    answer: str | None,
    form: str | None,
    out: Path | str,
    overwrite: bool,
    progress: str,
    **given: Any,
) -> int:
    """Show the likeliest continuations of TEXT (- or none: from stdin) as a tree, best first.

    The tree has the N paths of tokens with the largest probability (--nodes N). Columns: the probability of
    the path, and of its last token after those before it; (rest) is what the tree does not have. The ends of
    the paths and the rests sum to 100%. All at temperature 1, without filters of the sampler.

    Two paths with the same text, in other tokens, meet: the likelier one goes on, the other is marked with ≡.

    Ctrl-C ends the search, and what was found is shown.
    """
    check_rules(*_RULES)
    refuse_existing(out, overwrite=overwrite)
    is_file = isinstance(out, Path)
    names = ("special", "bos", "at", "nodes", "depth", "top_k", "mass")
    spec = TreeSpec(
        _prompt(text, file, messages, answer, chat=chat),
        form=format_of(form, out, BY_SUFFIX),
        width=_WIDTH if is_file else shutil.get_terminal_size((_WIDTH, 24)).columns,
        color=wants_color() and not is_file,
        **{name: given.pop(name) for name in names},
    )
    line = ProgressLine(progress)
    engine = load(take_model(given, raw=not (chat or messages)).find(), line=line)
    watcher = _Watcher(line, engine, spec.nodes)
    with contextlib.ExitStack() as contexts:
        watcher.stop = contexts.enter_context(finish_on_signal(engine))
        watcher.stop.noun = "node"
        with line.watch(watcher.read):
            pieces = spec.pieces(engine, watcher)
        write = contexts.enter_context(output(out, lines=spec.form == "table", stop=watcher.stop))
        for piece in pieces:
            write(piece)
    return OK


def _prompt(
    text: str | None, file: Path | str | None, messages: str | None, answer: str | None, *, chat: bool
) -> "ScoreItem":
    """What is continued. Raises UsageError, RequestError, FileAccessError."""
    if messages is not None:
        from ropechat.cli.template import read_messages

        if messages == answer == STREAM:
            raise click.UsageError("--answer: stdin is read by --messages already")
        found = read_messages(messages)
        return found if answer is None else (found, text_argument(answer, "--answer"))
    value = text_argument(text, "text") if file is None else read_text_file(file, empty=False)
    if not value and not chat:
        raise RequestError("text: must have at least one character (got none)")
    if chat:
        from ropechat.conversation import Message, Role

        return [Message(Role.USER, value)]
    return value
