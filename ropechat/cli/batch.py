"""`ropechat batch`: many prompts from a file or pipe, a record each."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropechat.cli.common import (
    STREAM,
    Count,
    FileName,
    Real,
    model_options,
    sampling_of,
    sampling_options,
    speculative_options,
    stdin_stream,
    template_options,
)
from ropechat.cli.grammar_options import OPTIONS, grammar_of, grammar_options
from ropechat.cli.keep_prefix import keep_prefix_option
from ropechat.cli.loading import take_model
from ropechat.cli.option_groups import GroupedCommand, given_flags
from ropechat.cli.status import progress_option
from ropechat.sampling import SETTINGS

if TYPE_CHECKING:
    from ropechat.batch.shard import Shard
    from ropechat.batch.spec import BatchSpec

# As in ropechat.batch.source, forms and line, which are imported late.
FORMATS = ("jsonl", "openai", "json", "csv", "tsv", "lines", "parquet")
FORMS = ("jsonl", "openai", "json", "csv", "tsv", "parquet")
in_format = click.option(
    "--in",
    "input_format",
    type=click.Choice(FORMATS),
    help="Format of IN [default: by its suffix; else jsonl].",
)
out_form = click.option(
    "--out",
    "output_format",
    type=click.Choice(FORMS),
    help="Form of the results [default: by the suffix of OUT; else jsonl].",
)
_MAX_SAMPLES = 128
_MAX_LOGPROBS = 20
_GROUPS = {
    "Input": (
        "input_format",
        "prompt",
        "prompt_file",
        "messages_file",
        "prompt_field",
        "id_field",
        "limit",
        "shard",
        "dry_run",
        "score",
        "dedupe",
    ),
    "Output": ("out", "output_format", "keep", "samples", "logprobs", "overwrite"),
    "Run": (
        "resume",
        "retry_failed",
        "max_errors",
        "timeout_row",
        "window",
        "keep_prefix",
        "ray",
        "any_isa",
        "progress",
        "quiet",
    ),
    "Prompt": ("system", "raw", "template", "template_vars"),
    "Sampling": (*SETTINGS, "think"),
    "Structured output": (*OPTIONS, "json_flexible"),
    "Model": (
        "model",
        "dtype",
        "kv_dtype",
        "context",
        "threads",
        "speculative",
        "draft",
        "cache",
        "download",
    ),
}
_NOT_SCORED = (
    *("samples", "logprobs", "dedupe", "timeout_row", "system"),
    *_GROUPS["Sampling"],
    *_GROUPS["Structured output"],
)
"""Options of generation."""
_EXAMPLES = (
    "printf 'What is RoPE?\\nWhat is a token?\\n' | ropechat batch - --in lines | jq -r .text",
    "ropechat batch questions.csv --prompt 'Answer briefly: {{ question }}' -o answers.csv --keep all",
    "ropechat batch prompts.jsonl -o answers.jsonl --n 4 --logprobs 5 --max-tokens 64",
    "ropechat batch prompts.jsonl -o answers.jsonl --resume      # after Ctrl-C, a crash, a full disk",
    "ropechat batch mails.csv --prompt 'Who wrote this? {{ text }}' --json-schema person.json -o out.jsonl",
    "ropechat batch requests.jsonl -o results.jsonl --out openai",
    """echo '{"prompt": "2+2=", "choices": ["3", "4"], "answer": 1}' | ropechat batch - --score""",
)


class ShardName(click.ParamType):  # type: ignore[type-arg]  # generic in newer clicks only
    name = "i/n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from ropechat.batch.shard import Shard

        try:
            return value if isinstance(value, Shard) else Shard.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(cls=GroupedCommand, groups=_GROUPS, examples=_EXAMPLES)
@click.argument("source", metavar="IN", type=FileName())
@click.option(
    "-o",
    "--output",
    "out",
    metavar="OUT",
    type=FileName(),
    help="File of the results; - is stdout, and so is none if stdout is not a terminal.",
)
@in_format
@out_form
@click.option(
    "--prompt", metavar="TEMPLATE", help="The prompt, with {{ field }} for fields of the row (Jinja)."
)
@click.option(
    "--prompt-file", type=click.Path(path_type=Path), metavar="FILE", help="The same template in a file."
)
@click.option(
    "--messages-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help='A template for each message: JSON, [{"role", "content"}, ...].',
)
@click.option(
    "--prompt-field",
    metavar="FIELD",
    help="The field with the prompt [default: prompt, messages or turns; else text or prefix].",
)
@click.option("--id-field", metavar="FIELD", help="The field with the id [default: id or custom_id].")
@click.option("--limit", type=Count(), help="Read only the first n rows.")
@click.option(
    "--shard",
    metavar="i/n",
    type=ShardName(),
    help="Compute only part i of n, chosen by the ids, into OUT.iofn.jsonl for `ropechat merge`.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check all rows and print the first request; load no model, write nothing.",
)
@click.option(
    "--keep", metavar="FIELD,...", help='Copy fields of the row to "input" of its record; all: every field.'
)
@click.option(
    "--n",
    "samples",
    type=click.IntRange(1, _MAX_SAMPLES),
    default=1,
    show_default=True,
    help="Answers per row, each with its own seed.",
)
@click.option(
    "--logprobs",
    type=click.IntRange(0, _MAX_LOGPROBS),
    help="Record the logprob of each token, with this many candidates.",
)
@click.option(
    "--score",
    is_flag=True,
    help='Score rows instead: {"prompt", "completion"}, or {"prompt", "choices", "answer"} for accuracy.',
)
@click.option(
    "--dedupe",
    is_flag=True,
    help="Compute rows with the same prompt and settings once; they then have the same seed. Requires -o.",
)
@click.option("--overwrite", is_flag=True, help="Replace OUT, and discard what a stopped run left.")
@click.option("--resume", is_flag=True, help="Continue a stopped run; without one, start.")
@click.option("--retry-failed", is_flag=True, help="With --resume: compute failed rows again.")
@click.option(
    "--max-errors",
    type=click.IntRange(0),
    help="Stop when more than n rows have failed, copies of --dedupe included.",
)
@click.option(
    "--timeout-row",
    metavar="SECONDS",
    type=Real(above=True),
    help="Let a row fail that is not finished so long after its start.",
)
@click.option(
    "--window",
    type=click.IntRange(1, 256),
    default=16,
    show_default=True,
    help="Rows in progress at the same time.",
)
@keep_prefix_option("the rows' common prefix")
@click.option(
    "--ray",
    metavar="[ADDRESS]",
    is_flag=False,
    flag_value="",
    help="Compute on all nodes of a Ray cluster: host:port, or by default that of this machine.",
)
@click.option("--any-isa", is_flag=True, help="With --ray: nodes may use different instruction sets.")
@progress_option
@click.option("--quiet", is_flag=True, help="No notes, progress and summary on stderr.")
@click.option("--system", metavar="TEXT", help="A system message for rows without one.")
@click.option("--raw", is_flag=True, help="Use no chat template: continue the prompts as they are.")
@template_options
@grammar_options
@sampling_options
@model_options
@speculative_options
def batch(
    source: Path | str,
    out: Path | str | None,
    input_format: str | None,
    output_format: str | None,
    keep: str | None,
    system: str | None,
    raw: bool,
    samples: int,
    logprobs: int | None,
    dry_run: bool,
    limit: int | None,
    shard: "Shard | None",
    score: bool,
    progress: str,
    quiet: bool,
    **given: Any,
) -> int:
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
    from ropechat.batch.reader import ALL, RowOptions
    from ropechat.batch.spec import BatchSpec, PromptOptions
    from ropechat.cli import batch_run

    out = _output(out, dry_run=dry_run)
    flexible = given["json_flexible"]
    grammar = grammar_of(given)
    rows = RowOptions(
        given["prompt_field"],
        _template(given),
        ALL if keep == ALL else [name for name in (keep or "").split(",") if name],
        given.pop("id_field"),
        limit,
        score,
        shard,
        flexible,
        given.pop("dedupe"),
    )
    if score:
        _check_score(output_format, out)
    files = {name: given.pop(name) for name in ("overwrite", "resume", "retry_failed")}
    keep_prefix = given.pop("keep_prefix")
    spec = BatchSpec(
        source if isinstance(source, Path) else stdin_stream(),
        input_format=input_format,
        rows=rows,
        prompts=PromptOptions(raw, system, samples, logprobs),
        sampling=replace(sampling_of(given), grammar=grammar),
        window=given.pop("window"),
        max_errors=given.pop("max_errors"),
        timeout=given.pop("timeout_row"),
        ray=given.pop("ray"),
        any_isa=given.pop("any_isa"),
    )
    is_file = isinstance(out, Path) and not out.is_char_device()
    _check_together(spec, files, keep_prefix, is_file=is_file or dry_run)
    if dry_run:
        return batch_run.check_rows(spec, quiet=quiet)
    if shard is not None:
        _check_shard(output_format, is_file=is_file, is_drawn=not score, seed=spec.sampling.seed)
    model = take_model(given, raw=raw)
    watcher = batch_run.CommandWatcher(model, keep_prefix, progress, quiet=quiet)
    return batch_run.answer_rows(replace(spec, model=model.spec), out, output_format, watcher, **files)


def _check_together(
    spec: "BatchSpec", files: dict[str, bool], keep_prefix: str | None, *, is_file: bool
) -> None:
    """Raise UsageError for options that exclude or require each other. is_file: results go to a file."""
    excluded = (
        ("--keep-prefix: not possible with --ray", spec.ray is not None and keep_prefix is not None),
        ("--resume: not possible with --overwrite", files["resume"] and files["overwrite"]),
    )
    required = (
        ("--dedupe: requires a file (-o)", spec.rows.dedupe, is_file),
        ("--any-isa: requires --ray", spec.any_isa, spec.ray is not None),
        ("--ray: requires a file (-o)", spec.ray is not None, is_file),
        ("--retry-failed: requires --resume", files["retry_failed"], files["resume"]),
        ("--resume: requires a file (-o)", files["resume"], is_file),
    )
    for text, found in excluded:
        if found:
            raise click.UsageError(text)
    for text, given, fulfilled in required:
        if given and not fulfilled:
            raise click.UsageError(text)


def _output(out: Path | str | None, *, dry_run: bool) -> Path | str:
    """Where results go; without -o to stdout, which must not be a terminal."""
    if out is not None or dry_run:
        return STREAM if out is None else out
    if sys.stdout is None or sys.stdout.isatty():
        raise click.UsageError("-o: missing; give a file, or - for the terminal")
    return STREAM


def _check_score(form: str | None, out: Path | str) -> None:
    """Raise UsageError for options that are of no use with --score."""
    from ropechat.batch.forms import form_of

    form = form or (form_of(out) if isinstance(out, Path) else "jsonl")
    if form not in ("jsonl", "json"):
        raise click.UsageError(f"--score: results must be jsonl or json (got {form})")
    for name, flag in given_flags().items():
        if name in _NOT_SCORED:
            raise click.UsageError(f"{flag}: not possible with --score")


def _check_shard(form: str | None, *, is_file: bool, is_drawn: bool, seed: int | None) -> None:
    """Raise UsageError for options with which shards could not be merged."""
    if not is_file:
        raise click.UsageError("--shard: requires a file (-o)")
    if form is not None:
        raise click.UsageError("--shard: not possible with --out; use --out with `ropechat merge`")
    if is_drawn and seed is None:
        raise click.UsageError("--shard: requires --seed, the same for all shards, such as --seed 0")


def _template(given: dict[str, Any]) -> Any:
    """Remove the options of the prompt from `given`; return the RowTemplate that they ask for, compiled."""
    from ropechat.batch.row_template import RowTemplate

    names = ("prompt", "prompt_file", "messages_file", "prompt_field")
    asked = {name: given.pop(name) for name in names}
    chosen = [name for name, value in asked.items() if value is not None]
    if len(chosen) > 1:
        first, second = (f"--{name.replace('_', '-')}" for name in chosen[:2])
        raise click.UsageError(f"{second}: must not be given together with {first}")
    if not chosen or chosen[0] == "prompt_field":
        return None
    if chosen[0] == "prompt":
        template = RowTemplate.of_text(asked["prompt"])
    elif chosen[0] == "prompt_file":
        template = RowTemplate.of_file(asked["prompt_file"])
    else:
        template = RowTemplate.of_messages(asked["messages_file"])
    template.check()
    return template
