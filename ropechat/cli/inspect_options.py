"""The options of `ropechat inspect`: as types, and which of them exclude or require each other."""

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path

import click

from ropechat.cli.common import (
    FileName,
    fail_below_option,
    format_of,
    format_option,
    messages_option,
    out_option,
    overwrite_option,
    unit_option,
    wants_color,
)
from ropechat.cli.option_groups import Rule, option, option_set
from ropechat.inspector.spec import BY_SUFFIX, FORMS, INSIDE, TOKENS, Unit, View

ROLES = ("text", "system", "user", "assistant", "template", "special", "bos")
_TEXT_WIDTH = 100  # of a table in a file


def _roles(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Parse "user,assistant"."""
    if value is None:
        return None
    names = tuple(name.strip() for name in value.split(","))
    for name in names:
        if name not in ROLES:
            raise click.UsageError(f"--roles: must be some of {', '.join(ROLES)} (got {name!r:.40})", ctx)
    return names


def _numbers(ctx: click.Context, parameter: click.Parameter, text: str | None) -> list[int] | None:
    """Parse "0,2,4"; of a map a layer and a head."""
    if text is None:
        return None
    is_map = parameter.name == "attention_map"
    with contextlib.suppress(ValueError):
        numbers = [int(part) for part in text.split(",")]
        if not is_map or len(numbers) == 2:
            return numbers
    wanted = "a layer and a head such as 5,0" if is_map else "numbers such as 0,2,4"
    raise click.UsageError(f"{parameter.opts[0]}: must be {wanted} (got {text!r:.60})", ctx)


row_options = option_set(
    option(
        "--by",
        type=click.Choice(["token", "word", "line"]),
        default="token",
        show_default=True,
        help="A row for each token, or the sums of each word or line (table, jsonl, csv).",
    ),
    option(
        "--sort",
        type=click.Choice(["line", "bits", "bits-per-byte"]),
        help="With --by: in the order of the text (default), or most surprising words or lines first.",
    ),
    option(
        "--rows",
        "head",
        old=["--head"],
        type=click.IntRange(1),
        metavar="N",
        help="With --by: the first N words or lines.",
    ),
    option(
        "--below",
        type=click.FloatRange(0.0, 1.0),
        metavar="P",
        help="With --by word: only words whose probability is below P; neighbours are joined.",
    ),
    fail_below_option,
    option("--chart", is_flag=True, help="Draw a chart along each text (table, html, svg)."),
    option(
        "--candidates",
        "top_k",
        type=click.IntRange(0, 1000),
        metavar="N",
        help="Candidates of each token [default: "
        f"{TOKENS['jsonl'].top_k} as jsonl, else {TOKENS['table'].top_k}].",
    ),
    option(
        "--look-up",
        "look_up",
        multiple=True,
        metavar="STRING",
        help="Also show the probability of STRING in the place of each token, and after the text; of a "
        "string of several tokens, that of the first one. Repeatable.",
    ),
    option(
        "--look-up-whole",
        expert=True,
        is_flag=True,
        help="With --look-up: also the probability of all tokens of STRING: a short pass for each place.",
    ),
    title="Rows and charts",
)

output_options = option_set(
    out_option(BY_SUFFIX),
    overwrite_option,
    format_option(FORMS["tokens"], "table"),
    unit_option,
    title="Output",
)

score_options = option_set(
    option(
        "-f",
        "--file",
        "files",
        multiple=True,
        type=FileName(),
        metavar="FILE",
        help="Read a text from a file; - is stdin. Repeatable.",
    ),
    option(
        "--roles",
        expert=True,
        metavar="NAMES",
        callback=_roles,
        help=f"Whose tokens sums cover: some of {', '.join(ROLES)}, with commas [default: text; with "
        "--messages: assistant].",
    ),
    option(
        "--given-file",
        type=FileName(),
        metavar="FILE",
        help="Score TEXT as the continuation of the text in this file; - is stdin.",
    ),
    option("--answer", metavar="TEXT", help="With --messages: an answer to them; - is stdin."),
    messages_option,
    option(
        "--one-sequence",
        is_flag=True,
        expert=True,
        help="Score a text above the trained length in one piece, without windows.",
    ),
    option(
        "--stride",
        type=click.IntRange(min=1),
        metavar="N",
        expert=True,
        help="Tokens by which each window moves on [default: half a window].",
    ),
    option(
        "--window",
        type=click.IntRange(min=2),
        metavar="N",
        expert=True,
        help="Tokens that are read at once of a text above the trained length [default: that length, or "
        "--context].",
    ),
    title="Texts",
)

inside_options = option_set(
    option("--lens", is_flag=True, help="Show what each layer predicts (logit lens), by token."),
    option(
        "--attention",
        is_flag=True,
        help="Show where each head attends: first token, previous token, mean distance.",
    ),
    option(
        "--attention-map",
        metavar="LAYER,HEAD",
        callback=_numbers,
        help="Show where each token attends in one head, both from 0 (table, jsonl, html).",
    ),
    option(
        "--layers",
        metavar="N,N,...",
        callback=_numbers,
        expert=True,
        help="Layers for --lens and --attention, from 0 [default: all, or those that fit in a table].",
    ),
    title="Inside the model",
)


@dataclass(frozen=True)
class OutputOptions:
    """What is shown, and where: the values of `row_options`, `output_options`, `inside_options`."""

    files: tuple[Path | str, ...]
    out: Path | str
    overwrite: bool
    form: str | None
    by: str
    sort: str | None
    head: int | None
    below: float | None
    fail_below: float | None
    unit: Unit
    chart: bool
    look_up: tuple[str, ...]
    look_up_whole: bool
    lens: bool
    attention: bool
    attention_map: list[int] | None
    layers: list[int] | None
    top_k: int | None

    @property
    def view(self) -> View:
        if self.attention_map is not None:
            return "attention-map"
        if self.lens or self.attention:
            return "lens" if self.lens else "attention"
        if self.chart:
            return "chart"
        by: dict[str, View] = {"word": "words", "line": "lines"}
        return by.get(self.by, "tokens")

    @property
    def width(self) -> int:
        """The columns of a table."""
        return _TEXT_WIDTH if isinstance(self.out, Path) else shutil.get_terminal_size((100, 24)).columns

    @property
    def color(self) -> bool:
        """Whether a table is coloured."""
        return not isinstance(self.out, Path) and wants_color()

    def refuse_existing(self) -> None:
        """Raise as `refuse_output` for an output that exists, is an input, or cannot be written."""
        if isinstance(self.out, Path):
            from ropechat.batch.output import refuse_output  # imported here: rarely needed

            refuse_output(self.out, self.files, overwrite=self.overwrite)

    def format(self, *, stages: bool = False) -> str:
        """The form: the given one, else by the suffix of the file, else a table.

        stages: whether those of the sampler are shown. Raises UsageError for a form that is not possible.
        """
        form = format_of(self.form, self.out, BY_SUFFIX)
        flags = {"words": "--by word", "lines": "--by line", "tokens": ""}
        flag, forms = flags.get(self.view, f"--{self.view}"), FORMS[self.view]
        if self.view == "tokens" and (stages or self.look_up):
            flag, forms = "--stages" if stages else "--look-up", forms[:-1]  # a picture has no place for them
        if form not in forms:
            raise click.UsageError(f"{flag}: not possible as {form}; use one of {', '.join(forms)}")
        if self.unit != "bit" and not (form == "table" or self.chart):
            raise click.UsageError(f"--unit: not possible as {form}, which has both units; omit it")
        return form

    @property
    def needs_model(self) -> str:
        """The flag of what a record of logprobs does not have; "" if nothing else is shown."""
        return f"--{self.view}" if self.view in INSIDE else "--look-up" if self.look_up else ""


@dataclass(frozen=True)
class ScoreOptions:
    """The values of `score_options`."""

    window: int | None
    stride: int | None
    one_sequence: bool
    messages: str | None
    answer: str | None
    given_file: Path | str | None
    roles: tuple[str, ...] | None


def rules(settings: str) -> tuple[Rule, ...]:
    """Which options exclude and require which. settings: names of the options of the sampler."""
    scoring = "window stride one_sequence messages answer given_file roles"
    other_view = f"by chart look_up_whole stages fail_below unit {scoring}"
    return (
        Rule("replay", requires="opened"),
        Rule("stages_top_k", requires="stages", hint="add it, or --candidates for those shown"),
        Rule(settings, requires="stages"),
        Rule("stages", excludes="by chart", hint="omit it"),
        Rule("opened", excludes="text files messages", hint="give only the record"),
        Rule("against_dtype", requires="interactive", hint="two models on one text are `ropechat compare`"),
        Rule("keep_prefix", requires="given_file", hint="its text is kept"),
        Rule("one_sequence", excludes="window stride"),
        Rule("answer", requires="messages", hint="add it, or give the prompt with --given-file"),
        Rule("given_file", excludes="messages", hint="use --answer"),
        Rule("given_file", excludes="chat", hint="use --messages and --answer"),
        Rule("messages", excludes="text chat", hint="use --answer"),
        Rule("files", excludes="text messages", hint="give one of them"),
        Rule("special", excludes="chat messages", hint="TEXT stays text there"),
        Rule("bos", excludes="chat messages", hint="the template decides"),
        Rule("template template_vars", requires="chat messages"),
        Rule("sort head", requires="by", hint="add --by line"),
        Rule("chart", excludes="by look_up"),
        Rule("look_up", excludes="by"),
        Rule("look_up_whole", requires="look_up"),
        Rule("lens", excludes=f"attention attention_map {other_view}"),
        Rule("attention", excludes=f"attention_map look_up {other_view}"),
        Rule("attention_map", excludes=f"look_up {other_view}"),
        Rule("layers", requires="lens attention"),
    )
