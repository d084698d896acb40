"""`ropechat bench`: how fast this machine is with a model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropechat.cli.common import StdoutWriter, complete_model, current_setting
from ropechat.cli.loading import opening_of
from ropechat.cli.option_groups import GroupedCommand, option, option_set
from ropechat.cli.status import ProgressLine, progress_option
from ropechat.engine.bench.shapes import SHAPES
from ropechat.models.resolve import resolve
from ropechat.settings.spec import BY_NAME, DTYPES
from ropechat.util.progress import Progress

Q4_K_M = "q4_k_m"

if TYPE_CHECKING:
    from ropechat.engine.bench.phases import PhaseTable


def _threads(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int | None, ...]:
    """Parse one or more numbers of threads: 1,2,4. None: the default."""
    if value is None:
        return (None,)
    numbers = [text.strip() for text in value.split(",")]
    if not all(number.isdecimal() and int(number) for number in numbers):
        raise click.BadParameter(
            f"must be a number of at least 1, or several as in 1,2 (got {value!r})", ctx, parameter
        )
    return tuple(dict.fromkeys(map(int, numbers)))


def _model_of(model: str | None, shape: str | None, dtype: str, on_note: Callable[[str], None]) -> Path:
    """The model to measure: a given one, or one of a shape. on_note: called when one is made."""
    if shape is None:
        if dtype == Q4_K_M:
            raise click.UsageError(
                f"--dtype {Q4_K_M} requires --shape; use --dtype auto for a file's own types"
            )
        named = current_setting("model")
        return resolve(opening_of(model or (named if named != BY_NAME["model"].default else None))[0])
    if model is not None:
        raise click.UsageError("--model and --shape exclude each other; give one of them")
    from ropechat.engine.bench.gguf import has_whole_blocks, make_gguf
    from ropechat.engine.bench.shapes import config_of, make
    from ropechat.util.paths import cache_folder

    folder = cache_folder() / "bench"
    if dtype != Q4_K_M:
        return make(shape, folder, on_note)
    if not has_whole_blocks(config_of(shape)):
        raise click.UsageError(
            f"--dtype {Q4_K_M}: rows of {shape} are not multiples of 256; take a larger shape"
        )
    return make_gguf(shape, folder, on_note)


def _phases(
    folder: Path, dtype: str, threads: int | None, rounds: int, on_progress: Callable[[Progress], None]
) -> "list[PhaseTable]":
    """The tables of --phases."""
    from ropechat.engine.bench.phases import engine_phases, start_phases
    from ropechat.engine.engine import Engine

    on_progress(Progress("measuring", 0, 2, "phases"))
    options = {"dtype": dtype, "threads": threads}
    start = start_phases(str(folder), options)
    on_progress(Progress("measuring", 1, 2, "phases"))
    engine = Engine.load(folder, dtype=dtype, threads=threads, speculative="off")
    return [*engine_phases(engine, rounds), start]


_EXAMPLES = """
  ropechat bench
  ropechat bench --quick
  ropechat bench -m smollm2:135m --dtype q8_0 --threads 1,2
  ropechat bench --shape llama-3.2-1b --dtype q4_k_m
  ropechat bench --phases
"""


@click.command(cls=GroupedCommand, epilog=_EXAMPLES)
@option_set(
    option(
        "-m",
        "--model",
        shell_complete=complete_model,
        help="Folder, .gguf file, Hub id or builtin [env: ROPECHAT_MODEL; default: builtin].",
    ),
    option(
        "--shape",
        type=click.Choice(list(SHAPES)),
        metavar="NAME",
        help=f"A model of this shape with random weights: {', '.join(SHAPES)}.",
    ),
    option(
        "--dtype",
        type=click.Choice([*DTYPES, Q4_K_M]),
        metavar="TYPE",
        default="auto",
        show_default=True,
        help=f"Type of the weights: {', '.join(DTYPES)}; {Q4_K_M}, of a --shape, is a GGUF file with the "
        "usual mix of q4_k and q6_k.",
    ),
    option(
        "--threads",
        metavar="N[,N]",
        callback=_threads,
        help="Number of threads, or several [default: the physical cores].",
    ),
    title="Model",
)
@option_set(
    option(
        "--rounds",
        type=click.IntRange(1, 1000),
        metavar="N",
        default=5,
        show_default=True,
        help="Measure N times; the medians are shown.",
    ),
    option("--quick", is_flag=True, help="Measure one short round, to check that everything works."),
    option(
        "--phases",
        is_flag=True,
        help="Show instead where the time goes: of a prefill, a decode step, a step of 32 sequences, a "
        "start.",
    ),
    option("--json", "as_json", is_flag=True, help="Write one JSON object with the values of every round."),
    progress_option,
    title="Measurement",
)
def bench(
    model: str | None,
    shape: str | None,
    dtype: str,
    threads: tuple[int | None, ...],
    rounds: int,
    phases: bool,
    as_json: bool,
    progress: str,
    quick: bool,
) -> None:
    """Measure a model on this machine: prefill, decode, batches, start, memory.

    The memory bandwidth, which limits decoding, is shown for comparison. Rounds with a much lower bandwidth
    than the best are omitted.
    """
    from dataclasses import replace

    from ropechat.engine.bench.measure import QUICK, Workload, measure

    line = ProgressLine(progress)
    now: Progress | None = None

    def on_progress(progress: Progress) -> None:
        nonlocal now
        now = progress

    with line.watch(lambda: now):
        folder = _model_of(model, shape, dtype, line.note)
        own = "auto" if dtype == Q4_K_M else dtype
        if phases:
            tables = _phases(folder, own, threads[0], 1 if quick else rounds, on_progress)
            records = json.dumps([table.record() for table in tables], allow_nan=False)
            text = records if as_json else "\n\n".join(table.text() for table in tables)
            StdoutWriter().write(text + "\n")
            return
        plan = QUICK if quick else replace(Workload(), rounds=rounds)
        report = measure(folder, own, threads, plan, on_progress, line.note)
    StdoutWriter().write((json.dumps(report.record(), allow_nan=False) if as_json else report.table()) + "\n")
