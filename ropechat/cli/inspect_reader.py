"""`ropechat inspect -i FILE`: the reader, in a terminal."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from ropechat.cli.common import FileName, has_screen, read_text_file
from ropechat.cli.loading import load, take_model
from ropechat.cli.option_groups import given_flags, option, option_set
from ropechat.cli.status import ProgressLine
from ropechat.errors import RequestError
from ropechat.settings.spec import DTYPES

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine
    from ropechat.inspector.record_reader import RecordReader

reader_option = option_set(
    option(
        "-i",
        "--interactive",
        "interactive",
        type=FileName(),
        metavar="FILE",
        help="Open FILE in a reader: tinted tokens, candidates, look-ups; takes --window and the "
        "options of the model. A record of logprobs is opened as one, without a model, unless -m is given.",
    ),
    option(
        "--against-dtype",
        expert=True,
        type=click.Choice(DTYPES),
        metavar="TYPE",
        help="With -i: the key c compares with the model in this type.",
    ),
    title="Reader",
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
    if not has_screen():
        raise click.UsageError("-i: requires a terminal (TERM not dumb); omit it, or give -o FILE.html")
    record = None if "model" in given_flags() else _record(file)
    content = "" if record is not None else read_text_file(file, empty=False)  # before the model is loaded
    from ropechat.cli.config import checked_keys
    from ropechat.tui import run_reader
    from ropechat.tui.options import ChatOptions

    settings = click.get_current_context().find_root().obj
    keys = checked_keys(settings) if settings is not None else {}
    options = ChatOptions(keys=keys)
    if record is not None:
        from ropechat.inspector.record_reader import NoEngine

        return run_reader(cast("Engine", NoEngine()), file.name, record, None, options)
    spec = take_model(given, raw=True).find()
    second = None if against is None else replace(spec, dtype=against).load
    engine = load(spec, screen=True, line=ProgressLine())  # the app starts after it
    return run_reader(engine, file.name, content, window, options, second, against or "")


def _record(file: Path) -> "RecordReader | None":
    """A file as a record of logprobs; None if it is another text. Raises FileAccessError."""
    from ropechat.cli.stages import open_records
    from ropechat.inspector.record_reader import RecordReader

    with suppress(RequestError):
        return RecordReader(open_records(file))
    return None
