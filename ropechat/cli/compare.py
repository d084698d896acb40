"""`ropechat compare`: two models, types, templates or prompts on one text."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ropechat.cli.common import (
    Count,
    FileName,
    Real,
    complete_model,
    format_of,
    format_option,
    model_options,
    out_option,
    output,
    overwrite_option,
    read_text_file,
    refuse_existing,
    template_options,
    text_argument,
    unit_option,
    wants_color,
)
from ropechat.cli.exit_codes import CHECK_FAILED, OK, say
from ropechat.cli.loading import load, take_model
from ropechat.cli.option_groups import GroupedCommand, Rule, check_rules, option, option_set
from ropechat.cli.status import ProgressLine, progress_option
from ropechat.errors import RequestError
from ropechat.settings.spec import DTYPES, KV_DTYPES
from ropechat.util.progress import Progress
from ropechat.util.text import count_of

if TYPE_CHECKING:
    from ropechat.conversation import Message
    from ropechat.engine.spec import ModelSpec
    from ropechat.inspector.compare import Comparison, TokenPair
    from ropechat.inspector.compare_spans import SpanComparison
    from ropechat.inspector.compare_text import Pairing, SideText

    Result = Comparison | SpanComparison

_BY_SUFFIX = {".txt": "table", "": "table", ".jsonl": "jsonl", ".html": "html", ".csv": "csv"}
_FORMATS = tuple(dict.fromkeys(_BY_SUFFIX.values()))
_TABLE_TOP_K = 3
_FILE_TOP_K = 5
_EXAMPLES = """
  ropechat compare --dtype f32 --against-dtype q4_0 "Once upon a time."
  ropechat compare --against-kv-dtype q8_0 --rows 3 "Once upon a time."
  ropechat --help | ropechat compare --against-dtype q8_0 --max-kl 0.5 -o c.html
  echo "Tim found a" > given.txt
  ropechat compare --against-given-file given.txt " ball in the garden."
