"""What `ropechat inspect` reads and writes: files of text, formats by suffix, one output file or stdout."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropechat.cli.common import STREAM, FileName, StdoutWriter, read_text_file, wants_color
from ropechat.cli.exit_codes import OK, SOME_FAILED, say
from ropechat.cli.option_groups import option_set
from ropechat.errors import CancelledError, FileAccessError, RequestError, RopechatError
from ropechat.util.text import count_of, one_line

if TYPE_CHECKING:
    from ropechat.cli.interrupt import Stop
    from ropechat.engine.engine import Engine
    from ropechat.inspector.by_line import Sort
    from ropechat.inspector.look_up import Strings
    from ropechat.inspector.scored_text import ScoredText

FORMATS = ("table", "jsonl", "csv", "html", "svg")
BY_SUFFIX = {".txt": "table", ".jsonl": "jsonl", ".csv": "csv", ".html": "html", ".svg": "svg"}
TOP_K = {"table": 5, "jsonl": 20, "csv": 5, "html": 5, "svg": 0}
TEXT_WIDTH = 100  # of a table in a file


output_options = option_set(
    click.option(
        "-f",
        "--file",
        "files",
        multiple=True,
        type=FileName(),
        metavar="FILE",
        help="A text. Repeatable.",
    ),
    click.option(
        "-o",
        "--out",
        type=FileName(),
        default=STREAM,
        metavar="OUT",
        help=f"Output file, its format by suffix: {', '.join(BY_SUFFIX)}; - is stdout [default: stdout].",
    ),
    click.option("--overwrite", is_flag=True, help="Replace OUT if it exists."),
    click.option(
        "--format", "form", type=click.Choice(FORMATS), help="[default: by the suffix of OUT, else table]"
    ),
    click.option(
        "--by",
        type=click.Choice(["token", "line"]),
        default="token",
        show_default=True,
        help="A row for each token, or the sums of each line (table, jsonl, csv).",
    ),
    click.option(
        "--sort",
        type=click.Choice(["line", "bits", "bits-per-byte"]),
        help="With --by line: in the order of the text (default), or most surprising lines first.",
    ),
    click.option("--head", type=click.IntRange(1), metavar="N", help="With --by line: the first N lines."),
    click.option(
        "--look-up-whole",
        is_flag=True,
        help="With --look-up: also the probability of all tokens of STRING: a short pass for each place.",
    ),
    click.option(
        "--look-up",
        "look_up",
        multiple=True,
        metavar="STRING",
        help="Also show the probability of STRING in the place of each token, and after the text; of a "
        "string of several tokens, that of the first one. Repeatable.",
    ),
)


@dataclass(frozen=True)
class Output:
    """The destination and form of the results. Made by `output_of`."""

    out: Path | str
    form: str
    by_line: bool
    sort: "Sort"
    head: int | None
    look_up: tuple[str, ...]
    look_up_whole: bool
    top_k: int

    @property
    def streams(self) -> bool:
        """Whether results are written to stdout as they are computed."""
        return self.out == STREAM and self.sort == "line" and self.form in ("table", "jsonl", "csv")

    @property
    def width(self) -> int:
        """The columns of a table."""
        return TEXT_WIDTH if isinstance(self.out, Path) else shutil.get_terminal_size((100, 24)).columns

    @property
    def color(self) -> bool:
        """Whether a table is coloured."""
        return not isinstance(self.out, Path) and wants_color()


def output_of(given: dict[str, Any], top_k: int | None) -> Output:
    """Remove the output options from `given` and check them. top_k: None for the default of the format.

    Raises UsageError for options that do not fit together, BatchInputError and FileAccessError for an output
    that exists or cannot be written.
    """
    out, form, by, sort = given.pop("out"), given.pop("form"), given.pop("by"), given.pop("sort")
    head, look_up, overwrite = given.pop("head"), given.pop("look_up"), given.pop("overwrite")
    whole: bool = given.pop("look_up_whole")
    files: Sequence[Path | str] = given.pop("files")
    if form is None and isinstance(out, Path):
        form = BY_SUFFIX.get(out.suffix.lower())
        if form is None and not out.is_char_device():
            raise click.UsageError(
                f"-o: must end in {', '.join(BY_SUFFIX)} (got {out.name!r}); or add --format"
            )
    form = form or "table"
    if by == "line" and form not in ("table", "jsonl", "csv"):
        raise click.UsageError(f"--by line: not possible as {form}; use table, jsonl or csv")
    if by != "line" and (sort or head):
        raise click.UsageError("--sort and --head require --by line; add it or omit them")
    if look_up and (by == "line" or form == "svg"):
        raise click.UsageError("--look-up: only in a table, jsonl, csv or html by token")
    if whole and not look_up:
        raise click.UsageError("--look-up-whole: requires --look-up; add it")
    if "" in look_up:
        raise click.UsageError("--look-up: must have at least one character")
    if isinstance(out, Path):
        from ropechat.batch.output import refuse_output  # imported here: rarely needed

        inputs = [file for file in files if isinstance(file, Path) and file.exists()]
        refuse_output(
            out,
            lambda path: path.exists() and any(path.samefile(file) for file in inputs),
            overwrite=overwrite,
        )
    if top_k is None:
        top_k = 0 if by == "line" else TOP_K[form]
    return Output(out, form, by == "line", sort or "line", head, look_up, whole, top_k)


def name_of(file: Path | str) -> str:
    """The name of an input in messages and results."""
    return str(file) if isinstance(file, Path) else "stdin"


def read_file(file: Path | str) -> str:
    """`read_text_file`; an empty file is refused, too."""
    text = read_text_file(file)
    if not text:
        raise RequestError(f"{name_of(file)}: must have at least one character (the file is empty)")
    return text


class Failures:
    """Counts files: if one of several fails, it is reported and the others continue."""

    def __init__(self, files: int) -> None:
        self._files, self.failed = files, 0

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        """While a file is read and scored."""
        try:
            yield
        except CancelledError:
            raise
        except RopechatError as error:
            self.failed += 1
            if self._files <= 1 or self.failed == self._files:
                raise  # nothing to show: the command fails with this error
            text = str(error)
            say(f"error: {text if text.startswith(name) else f'{name}: {text}'}")

    @property
    def exit_code(self) -> int:
        """3 if a file failed."""
        return SOME_FAILED if self.failed else OK


def looked_up_strings(engine: "Engine", output: Output) -> "Strings | None":
    """The strings that are looked up; None if there are none. Raises RequestError."""
    if not output.look_up:
        return None
    from ropechat.inspector.look_up import Strings

    return Strings(engine, output.look_up, whole=output.look_up_whole)


def write(
    readings: Iterable["ScoredText"],
    bytes_of: Callable[[int], bytes],
    output: Output,
    title: str,
    stop: "Stop | None" = None,
) -> None:
    """Write the results. bytes_of: id -> the bytes of a token. title: of an HTML page. stop: ends `readings`.

    Raises FileAccessError, and what `readings` raises.
    """
    write_pieces(output, _pieces(readings, bytes_of, output, title), stop)


def write_pieces(output: Output, pieces: Iterable[str], stop: "Stop | None" = None) -> None:
    """Write the pieces of an output; of a table, whole lines. Raises FileAccessError, and as `pieces`.

    stop: the pieces of a file were ended by it if it has arrived.
    """
    if isinstance(output.out, Path):
        write_file(output.out, pieces, stop)
        return
    out = StdoutWriter()
    for piece in pieces:
        if output.form == "table":
            out.raw_line(piece.removesuffix("\n"))
        else:
            out.write(piece)


def write_file(path: Path, pieces: Iterable[str], stop: "Stop | None" = None) -> None:
    """Write a file, which gets its name when it is complete; a device or pipe is written directly.

    stop: if it has arrived, the pieces end early, and what they are keeps the name NAME.partial.
    Raises FileAccessError, and as `pieces`.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        if path.exists() and not path.is_file():
            with path.open("w", encoding="utf-8", errors="replace", newline="") as file:
                file.writelines(pieces)
            return
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace", newline="") as file:
                file.writelines(pieces)
            if stop is None or not stop.arrived:
                partial.replace(path)
            elif stop.tokens:
                say(f"stopped: {partial} contains the first {count_of(stop.tokens, 'token')}")
            else:
                partial.unlink()
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
    except OSError as error:
        raise FileAccessError(f"{path}: {error.strerror or error}; not written") from None


