"""Options for the stages of the sampler: what settings do to a text, and the trace of a draw."""

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropechat.cli.common import (
    FileName,
    StdoutWriter,
    given_setting,
    name_of,
    stdin_stream,
    write_output,
)
from ropechat.cli.exit_codes import OK, SOME_FAILED, say
from ropechat.cli.option_groups import F, option, option_set
from ropechat.errors import FileAccessError, RequestError
from ropechat.sampling import DEFAULTS, SETTINGS, Sampling
from ropechat.sampling.sources import ENVIRONMENT, FLAG, SETTINGS_FILE, SourcedSampling
from ropechat.settings.spec import BY_NAME

if TYPE_CHECKING:
    from ropechat.inspector.draws import RecordedDraws
    from ropechat.inspector.spec import InspectSpec, InspectWatcher

_SETTINGS = [name for name, one in SETTINGS.items() if one.off is not None or one.of is not None]
"""Those of a stage."""
STAGE_SETTINGS = [f"stages_{name}" for name in _SETTINGS]
"""The options that say how these are set."""


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _setting_option(name: str) -> Callable[[F], F]:
    default = f"[default: the settings file's, the model's, or {getattr(DEFAULTS, name):g}]"
    return option(
        _flag(name),
        f"stages_{name}",
        type=SETTINGS[name].kind,
        expert=name not in ("temperature", "top_k", "top_p", "min_p"),
        old=["--sampler-top-k"] if name == "top_k" else (),
        help=f"With --stages: {SETTINGS[name].help}.  {default}",
    )


stage_options = option_set(
    option(
        "--stages",
        is_flag=True,
        help="Show what each stage of the sampler leaves, and which one cuts the token of the text.",
    ),
    *map(_setting_option, _SETTINGS),
    title="Sampler",
)
record_options = option_set(
    option(
        "--open",
        "opened",
        type=FileName(),
        metavar="FILE",
        help="Show recorded logprobs: a file of `ropechat run --trace`, or what OpenAI's API, vLLM, "
        "llama.cpp's server, Ollama or lm_eval wrote; - is stdin.",
    ),
    option("--replay", is_flag=True, help="With --open: draw each token again from its record, and compare."),
    title="Records",
)


def take_sampling(given: dict[str, Any]) -> SourcedSampling:
    """Remove the settings of `stage_options` from `given` and return them. Raises UsageError."""
    values = {name: given.pop(f"stages_{name}") for name in _SETTINGS}
    try:
        found = {name: _setting(name, value) for name, value in values.items()}
        sampling = Sampling(**{name: value for name, (value, _) in found.items()})
        return SourcedSampling(sampling, {name: source for name, (_, source) in found.items() if source})
    except ValueError as error:
        name, _, rest = str(error).partition(": ")
        raise click.UsageError(f"{_flag(name)}: {rest}") from None


def _setting(name: str, value: Any) -> tuple[Any, str]:
    """A flag, else the environment variable, else the settings file, else the default; and which one."""
    if value is not None:
        return value, FLAG
    found, setting = given_setting(f"sampling.{name}"), BY_NAME[f"sampling.{name}"]
    if found is None:
        return setting.default, ""
    return found, SETTINGS_FILE if setting.of_environment() is None else ENVIRONMENT


def show_records(file: Path | str, spec: "InspectSpec", out: Path | str, watcher: "InspectWatcher") -> None:
    """Show recorded answers, without a model; in other forms than a table all candidates if top_k is None."""
    from ropechat.inspector.scored_text import ScoredText

    def scored() -> Iterator["ScoredText"]:
        for name, recorded in open_records(file):
            if spec.top_k is not None or spec.form == "table":
                recorded = recorded.with_candidates(spec.candidates)
            yield ScoredText(recorded, name, recorded.bytes_of, observer=spec.watch(name, watcher))

    write_output(out, spec.render(scored(), name_of(file)), lines=spec.form == "table")


def open_records(file: Path | str) -> Iterator[tuple[str, "RecordedDraws"]]:
    """Yield recorded answers with their names, read from a file, or stdin for `-`.

    Raises FileAccessError, RequestError.
    """
    from ropechat.inspector.others.read import read_records

    with _opened(file) as lines:
        answers = read_records(lines, name_of(file), say)
        first = next(answers)
        second = next(answers, None)
        if second is None:
            yield name_of(file), first[1]
            return
        for label, recorded in chain([first, second], answers):
            yield f"{name_of(file)}: {label}", recorded


def open_trace(file: Path | str) -> "RecordedDraws":
    """Read a recorded trace; `-` is stdin. Raises FileAccessError, RequestError."""
    from ropechat.inspector.open_trace import read_trace

    with _opened(file) as lines:
        return read_trace(lines, name_of(file))


@contextlib.contextmanager
def _opened(file: Path | str) -> Iterator[Iterator[bytes]]:
    """The lines of a file; of one that is too long only as much as shows it."""
    from ropechat.inspector.open_trace import MAX_LINE_BYTES

    try:
        with contextlib.nullcontext(stdin_stream()) if isinstance(file, str) else file.open("rb") as stream:
            yield iter(partial(stream.readline, MAX_LINE_BYTES + 1), b"")
    except FileNotFoundError:
        raise RequestError(f"{file}: file not found") from None
    except OSError as error:
        raise FileAccessError(f"{file}: {error.strerror or error}") from None


def replay_trace(file: Path | str) -> int:
    """Replay the draws; write a line for each mismatch and a last one with the counts.

    Returns the exit code: 0 if every draw follows from its record.
    """
    from ropechat.inspector.replay import replay
    from ropechat.util.text import visible

    recorded, out = open_trace(file), StdoutWriter()
    sampling = recorded.sampling
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
    from ropechat.inspector.records import json_lines
    from ropechat.inspector.scored_text import ScoredText

    write_output(target, json_lines(ScoredText(recorded, "", bytes_of)))
