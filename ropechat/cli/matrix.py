"""`ropechat matrix`: how probable each of some answers is after each of some prompts."""

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropechat.cli.common import (
    FileName,
    encoding_options,
    format_of,
    format_option,
    model_options,
    name_of,
    out_option,
    output,
    overwrite_option,
    read_text_file,
    refuse_existing,
    unit_option,
    wants_color,
    write_output,
)
from ropechat.cli.exit_codes import OK, say
from ropechat.cli.interrupt import Stop, finish_on_signal
from ropechat.cli.loading import load, take_model
from ropechat.cli.option_groups import GroupedCommand, Rule, check_rules, option, option_set, refuse_given
from ropechat.cli.status import ProgressLine, progress_option
from ropechat.inspector.matrix_spec import BY_SUFFIX, FORMS, MatrixSpec, MatrixWatcher
from ropechat.util.progress import Progress

if TYPE_CHECKING:
    from ropechat.inspector.spec import Unit

_EXAMPLES = """
  ropechat matrix -p "In Paris" -p "In Rome" -a " France" -a " Italy"
  ropechat matrix --chat -p "Is it hot?" -p "Is it cold?" -a Yes -a No
"""
_RULES = (
    Rule("prompts", excludes="prompts_file", hint="give one of them"),
    Rule("answers", excludes="answers_file", hint="give one of them"),
    Rule("special bos", excludes="chat", hint="the template decides"),
)
_WITH_OPEN = ("opened", "form", "out", "overwrite", "unit", "progress")
_TEXT_WIDTH = 100  # of a table in a file

texts_options = option_set(
    option("-p", "--prompt", "prompts", multiple=True, metavar="TEXT", help="A prompt. Repeatable."),
    option(
        "--prompts-file",
        old=["--prompts"],
        type=FileName(),
        metavar="FILE",
        help="Prompts, one a line; - is stdin.",
    ),
    option("-a", "--answer", "answers", multiple=True, metavar="TEXT", help="An answer. Repeatable."),
    option(
        "--answers-file",
        old=["--answers"],
        type=FileName(),
        metavar="FILE",
        help="Answers, one a line; - is stdin.",
    ),
    option("--chat", is_flag=True, help="Prompts are user messages, for the chat template."),
    option(
        "--open",
        "opened",
        type=FileName(),
        metavar="FILE",
        help="Show recorded scores, samples of lm_eval, without a model; - is stdin.",
    ),
    title="Prompts and answers",
)
output_options = option_set(
    out_option(BY_SUFFIX),
    overwrite_option,
    format_option(FORMS, "table"),
    unit_option,
    progress_option,
    title="Output",
)


class _Watcher(MatrixWatcher):
    """Says what it costs, and how far it is. stop: ends it when it has arrived."""

    def __init__(self, stop: Stop, cells: int) -> None:
        self._stop, self._cells = stop, cells
        self._stop.noun = "cell"

    @property
    def is_stopped(self) -> bool:
        return self._stop.arrived

    def note(self, text: str) -> None:
        say(text)

    def scored(self, cells: int) -> None:
        self._stop.tokens = cells

    def read(self) -> Progress:
        return Progress("scoring", self._stop.tokens, self._cells, "cells")


@click.command(cls=GroupedCommand, epilog=_EXAMPLES)
@texts_options
@output_options
@encoding_options
@model_options
def matrix(
    prompts: tuple[str, ...],
    prompts_file: Path | str | None,
    answers: tuple[str, ...],
    answers_file: Path | str | None,
    opened: Path | str | None,
    form: str | None,
    unit: "Unit",
    out: Path | str,
    overwrite: bool,
    progress: str,
    **given: Any,
) -> int:
    """Show how probable each of some answers is after each of some prompts.

    A row is a prompt, a column an answer. A cell has the surprisal of the whole answer, and its share of the
    probability of all answers of the row; ▸ marks the likeliest. Records have its rank among them, too, and
    the rank of its first token in the whole vocabulary.

    Without --chat an answer continues its prompt as it is, so begin it with a space where a word begins.

    Ctrl-C ends the matrix with what is computed.
    """
    check_rules(*_RULES)
    refuse_existing(out, overwrite=overwrite)
    to_file = isinstance(out, Path)
    spec = MatrixSpec(
        prompts=() if opened is not None else _texts(prompts, prompts_file, "--prompt"),
        answers=() if opened is not None else _texts(answers, answers_file, "--answer"),
        **{name: given.pop(name) for name in ("chat", "special", "bos")},
        form=format_of(form, out, BY_SUFFIX),
        width=_TEXT_WIDTH if to_file else shutil.get_terminal_size((_TEXT_WIDTH, 24)).columns,
        color=not to_file and wants_color(),
        unit=unit,
    )
    if opened is not None:
        from ropechat.cli.stages import open_records
        from ropechat.inspector.matrix import of_records

        refuse_given("--open", _WITH_OPEN)
        write_output(out, spec.pieces(of_records(open_records(opened))), lines=spec.form == "table")
        return OK
    spec.check()
    line = ProgressLine(progress)
    engine = load(take_model(given, raw=not spec.chat).find(), line=line)
    with contextlib.ExitStack() as contexts:
        stop = contexts.enter_context(finish_on_signal(engine))
        watcher = _Watcher(stop, len(spec.prompts) * len(spec.answers))
        with line.watch(watcher.read):
            found = spec.run(engine, watcher)
        write = contexts.enter_context(output(out, lines=spec.form == "table", stop=stop))
        for piece in spec.pieces(found):
            write(piece)
    return OK


def _texts(given: tuple[str, ...], file: Path | str | None, flag: str) -> tuple[str, ...]:
    """The texts of an option or of the lines of a file. Raises UsageError, RequestError, FileAccessError."""
    if file is not None:
        found = tuple(filter(None, read_text_file(file, empty=False).splitlines()))
        if not found:
            raise click.UsageError(f"{flag}s-file: must have at least one line ({name_of(file)} has none)")
        return found
    if not given:
        raise click.UsageError(f"{flag}: missing; give it for each text, or {flag}s-file FILE")
    return given
