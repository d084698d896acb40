"""Options for the stages of the sampler: what settings do to a text, and the trace of a draw."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropechat.cli.common import FileName, StdoutWriter, current_setting, stdin_stream
from ropechat.cli.exit_codes import OK, SOME_FAILED, say
from ropechat.cli.option_groups import F, option_set, refuse_given
from ropechat.errors import FileAccessError, RequestError
from ropechat.sampling import DEFAULTS, SETTINGS, Sampling

if TYPE_CHECKING:
    from ropechat.cli.inspect_output import Output
    from ropechat.inspector.draws import RecordedDraws

_SETTINGS = [name for name, one in SETTINGS.items() if one.off is not None]
"""Those with a stage of their own."""


def _flag(name: str) -> str:
    return "--sampler-top-k" if name == "top_k" else f"--{name.replace('_', '-')}"


def _setting_option(name: str) -> Callable[[F], F]:
    default = f"[default: the settings file's, or {getattr(DEFAULTS, name):g}]"
    text = f"With --stages: {SETTINGS[name].help}.  {default}"
    return click.option(_flag(name), f"stages_{name}", type=SETTINGS[name].kind, help=text)


stage_options = option_set(
    click.option(
        "--stages",
        is_flag=True,
        help="Show what each stage of the sampler leaves, and which one cuts the token of the text.",
    ),
    *map(_setting_option, _SETTINGS),
    click.option(
        "--open",
        "opened",
        type=FileName(),
        metavar="FILE.jsonl",
        help="Show a recorded trace; - is stdin.",
    ),
    click.option(
        "--replay", is_flag=True, help="With --open: draw each token again from its record; compare."
    ),
)


def take_stage_options(given: dict[str, Any]) -> tuple[Sampling | None, Path | str | None, bool]:
    """Remove the values of `stage_options` from `given`; return (settings, trace to open, whether to replay).

    Settings are None without --stages. Raises UsageError.
    """
    opened, replay = given.pop("opened"), given.pop("replay")
    settings = _take_settings(given)
    if replay and opened is None:
        raise click.UsageError("--replay: requires --open; add it")
    if settings is not None and opened is not None:
        raise click.UsageError("--stages: not possible with --open, which shows the recorded stages")
    return settings, opened, replay


def refuse_with_open(*, replay: bool) -> None:
    """Raise UsageError for options that have no effect on a recorded trace."""
    shown = () if replay else ("out", "overwrite", "form", "by", "sort", "head", "top_k")
    refuse_given("--replay" if replay else "--open", ("opened", "replay", "progress", *shown))


def check_stage_output(sampling: Sampling | None, form: str, *, by_line: bool, view: bool) -> None:
    """Raise UsageError if the stages of these settings have no place in the output. view: another one."""
    if sampling is not None and (view or by_line or form == "svg"):
        raise click.UsageError(
            "--stages: only in a table, jsonl, csv or html by token; omit --stages or the other view"
        )


def _take_settings(given: dict[str, Any]) -> Sampling | None:
    wanted = given.pop("stages")
    values = {name: given.pop(f"stages_{name}") for name in _SETTINGS}
    if not wanted:
        for name in _SETTINGS:
            if values[name] is not None:
                raise click.UsageError(f"{_flag(name)}: requires --stages; add it")
        return None
    try:
        return Sampling(**{name: _setting(name, value) for name, value in values.items()})
    except ValueError as error:
        name, _, rest = str(error).partition(": ")
        raise click.UsageError(f"{_flag(name)}: {rest}") from None


def _setting(name: str, value: Any) -> Any:
    """A flag, else the environment variable, else the settings file, else the default."""
    return value if value is not None else current_setting(f"sampling.{name}")


def show_trace(file: Path | str, output: "Output", top_k: int | None, *, replay: bool) -> int:
    """Show or replay a recorded trace; no model is loaded. Returns the exit code.

    top_k: candidates to show; None for all, in a table the default number.
    """
    from ropechat.cli.inspect_output import name_of, write
    from ropechat.inspector.scored_text import ScoredText

    recorded = _open(file)
    if replay:
        return _replay(recorded)
    name = name_of(file)
    if top_k is not None or output.form == "table":
        recorded = recorded.with_candidates(output.top_k)
    write([ScoredText(recorded, name)], recorded.bytes_of, output, name)
    return OK


def _open(file: Path | str) -> "RecordedDraws":
    """Read a recorded trace; `-` is stdin. Raises FileAccessError, RequestError."""
    from ropechat.inspector.open_trace import read_trace

    if isinstance(file, str):
        return read_trace(stdin_stream(), "stdin")
    try:
        with file.open("rb") as lines:
            return read_trace(lines, str(file))
    except FileNotFoundError:
        raise RequestError(f"{file}: file not found") from None
    except OSError as error:
        raise FileAccessError(f"{file}: {error.strerror or error}") from None


def _replay(recorded: "RecordedDraws") -> int:
    """Replay the draws; write a line for each mismatch and a last one with the counts.

    Returns the exit code: 0 if every draw follows from its record.
    """
    from ropechat.inspector.replay import replay
    from ropechat.util.text import visible

    out, sampling = StdoutWriter(), recorded.sampling
    report = replay(recorded, seed=None if sampling is None else sampling.seed)
    for position, id, why in report.mismatches:
        out.write(f"{position}: {visible(recorded.bytes_of(id))} (id {id}): {why}\n")
    count = len(report.mismatches)
    out.write(f"{report.draws} draws replayed, {count} {'mismatch' if count == 1 else 'mismatches'}\n")
    if not report.draws:
        say("note: no draw is recorded; `ropechat run --trace FILE` records one")
    return SOME_FAILED if count or not report.draws else OK


def check_trace_target(target: Path | str | None) -> None:
    """Raise FileAccessError if a trace cannot be written there; called before the model is loaded."""
    if not isinstance(target, Path) or target.is_char_device():
        return
    folder = target.parent
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        what = "is not writable" if folder.is_dir() else "not found"
        raise FileAccessError(f"{target}: folder {folder} {what}; choose another file")


def write_trace(target: Path | str, recorded: "RecordedDraws", bytes_of: Callable[[int], bytes]) -> None:
    """Write a trace as JSON lines to a file, or to stdout for `-`. Raises FileAccessError, OSError."""
    from ropechat.inspector import jsonl
    from ropechat.inspector.scored_text import ScoredText

    lines = jsonl.lines(ScoredText(recorded), bytes_of)
    if isinstance(target, Path):
        from ropechat.cli.inspect_output import write_file

        write_file(target, lines)
        return
    out = StdoutWriter()
    for line in lines:
        out.write(line)
