"""`ropechat inspect -i FILE`: the reader, in a terminal."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ropechat.cli.common import FileName, load_chat_engine
from ropechat.cli.inspect_output import read_file

F = TypeVar("F", bound=Callable[..., Any])


def reader_option(function: F) -> F:
    """-i, --interactive."""
    option = click.option(
        "-i",
        "--interactive",
        "interactive",
        type=FileName(),
        metavar="FILE",
        help="Open FILE in a reader: tinted tokens, candidates, look-ups; with --window only.",
    )
    return option(function)


def read_interactively(file: Path | str, text: str | None, window: int | None, given: dict[str, Any]) -> int:
    """Open the reader and return the exit code. Raises UsageError, RequestError, FileAccessError."""
    if text is not None or given["files"]:
        raise click.UsageError("-i: not possible with TEXT or -f; give one of them")
    if not isinstance(file, Path):
        raise click.UsageError("-i: must be a file (got -); the keys come from stdin")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("-i: requires a terminal; omit it, or give -o FILE.html")
    content = read_file(file)  # before the model is loaded
    from ropechat.cli.config import checked_keys
    from ropechat.tui import run_reader
    from ropechat.tui.options import ChatOptions

    settings = click.get_current_context().find_root().obj
    keys = checked_keys(settings) if settings is not None else {}
    engine = load_chat_engine(given, raw=True, screen=True)
    return run_reader(engine, file.name, content, window, ChatOptions(keys=keys))
