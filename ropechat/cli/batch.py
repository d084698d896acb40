"""`ropechat batch`: many prompts from a file or pipe, a record each."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropechat.cli.common import (
    STREAM,
    Count,
    FileName,
    Real,
    logit_bias_option,
    model_options,
    sampling_options,
    sourced_sampling,
    speculative_options,
    stdin_stream,
    template_options,
)
from ropechat.cli.grammar_options import OPTIONS, grammar_of, grammar_options
from ropechat.cli.keep_prefix import keep_prefix_option
from ropechat.cli.loading import take_model
from ropechat.cli.option_groups import GroupedCommand, Rule, check_rules, option, option_set, take
from ropechat.cli.status import progress_option
from ropechat.sampling import SETTINGS
from ropechat.sampling.sources import DEFAULT

if TYPE_CHECKING:
    from ropechat.batch.row_template import RowTemplate
    from ropechat.batch.shard import Shard
    from ropechat.engine.fitting import Side

# As in ropechat.batch.source, forms and line, which are imported late.
FORMATS = ("jsonl", "openai", "json", "csv", "tsv", "lines", "parquet")
FORMS = ("jsonl", "openai", "json", "csv", "tsv", "parquet")
in_format = option(
    "--input-format",
    old=["--in"],
    type=click.Choice(FORMATS),
    help="Form of IN [default: by its suffix, else jsonl].",
)
out_form = option(
    "--format",
    "output_format",
    old=["--out"],
    type=click.Choice(FORMS),
    help="Form of the results [default: by the suffix of OUT, else jsonl].",
)
_MAX_SAMPLES = 128
_MAX_LOGPROBS = 20
_EXAMPLES = """
  printf 'What is RoPE?\\nWhat is a token?\\n' > questions.txt
  ropechat batch questions.txt --input-format lines -o answers.jsonl
  ropechat batch q.csv --prompt 'Be brief: {{ question }}' -o a.csv --keep all
  ropechat batch p.jsonl -o a.jsonl --n 4 --logprobs 5 --max-tokens 64
  ropechat batch p.jsonl -o a.jsonl --resume  # after Ctrl-C or a crash
  ropechat batch mails.csv --prompt 'Who wrote this? {{ text }}' \\
    --json-schema person.json -o out.jsonl
  ropechat batch requests.jsonl -o results.jsonl --format openai
  echo '{"prompt": "2+2=", "choices": ["3", "4"], "answer": 1}' > sums.jsonl
  ropechat batch sums.jsonl --score -o scores.jsonl
"""


class ShardName(click.ParamType):  # type: ignore[type-arg]  # generic in newer clicks only
    name = "i/n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from ropechat.batch.shard import Shard

        try:
            return value if isinstance(value, Shard) else Shard.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Delimiter(click.ParamType):  # type: ignore[type-arg]
    """A character that separates cells."""

    name = "char"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = {"tab": "\t", "\\t": "\t"}.get(value, value)
        if len(found) != 1 or found in '"\r\n':
            self.fail(f"must be one character, or tab (got {value!r:.20})", param, ctx)
        return found


class Encoding(click.ParamType):  # type: ignore[type-arg]
    """The name of a text encoding."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        import codecs

        try:
            found = codecs.lookup(value)
            "a".encode(found.name)
        except (LookupError, ValueError, TypeError):
            self.fail(f"must be a text encoding such as cp1252 (got {value!r:.40})", param, ctx)
        return found.name


