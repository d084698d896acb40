"""What several commands share: options, the model, text from the terminal, text to the terminal."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ropechat import builtin
from ropechat.cli.door import say
from ropechat.errors import RequestError
from ropechat.sampling import Sampling
from ropechat.text import clean

if TYPE_CHECKING:
    from ropechat.engine import Engine

F = TypeVar("F", bound=Callable[..., Any])
NO_TEMPLATE = "note: this model has no chat template; it continues the text"
_DEFAULTS = Sampling()


def model_options(function: F) -> F:
    """-m, --dtype, --threads, --context."""
    for option in (
        click.option("--context", type=click.IntRange(min=1), help="Most tokens of a conversation."),
        click.option("--threads", type=click.IntRange(min=1), help="Default: all cores."),
        click.option(
            "--dtype", type=click.Choice(["auto", "f32", "bf16", "f16", "q8_0", "q4_0"]), default="auto"
        ),
        click.option(
            "-m",
            "--model",
            envvar="ROPECHAT_MODEL",
            help="Folder of the model [env: ROPECHAT_MODEL; default: the built-in one].",
        ),
    ):
        function = option(function)
    return function


def sampling_options(function: F) -> F:
    """The fields of Sampling; ranges are checked there."""
    for name, kind, text in (
        ("--seed", int, "Makes the draws repeatable."),
        ("--repetition-penalty", float, "1 is none."),
        ("--min-p", float, "Keep ids with at least this share of the best one's probability; 0 keeps all."),
        ("--top-p", float, "Keep the smallest set that reaches this probability; 1 keeps all."),
        ("--top-k", int, "Keep the k most probable ids; 0 keeps all."),
        ("--temperature", float, "0 is greedy."),
        ("--max-tokens", int, "Most new tokens."),
    ):
        default = getattr(_DEFAULTS, name.strip("-").replace("-", "_"))
        function = click.option(name, type=kind, default=default, show_default=True, help=text)(function)
    return function


def sampling_of(given: dict[str, Any]) -> Sampling:
    """Takes the sampling fields out of a command's options. A bad value is a usage error with the flag."""
    fields = {name: given.pop(name) for name in Sampling.__dataclass_fields__}
    try:
        return Sampling(**fields)
    except ValueError as error:
        name, _, rest = str(error).partition(": ")
        raise click.UsageError(f"--{name.replace('_', '-')}: {rest}") from None


def model_or_builtin(model: str | None) -> str:
    """The model's name; the one that comes with ropechat when none is given."""
    return model or builtin.NAME


def load_engine(given: dict[str, Any], *, quiet: bool = False) -> "Engine":
    """Takes the model options out of a command's options and loads the model; its warnings go to stderr."""
    model = model_or_builtin(given.pop("model"))
    options = {name: given.pop(name) for name in ("dtype", "threads", "context")}
    from ropechat.engine import Engine

    engine = Engine.load(model, **options)
    if not quiet:
        say_warnings(engine.facts["warnings"])
    return engine


def say_warnings(warnings: Sequence[str]) -> None:
    """What is odd but harmless about a model, one line each."""
    for warning in warnings:
        say(f"warning: {warning}")


def text_argument(value: str | None, name: str) -> str:
    """A text given as an argument, or read from stdin for `-` and for none when stdin is no terminal."""
    if value is not None and value != "-":
        return value
    if sys.stdin is None or (value is None and sys.stdin.isatty()):
        raise click.UsageError(f"no {name}; give it as an argument, or - to read it from stdin")
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"stdin: byte {error.start} is not UTF-8; convert the text to UTF-8") from None


class Out:
    """Text to stdout: cleaned on a terminal, raw UTF-8 elsewhere, flushed at once."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdout is not None and sys.stdout.isatty()
        self._ends_line = True

    def write(self, text: str) -> None:
        """Write and flush. Raises OSError (BrokenPipeError when the reader left)."""
        if not text or sys.stdout is None:
            return
        self._ends_line = text.endswith("\n")
        data = clean(text) if self.is_terminal else text
        sys.stdout.buffer.write(data.encode("utf-8", "replace"))
        sys.stdout.buffer.flush()

    def raw_line(self, text: str) -> None:
        """A line that is safe already (it may hold colours of ours)."""
        if sys.stdout is not None:
            self._ends_line = True
            sys.stdout.buffer.write(text.encode("utf-8", "replace") + b"\n")

    def end_line(self) -> None:
        """A newline if the last character was none."""
        if not self._ends_line:
            self.write("\n")


def wants_color() -> bool:
    """Whether stdout may have colours (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout is not None and sys.stdout.isatty()


def note_missing_template(engine: "Engine", *, wanted: bool = True) -> None:
    """Say once on stderr that the model completes text."""
    if wanted and not engine.has_chat_template:
        say(NO_TEMPLATE)
