"""`ropechat inspect -i FILE`: the reader, in a terminal."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropechat.cli.common import FileName, load_chat_engine, model_path
from ropechat.cli.inspect_output import read_file
from ropechat.cli.option_groups import option_set, refuse_given
from ropechat.cli.settings import DTYPES
from ropechat.cli.status import ProgressLine

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropechat.engine.engine import Engine


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


_USED = (
    *("interactive", "against_dtype", "window", "progress"),
    *("model", "dtype", "kv_dtype", "threads", "context", "cache", "download"),
)
"""The options that the reader takes."""


def refuse_with_reader(text: str | None) -> None:
    """Raise UsageError for a text, and for options that have no effect in the reader."""
    if text is not None:
        raise click.UsageError("-i: not possible with TEXT; give one of them")
    refuse_given("-i", _USED)


def read_interactively(
    file: Path | str, window: int | None, against: str | None, given: dict[str, Any]
) -> int:
    """Open the reader and return the exit code. Raises UsageError, RequestError, FileAccessError."""
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
    load = None if against is None else _second_model(given, against)
    engine = load_chat_engine(given, raw=True, screen=True, line=ProgressLine())  # the app starts after it
    look = ChatOptions(keys=keys)
    return run_reader(engine, file.name, content, window, look, load, against or "")


def _second_model(given: dict[str, Any], dtype: str) -> "Callable[[], Engine]":
    """A function that loads the model of these options in another type; called from any thread."""
    model = model_path({name: given[name] for name in ("model", "download")})
    options = {name: given[name] for name in ("kv_dtype", "threads", "context", "cache")}

    def load() -> "Engine":
        from ropechat.engine.engine import Engine

        return Engine.load(model, dtype=dtype, **options)

    return load
