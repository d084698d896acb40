"""`ropechat inspect -i FILE`: the reader, in a terminal."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ropechat.cli.common import FileName, read_text_file
from ropechat.cli.loading import load, take_model
from ropechat.cli.option_groups import option_set
from ropechat.cli.status import ProgressLine
from ropechat.settings.spec import DTYPES

reader_option = option_set(
    click.option(
        "-i",
        "--interactive",
        "interactive",
        type=FileName(),
        metavar="FILE",
        help="Open FILE in a reader: tinted tokens, candidates, look-ups; takes --window and the "
        "options of the model.",
    ),
    click.option(
        "--against-dtype",
        type=click.Choice(DTYPES),
        help="With -i: the key c compares with the model in this type.",
    ),
)


READER_OPTIONS = (
    *("interactive", "against_dtype", "window", "progress"),
    *("model", "dtype", "kv_dtype", "threads", "context", "cache", "download"),
)
"""The options that the reader takes."""


def read_interactively(
    file: Path | str, window: int | None, against: str | None, given: dict[str, Any]
) -> int:
    """Open the reader and return the exit code. Raises UsageError, RequestError, FileAccessError."""
    if not isinstance(file, Path):
        raise click.UsageError("-i: must be a file (got -); the keys come from stdin")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("-i: requires a terminal; omit it, or give -o FILE.html")
    content = read_text_file(file, empty=False)  # before the model is loaded
    from ropechat.cli.config import checked_keys
    from ropechat.tui import run_reader
    from ropechat.tui.options import ChatOptions

    settings = click.get_current_context().find_root().obj
    keys = checked_keys(settings) if settings is not None else {}
    spec = take_model(given, raw=True).find()
    second = None if against is None else replace(spec, dtype=against).load
    engine = load(spec, screen=True, line=ProgressLine())  # the app starts after it
    return run_reader(engine, file.name, content, window, ChatOptions(keys=keys), second, against or "")