"""


class Prompt(NamedTuple):
    """The text before the compared text, on one side. chat: as messages, with the chat template."""

    given: str
    system: str | None
    chat: bool

    def content(self) -> "str | list[Message]":
        """The prompt for `read_text`."""
        if not self.chat:
            return self.given
        from ropechat.conversation import Message, Role

        system = [] if self.system is None else [Message(Role.SYSTEM, self.system)]
        return [*system, Message(Role.USER, self.given)]


def _sides(
    text: str, specs: "tuple[ModelSpec, ModelSpec]", prompts: tuple[Prompt, Prompt], line: ProgressLine
) -> "Pairing":
    """Load both models, or one for both sides, and encode the text for each."""
    from ropechat.engine.loading import load_template
    from ropechat.inspector.compare_text import join_sides, read_text

    same = replace(specs[1], template=specs[0].template) == specs[0]
    sides: list[SideText] = []
    shown, engine = b"", None
    for spec, prompt in zip(specs, prompts, strict=True):
        if engine is None or not same:
            engine = load(spec, line=line)
        elif spec.template != specs[0].template:
            engine.prompts.template = load_template(spec.name)
            engine.prompts.use(spec.template, spec.template_vars)
        side, read = read_text(engine, text, prompt.content())
        shown = shown if sides else read
        sides.append(side)
    return join_sides(sides[0], sides[1], shown)


def _run(
    pairing: "Pairing",
    form: str,
    out: Path | str | None,
    top: int,
    top_k: int,
    window: int | None,
    unit: str,
    line: ProgressLine,
) -> "Result":
    """Compute, and write in the format. Rows are written while the next ones are computed."""
    from ropechat.inspector.compare import compare_tokens
    from ropechat.inspector.compare_records import Lines
    from ropechat.inspector.compare_spans import compare_pairing

    lines = Lines(pairing, form, window) if form in ("jsonl", "csv") else None
    tokens: list[TokenPair] = []
    done = 0

    def count(number: int) -> None:
        nonlocal done
        done = number

    result: Result
    with output(out, lines=form == "table") as write:
        if lines is not None:
            write(lines.head)
        takes = {"html": tokens.append} if lines is None else {form: lambda pair: write(lines.token(pair))}
        with line.watch(lambda: Progress("comparing", done, pairing.shared or None)):
            if pairing.shared:
                result = compare_tokens(
                    pairing,
                    top_k=top_k,
                    worst=top,
                    window=window,
                    on_token=takes.get(form),
                    on_progress=count,
                )
            else:
                result = compare_pairing(pairing, worst=top, window=window)
        if lines is not None:
            pieces = lines.rest(result)
        elif form == "html":
            from ropechat.inspector.compare_page import render

            pieces = render(result, tokens, unit)
        else:
            pieces = _table(result, top_k, unit, to_file=isinstance(out, Path))
        for piece in pieces:
            write(piece)
    return result


def _table(result: "Result", top_k: int, unit: str, *, to_file: bool) -> Iterator[str]:
    from ropechat.inspector.compare_table import render

    width = 100 if to_file else shutil.get_terminal_size((100, 24)).columns
    color = wants_color() and not to_file
    for line in render(result, width, candidates=top_k, color=color, unit=unit):
        yield f"{line}\n"


def _say_notes(pairing: "Pairing", window: int | None) -> None:
    """Notes about what is compared and how."""
    a, b = pairing.a, pairing.b
    trained = min(side.engine.facts["max_position_embeddings"] for side in (a, b))
    count = max(len(a.ids), len(b.ids))
    if window is not None:
        windows = f"{count:,} tokens in windows of {window}, stride {max(1, window // 2)}"
        say(f"note: {windows}; the models were trained for {trained}")
    elif count > trained:
        say(f"note: {count:,} tokens in one sequence exceed the trained length of {trained}: unreliable")
    if not pairing.shared:
        say("note: the tokenizers differ; bits of common byte spans are compared instead of distributions")
    elif skipped := len(a.ids) - a.scored - pairing.shared:
        say(
            f"note: the text begins with {count_of(skipped, 'token')} that differ after the two prompts; "
            "they are not counted"
        )


def _check(result: "Result", max_kl: float | None, max_ppl: float | None, unit: str) -> int:
    """The exit code: CHECK_FAILED if a limit was passed, and why on stderr. NaN fails every limit."""
    from ropechat.inspector.compare_spans import SpanComparison
    from ropechat.inspector.scored_text import nats_of

    if isinstance(result, SpanComparison):
        kl, ppl = None, result.summary.ppl[1]
    else:
        kl, ppl = result.summary.mean_kld / nats_of(unit), result.summary.ppl_b
    code = OK
    for name, found, limit in ((f"mean KLD in {unit}s", kl, max_kl), ("PPL(B)", ppl, max_ppl)):
        if limit is not None and found is not None and not found <= limit:
            say(f"check failed: {name} is {found:.6g}, above {limit:g}")
            code = CHECK_FAILED
    return code


_RULES = (
    Rule("text", excludes="file", hint="give one of them"),
    Rule("template against_template system against_system template_vars", requires="chat"),
    Rule("chat", requires="given_file", hint="add FILE, the user's message that TEXT replies to"),
)


_text_options = option_set(
    option("-f", "--file", type=FileName(), metavar="FILE", help="Read TEXT from a file; - is stdin."),
    option(
        "--given-file",
        old=["--given"],
        type=FileName(),
        metavar="FILE",
        help="Compare TEXT as the continuation of the text in this file; - is stdin.",
    ),
    option(
        "--chat",
        is_flag=True,
        help="The text of --given-file is a user's message, TEXT the reply, by the chat template.",
    ),
    option("--system", metavar="TEXT", help="With --chat: a system message."),
    title="Text",
)
_other_options = option_set(
    option(
        "--against",
        metavar="MODEL",
        shell_complete=complete_model,
        help="The second model, B [default: the same].",
    ),
    option(
        "--against-dtype",
        type=click.Choice(DTYPES),
        metavar="TYPE",
        help="B's type of weights, one of those of --dtype [default: --dtype].",
    ),
    option(
        "--against-kv-dtype",
        type=click.Choice(KV_DTYPES),
        expert=True,
        help="B's type of KV cache [default: --kv-dtype].",
    ),
    option(
        "--against-given-file",
        "against_given",
        old=["--against-given"],
        type=FileName(),
        metavar="FILE",
        help="B's text before TEXT [default: as --given-file].",
    ),
    option("--against-system", metavar="TEXT", help="B's system message [default: as --system]."),
    option(
        "--against-template",
        metavar="NAME",
        expert=True,
        help="B's chat template [default: as --template].",
    ),
    title="The other side, B",
)
_limit_options = option_set(
    option(
        "--max-kl", type=Real(), metavar="BITS", help="Exit code 1 if the mean KLD, in --unit, is larger."
    ),
    option("--max-ppl", type=Real(), metavar="PPL", help="Exit code 1 if B's perplexity is larger."),
    option(
        "--window",
        type=Count(),
        expert=True,
        help="Tokens that are read at once of a text above the trained length [default: the shorter of both "
        "lengths, or --context].",
    ),
    title="Limits",
)
_output_options = option_set(
    option(
        "--rows",
        "top",
        old=["--top"],
        type=click.IntRange(0, 10_000),
        metavar="N",
        default=10,
        show_default=True,
        help="The N places that differ most.",
    ),
    option(
        "--candidates",
        "top_k",
        old=["--top-k"],
        type=click.IntRange(1, 1000),
        metavar="N",
        help=f"Candidates of each model [default: {_TABLE_TOP_K} in a table, else {_FILE_TOP_K}].",
    ),
    out_option(_BY_SUFFIX),
    overwrite_option,
    format_option(_FORMATS, "table"),
    unit_option,
    progress_option,
    title="Output",
)


@click.command(cls=GroupedCommand, epilog=_EXAMPLES)
@click.argument("text", required=False)
@_text_options
@_other_options
@_limit_options
@_output_options
@template_options
@model_options
def compare(
    text: str | None,
    file: Path | str | None,
    given_file: Path | str | None,
    against_given: Path | str | None,
    chat: bool,
    system: str | None,
    against_system: str | None,
    against: str | None,
    against_dtype: str | None,
    against_kv_dtype: str | None,
    against_template: str | None,
    top: int,
    top_k: int | None,
    window: int | None,
    max_kl: float | None,
    max_ppl: float | None,
    unit: str,
    form: str | None,
    out: Path | str | None,
    overwrite: bool,
    progress: str,
    **given: Any,
) -> int:
    """Compare two models, types or prompts on TEXT (- is stdin, and so is no TEXT).

    -m, --dtype and the other options are those of the first side, A. The second side, B, is the same but for
    what --against and the options that begin so change.

    Shown are perplexities, KL divergence from A to B over the whole vocabulary, how often the most probable
    token is the same, and the places where the two differ most, with both models' candidates. Models with
    different tokenizers are compared by the bits of byte spans and lines.

    A text beyond the trained length is compared in windows, each half a window further.
    """
    check_rules(*_RULES)
    changed = {"model": against, "dtype": against_dtype, "kv_dtype": against_kv_dtype}
    changed["template"] = against_template
    if all(value is None for value in (*changed.values(), against_given, against_system)):
        raise click.UsageError(
            "nothing to compare with; give --against MODEL, --against-dtype, --against-kv-dtype, "
            "--against-given-file, --against-system or --against-template"
        )
    other = given | {name: value for name, value in changed.items() if value is not None}
    kind = format_of(form, out, _BY_SUFFIX)
    refuse_existing(out, overwrite=overwrite)
    value = text_argument(text, "text") if file is None else read_text_file(file)
    before = "" if given_file is None else read_text_file(given_file)
    prompts = (
        Prompt(before, system, chat),
        Prompt(
            before if against_given is None else read_text_file(against_given),
            system if against_system is None else against_system,
            chat,
        ),
    )
    wanted = window or given["context"]
    line = ProgressLine(progress)
    first, second = take_model(given, raw=not chat), take_model(other, raw=not chat)
    pairing = _sides(value, (first.find(), second.find()), prompts, line)
    if max_kl is not None and not pairing.shared:
        raise RequestError("--max-kl: the tokenizers must be the same; use --max-ppl")
    from ropechat.inspector.compare_text import window_size

    size = window_size(pairing, wanted)
    _say_notes(pairing, size)
    top_k = top_k or (_TABLE_TOP_K if kind == "table" else _FILE_TOP_K)
    result = _run(pairing, kind, out, top, top_k, size, unit, line)
    return _check(result, max_kl, max_ppl, unit)