def _pieces(
    readings: Iterable["ScoredText"], bytes_of: Callable[[int], bytes], output: Output, title: str
) -> Iterator[str]:
    """Yield the output in pieces; of a table, whole lines."""
    if output.by_line:
        yield from _by_line(readings, output)
    elif output.form == "html":
        from ropechat.inspector import trace_page

        yield from trace_page.render(readings, title, bytes_of)
    elif output.form == "svg":
        from ropechat.inspector import strip

        yield from strip.render(readings)
    elif output.form == "csv":
        from ropechat.inspector import csv_table

        yield from csv_table.lines(readings, bytes_of, output.top_k, len(output.look_up))
    elif output.form == "jsonl":
        from ropechat.inspector import jsonl

        for reading in readings:
            yield from jsonl.lines(reading, bytes_of)
    else:
        from ropechat.inspector import table

        for reading in readings:
            if reading.name:
                yield f"{one_line(reading.name)}\n"
            for line in table.render(reading, bytes_of, output.width, color=output.color):
                yield f"{line}\n"


def _by_line(readings: Iterable["ScoredText"], output: Output) -> Iterator[str]:
    from ropechat.inspector import by_line
    from ropechat.util.json_lines import json_line

    lines = by_line.chosen(
        (line for reading in readings for line in by_line.lines_of(reading)), output.sort, output.head
    )
    if output.form == "csv":
        yield from by_line.csv_lines(lines)
    elif output.form == "jsonl":
        yield from (json_line(by_line.record(line)) for line in lines)
    else:
        yield from (f"{line}\n" for line in by_line.table(lines, output.width))
