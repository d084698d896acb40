"""`ropechat merge`: one output of the shards that `batch --shard` computed."""

from pathlib import Path

import click

from ropechat.cli.batch import csv_options, in_format, out_form
from ropechat.cli.common import Count, overwrite_option
from ropechat.cli.exit_codes import OK, SOME_FAILED, say
from ropechat.cli.option_groups import GroupedCommand, option, option_set
from ropechat.util.text import count_of

_EXAMPLES = """
  ropechat batch all.jsonl -o out.jsonl --seed 1 --shard 1/2  # on one machine
  ropechat batch all.jsonl -o out.jsonl --seed 1 --shard 2/2  # on another one
  ropechat merge out.jsonl out.1of2.jsonl out.2of2.jsonl --order-of all.jsonl
"""


@click.command(cls=GroupedCommand, epilog=_EXAMPLES)
@click.argument("out", metavar="OUT", type=click.Path(dir_okay=False, path_type=Path))
@click.argument(
    "paths", metavar="SHARD...", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path)
)
@option_set(
    option(
        "--order-of",
        "source",
        metavar="IN",
        required=True,
        type=click.Path(dir_okay=False, path_type=Path),
        help="The input of the shards; OUT has a record for each of its rows, in its order.",
    ),
    in_format,
    option("--limit", type=Count(), help="Read only the first N rows of IN, as the shards did."),
    title="Input",
)
@csv_options
@option_set(
    out_form,
    option("--any-isa", is_flag=True, expert=True, help="Accept shards of different instruction sets."),
    overwrite_option,
    option("--quiet", is_flag=True, help="Write no summary to stderr."),
    title="Output",
)
def merge(
    out: Path,
    paths: tuple[Path, ...],
    source: Path,
    input_format: str | None,
    output_format: str | None,
    limit: int | None,
    delimiter: str | None,
    encoding: str | None,
    any_isa: bool,
    overwrite: bool,
    quiet: bool,
) -> int:
    """Merge the shards of a batch into OUT, in the order of IN: the bytes that one run would have written.

    A shard is OUT.IofN.jsonl with its .run.json, written by `ropechat batch --shard I/N`. Refused are a
    missing shard, a row that is in none or in two of them, and shards of different models, types, settings or
    instruction sets. The exit code is 3 if rows failed.
    """
    from ropechat.batch.findings import Findings
    from ropechat.batch.forms import Shape, form_of, require_parquet, text_form
    from ropechat.batch.merge import Merged, ShardFile, common_header
    from ropechat.batch.output import Target, Totals, run_record, write_output, write_run_record
    from ropechat.batch.reader import BatchReader, RowOptions, table_columns

    form = output_format or form_of(out)
    if form == "parquet":
        require_parquet()
    shards = [ShardFile(path) for path in paths]
    header = common_header(shards, any_isa=any_isa)
    options = RowOptions(
        keep=header["keep"],
        id_field=header["id_field"],
        limit=limit,
        delimiter=delimiter,
        encoding=encoding,
    )
    reader = BatchReader(source, form=input_format, options=options)
    reader.check()
    if header["score"] and form == "openai":
        raise click.UsageError("--format: results of --score must not be openai")
    if header.get("agree") and form == "openai":
        raise click.UsageError("--format: results of --agree must not be openai")
    columns = table_columns(reader, form)
    target = Target(out, errors=form == "openai")
    target.refuse(
        lambda path: reader.source.is_file(path) or any(_same(path, shard.path) for shard in shards),
        overwrite=overwrite,
        resume=False,
    )
    totals, findings, shape = Totals(), Findings(), Shape.of(header, columns)
    rows = findings.count(totals.count(Merged(shards).rows(reader.ids())))
    if form == "parquet":
        write_output(target, rows, shape)
    else:
        facts = {
            "name": header.get("model", {}).get("name", ""),
            "fingerprint": f"ropechat-{header.get('engine', '')}",
        }
        write_output(target, rows, text_form(form, shape, facts))
    seconds = sum(shard.elapsed for shard in shards)
    speed = {
        "resumed": sum(shard.resumed for shard in shards),
        "elapsed_s": round(seconds, 3),
        "tok_s": round(totals.completion_tokens / seconds, 1) if seconds else 0.0,
    }
    facts = {**findings.facts(), "shards": len(shards)}
    write_run_record(target, run_record(header, source, totals, facts, **speed))
    if not quiet:
        merged, parts = count_of(totals.ok + totals.failed, "row"), count_of(len(shards), "shard")
        say(f"{out}: {merged} of {parts}, {totals.failed} failed")
        for line in findings.lines():
            say(line)
    return SOME_FAILED if totals.failed else OK


def _same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)