csv_options = option_set(
    option(
        "--delimiter",
        expert=True,
        type=Delimiter(),
        metavar="CHAR",
        help="What separates the cells of a CSV file; tab is one [default: the one that its first line has].",
    ),
    option(
        "--encoding",
        expert=True,
        type=Encoding(),
        metavar="NAME",
        help="Encoding of IN, such as cp1252 [default: UTF-8, or of a file the one that it is probably in].",
    ),
    title="Input",
)
_input_options = option_set(
    in_format,
    option(
        "--prompt", metavar="TEMPLATE", help="The prompt, with {{ field }} for fields of the row (Jinja)."
    ),
    option(
        "--prompt-file", type=click.Path(path_type=Path), metavar="FILE", help="The same template in a file."
    ),
    option(
        "--messages-file",
        expert=True,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help='A template for each message: JSON, [{"role", "content"}, ...].',
    ),
    option(
        "--prompt-field",
        expert=True,
        metavar="FIELD",
        help="The field with the prompt [default: prompt, messages or turns; else text or prefix].",
    ),
    option(
        "--id-field",
        metavar="FIELD",
        expert=True,
        help="The field with the id [default: id or custom_id].",
    ),
    option("--limit", type=Count(), help="Read only the first N rows."),
    option(
        "--shard",
        expert=True,
        metavar="I/N",
        type=ShardName(),
        help="Compute only part I of N, chosen by the ids, into OUT.IofN.jsonl for `ropechat merge`.",
    ),
    option(
        "--dry-run",
        is_flag=True,
        help="Check all rows, count their tokens, print the first request; load no weights, write nothing.",
    ),
    option(
        "--score",
        is_flag=True,
        help='Score rows instead: {"prompt", "completion"}, or {"prompt", "choices", "answer"} for accuracy; '
        "with --choices the same ones for all rows.",
    ),
    option(
        "--grid",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Run the variants (models, prompts, settings) of this TOML or JSON file over the rows, and "
        "check their answers. Requires -o, a table or FILE.html.",
    ),
    option(
        "--dedupe",
        expert=True,
        is_flag=True,
        help="Compute rows with the same prompt and settings once; they then have the same seed. Requires "
        "-o.",
    ),
    title="Input",
)
_output_options = option_set(
    option(
        "-o",
        "--output",
        "out",
        metavar="OUT",
        type=FileName(),
        help="File of the results; - is stdout [default: stdout, if that is not a terminal].",
    ),
    out_form,
    option(
        "--excel",
        expert=True,
        is_flag=True,
        help="CSV results for Excel: with a BOM, and with the delimiter of IN.",
    ),
    option(
        "--keep",
        metavar="FIELD,...",
        help='Copy fields of the row to "input" of its record; all: every field.',
    ),
    option(
        "--n",
        "samples",
        type=click.IntRange(1, _MAX_SAMPLES),
        metavar="N",
        default=1,
        show_default=True,
        help="Answers per row, each with its own seed.",
    ),
    option(
        "--agree",
        expert=True,
        is_flag=True,
        help="With --n: one record per row, of its most frequent answer, with how far the answers agree.",
    ),
    option(
        "--logprobs",
        old=["--candidates"],
        type=click.IntRange(0, _MAX_LOGPROBS),
        metavar="N",
        help="Record the logprob of each token, and those of N candidates in its place.",
    ),
    option("--overwrite", is_flag=True, help="Replace OUT, and discard what a stopped run left."),
    title="Output",
)
_run_options = option_set(
    option("--resume", is_flag=True, help="Continue a stopped run; start if there is none."),
    option(
        "--retry-failed",
        is_flag=True,
        expert=True,
        help="With --resume: compute failed rows again.",
    ),
    option(
        "--max-errors",
        expert=True,
        type=click.IntRange(0),
        metavar="N",
        help="Stop when more than N rows have failed, copies of --dedupe included.",
    ),
    option(
        "--fail-below",
        type=click.FloatRange(0.0, 1.0),
        metavar="P",
        help="Let a row fail if its choice, a field of its JSON, or else a word has a probability below P.",
    ),
    option(
        "--timeout",
        old=["--timeout-row"],
        expert=True,
        metavar="SECONDS",
        type=Real(above=True),
        help="Let a row fail that is not finished SECONDS after its start.",
    ),
    option(
        "--parallel",
        "window",
        old=["--window"],
        expert=True,
        type=click.IntRange(1, 256),
        metavar="N",
        default=16,
        show_default=True,
        help="Rows that are computed at the same time.",
    ),
    keep_prefix_option("the rows' common prefix"),
    option(
        "--ray",
        expert=True,
        metavar="[ADDRESS]",
        is_flag=False,
        flag_value="",
        help="Compute on all nodes of a Ray cluster: host:port, or by default that of this machine.",
    ),
    option(
        "--any-isa",
        is_flag=True,
        expert=True,
        help="With --ray: nodes may use different instruction sets.",
    ),
    progress_option,
    option("--quiet", is_flag=True, help="Write no notes, progress and summary to stderr."),
    title="Run",
)


