"""`ropechat bench`: how fast this machine is with a model."""

import json
from pathlib import Path

import click

from ropechat.cli.common import StdoutWriter, model_or_builtin
from ropechat.cli.settings import BY_NAME, DTYPES
from ropechat.cli.status import StatusLine
from ropechat.engine.bench.shapes import SHAPES
from ropechat.models.resolve import resolve

Q4_K_M = "q4_k_m"


def _threads(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int | None, ...]:
    """Parse one or more numbers of threads: 1,2,4. None: all cores."""
    if value is None:
        return (None,)
    numbers = [text.strip() for text in value.split(",")]
    if not all(number.isdecimal() and int(number) for number in numbers):
        raise click.BadParameter(
            f"must be a number of at least 1, or several as in 1,2 (got {value!r})", ctx, parameter
        )
    return tuple(dict.fromkeys(map(int, numbers)))


class BenchStatus(StatusLine):
    """The status line of the benchmark."""

    def __call__(self, text: str) -> None:
        self.show(text)


def _model_of(model: str | None, shape: str | None, dtype: str, progress: BenchStatus) -> Path:
    """The model to measure: a given one, or one of a shape."""
    if shape is None:
        if dtype == Q4_K_M:
            raise click.UsageError(f"--dtype {Q4_K_M} needs --shape; a file's own types are --dtype auto")
        chosen = model or BY_NAME["model"].of_environment()
        return resolve(model_or_builtin(None if chosen is None else str(chosen)))
    if model is not None:
        raise click.UsageError("--model and --shape exclude each other; give one of them")
    from ropechat.engine.bench.gguf import has_whole_blocks, make_gguf
    from ropechat.engine.bench.shapes import config_of, make
    from ropechat.util.paths import cache_folder

    folder = cache_folder() / "bench"
    if dtype != Q4_K_M:
        return make(shape, folder, progress)
    if not has_whole_blocks(config_of(shape)):
        raise click.UsageError(
            f"--dtype {Q4_K_M}: rows of {shape} are not multiples of 256; take a larger shape"
        )
    return make_gguf(shape, folder, progress)


@click.command()
@click.option(
    "-m", "--model", help="Folder, .gguf file, Hub id or builtin [env: ROPECHAT_MODEL; default: builtin]."
)
@click.option("--shape", type=click.Choice(list(SHAPES)), help="A model of this shape with random weights.")
@click.option(
    "--dtype",
    type=click.Choice([*DTYPES, Q4_K_M]),
    default="auto",
    show_default=True,
    help=f"{Q4_K_M}: of a --shape, a GGUF file with the usual mix of q4_k and q6_k.",
)
@click.option(
    "--threads",
    metavar="N[,N]",
    callback=_threads,
    help="One or more numbers of threads; default: all cores.",
)
@click.option("--rounds", type=click.IntRange(1, 1000), default=5, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object with the values of every round.")
@click.option("--quick", is_flag=True, help="One short round, to check that everything works.")
def bench(
    model: str | None,
    shape: str | None,
    dtype: str,
    threads: tuple[int | None, ...],
    rounds: int,
    as_json: bool,
    quick: bool,
) -> None:
    """Measure a model on this machine: prefill, decode, batches, start, memory.

    The memory bandwidth, which limits decoding, is shown for comparison. Rounds with a much lower bandwidth
    than the best are omitted.
    """
    from dataclasses import replace

    from ropechat.engine.bench.measure import QUICK, Workload, measure

    progress = BenchStatus()
    try:
        folder = _model_of(model, shape, dtype, progress)
        plan = QUICK if quick else replace(Workload(), rounds=rounds)
        report = measure(folder, "auto" if dtype == Q4_K_M else dtype, threads, plan, progress)
    finally:
        progress.clear()
    StdoutWriter().write((json.dumps(report.record(), allow_nan=False) if as_json else report.table()) + "\n")