def _checked_stops(
    context: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    """The texts with their line breaks. Raises RequestError."""
    if not texts:
        return ()
    from ropechat.engine.validation import validate_stops

    return validate_stops([text.replace("\\n", "\n").replace("\\t", "\t") for text in texts])


_prompt_options = option_set(
    option("--system", metavar="TEXT", help="A system message for rows without one."),
    option(
        "--stop",
        multiple=True,
        metavar="TEXT",
        callback=_checked_stops,
        help="End an answer before this text; \\n is a line break. Repeatable.",
    ),
    option(
        "--truncate-prompt",
        "truncate",
        expert=True,
        type=click.Choice(("start", "end")),
        help="Cut the start or the end of the longest text of a prompt that does not fit in the context.",
    ),
    option("--raw", is_flag=True, help="Use no chat template: continue the prompts as they are."),
    title="Prompt",
)


_GRAMMARS = (*(name for name in OPTIONS if name != "choices"), "json_flexible")
_GENERATION = (*SETTINGS, "think", "logit_bias", "dry_sequence_breakers", *_GRAMMARS)
_NOT_SCORED = f"samples agree logprobs dedupe timeout fail_below system stop truncate {' '.join(_GENERATION)}"
"""Options of generation; --choices are also what is scored."""
_TEMPLATES = ("prompt", "prompt_file", "messages_file", "prompt_field")
_RULES = (
    *(Rule(name, excludes=" ".join(_TEMPLATES[:place])) for place, name in enumerate(_TEMPLATES)),
    Rule(_NOT_SCORED, excludes="score"),
    Rule("agree", requires="samples"),
    Rule("grid", excludes="samples score shard ray dry_run retry_failed excel"),
    Rule("keep_prefix", excludes="ray"),
    Rule("resume", excludes="overwrite"),
    Rule("any_isa", requires="ray"),
    Rule("retry_failed", requires="resume"),
    Rule("shard", excludes="output_format", hint="use --format with `ropechat merge`"),
)
_OF_FILES = ("dedupe", "grid", "ray", "resume", "shard")
"""Options of an output that is a file."""


@dataclass(frozen=True)
class _Options:
    """The options of the command, but those of the model and of the sampler."""

    out: Path | str | None
    input_format: str | None
    output_format: str | None
    delimiter: str | None
    encoding: str | None
    excel: bool
    prompt: str | None
    prompt_file: Path | None
    messages_file: Path | None
    prompt_field: str | None
    id_field: str | None
    limit: int | None
    shard: "Shard | None"
    dry_run: bool
    score: bool
    grid: Path | None
    dedupe: bool
    keep: str | None
    samples: int
    agree: bool
    logprobs: int | None
    overwrite: bool
    resume: bool
    retry_failed: bool
    max_errors: int | None
    timeout: float | None
    fail_below: float | None
    window: int
    keep_prefix: str | None
    ray: str | None
    any_isa: bool
    progress: str
    quiet: bool
    system: str | None
    stop: tuple[str, ...]
    truncate: "Side | None"
    raw: bool

    def target(self) -> Path | str:
        """Where results go; without -o to stdout, which must not be a terminal. Raises UsageError."""
        if self.out is None and not self.dry_run and (sys.stdout is None or sys.stdout.isatty()):
            raise click.UsageError("-o: missing; give a file, or - for the terminal")
        out = STREAM if self.out is None else self.out
        is_file = isinstance(out, Path) and not out.is_char_device()
        for name in () if is_file or self.dry_run else _OF_FILES:
            if getattr(self, name) not in (None, False):
                raise click.UsageError(f"--{name}: requires a file (-o)")
        return out

    def template(self) -> "RowTemplate | None":
        """The template of the prompts, checked. Raises RequestError, FileAccessError."""
        from ropechat.batch.row_template import RowTemplate

        if self.prompt is not None:
            template = RowTemplate.of_text(self.prompt)
        elif self.prompt_file is not None:
            template = RowTemplate.of_file(self.prompt_file)
        elif self.messages_file is not None:
            template = RowTemplate.of_messages(self.messages_file)
        else:
            return None
        template.check()
        return template


@click.command(cls=GroupedCommand, epilog=_EXAMPLES)
@click.argument("source", metavar="IN", type=FileName())
@_input_options
@csv_options
@_output_options
@_run_options
@_prompt_options
@template_options
@sampling_options
@logit_bias_option
@grammar_options
@model_options
@speculative_options
def batch(source: Path | str, **given: Any) -> int:
    """Answer each row of IN (a file or pipe; - is stdin) and write a record for each, in the order of IN.

    IN is JSON lines ({"id", "prompt"} or {"id", "messages"}), OpenAI's batch format, a JSON array, CSV, TSV,
    Parquet or one prompt per line; .gz is unpacked. In JSON rows max_tokens, temperature, top_k, top_p,
    min_p, repetition_penalty, seed, stop, n, logprobs, response_format, structured_outputs and
    chat_template_kwargs override the options. An
    invalid row gives an error record and exit code 3; the others are answered.

    With --score, completions are scored, not generated: a text prompt is continued as it is, messages are
    rendered with the chat template. Each record has the summed logprob in nats; of choices, the best one.

    A row's seed depends on --seed and the row's id only, so it draws the same tokens in a part of the file,
    in another order, or alone. A stopped run (Ctrl-C, kill, full disk) leaves OUT.journal for --resume.
    """
    from ropechat.batch.forms import form_of
    from ropechat.batch.reader import ALL, RowOptions
    from ropechat.batch.spec import BatchSpec, PromptOptions
    from ropechat.cli import batch_run

    asked = take(_Options, given)
    check_rules(*_RULES)
    out, flexible = asked.target(), given["json_flexible"]
    form = asked.output_format or (form_of(out) if isinstance(out, Path) else "jsonl")
    if asked.grid is not None and asked.output_format is None and isinstance(out, Path):
        form = "html" if out.suffix == ".html" else form
    if asked.score and form == "openai":
        raise click.UsageError("--score: results must not be openai")
    if asked.excel and form != "csv" and asked.shard is None:
        raise click.UsageError(f"--excel: results must be csv (got {form})")
    sourced = sourced_sampling(given)
    grammar = grammar_of(given)
    choices = grammar.source if asked.score and grammar is not None else ()
    spec = BatchSpec(
        source if isinstance(source, Path) else stdin_stream(),
        input_format=asked.input_format,
        rows=RowOptions(
            asked.prompt_field,
            asked.template(),
            ALL if asked.keep == ALL else [name for name in (asked.keep or "").split(",") if name],
            asked.id_field,
            asked.limit,
            asked.score,
            asked.shard,
            flexible,
            asked.dedupe,
            asked.delimiter,
            asked.encoding,
            choices,
        ),
        prompts=PromptOptions(
            asked.raw, asked.system, asked.samples, asked.logprobs, asked.agree, asked.stop, asked.truncate
        ),
        sampling=replace(sourced.sampling, grammar=None if asked.score else grammar),
        unset=frozenset(name for name in SETTINGS if sourced.source(name) == DEFAULT),
        window=asked.window,
        max_errors=asked.max_errors,
        timeout=asked.timeout,
        fail_below=asked.fail_below,
        ray=asked.ray,
        any_isa=asked.any_isa,
        excel=asked.excel,
    )
    model = take_model(given, raw=asked.raw)
    spec = replace(spec, model=model.spec)
    if asked.dry_run:
        return batch_run.check_rows(spec, quiet=asked.quiet)
    if asked.grid is not None:
        files = {"overwrite": asked.overwrite, "resume": asked.resume}
        options = (asked.keep_prefix, asked.progress, asked.quiet)
        keep = asked.keep or ""
        return batch_run.run_variants(spec, asked.grid, out, form, keep, model, options, **files)
    if asked.shard is not None and not asked.score and spec.sampling.seed is None:
        raise click.UsageError("--shard: requires --seed, the same for all shards, such as --seed 0")
    watcher = batch_run.CommandWatcher(model, asked.keep_prefix, asked.progress, quiet=asked.quiet)
    files = {"overwrite": asked.overwrite, "resume": asked.resume, "retry_failed": asked.retry_failed}
    return batch_run.answer_rows(spec, out, asked.output_format, watcher, **files)
