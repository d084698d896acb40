"""What several commands share: options, the model, text from the terminal, text to the terminal."""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from ropechat import builtin
from ropechat.cli.exit_codes import say
from ropechat.cli.settings import DTYPES, KV_DTYPES, MAX_INTEGER, SETTINGS
from ropechat.errors import RequestError
from ropechat.sampling import Sampling
from ropechat.util.text import clean

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine
    from ropechat.engine.templates.template import ChatTemplate

F = TypeVar("F", bound=Callable[..., Any])
NO_TEMPLATE = "note: this model has no chat template; it continues the text"
_DEFAULTS = Sampling()
_BY_OPTION = {setting.option: setting for setting in SETTINGS}


class _SettingOption(click.Option):
    """An option whose variable is read as `ropechat config show` reads it."""

    def value_from_envvar(self, ctx: click.Context) -> Any:
        return _BY_OPTION[str(self.name)].of_environment()


def setting_option(name: str, *flags: str, **details: Any) -> Callable[[F], F]:
    """An option for one of SETTINGS: a flag goes before the environment, that before the settings file."""
    flags = flags or (f"--{name.replace('_', '-')}",)
    variable = _BY_OPTION[name].variable
    return click.option(*flags, name, cls=_SettingOption, envvar=variable, **details)


class Count(click.ParamType):  # type: ignore[type-arg]  # generic in newer clicks only
    """A number from 1 on; the engine's own bound is no news in a help text."""

    name = "n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return int(click.IntRange(1, MAX_INTEGER).convert(value, param, ctx))


def model_options(function: F) -> F:
    """-m, --dtype, --kv-dtype, --threads, --context, --no-cache, --download."""
    for option in (
        click.option(
            "--download", is_flag=True, help="Download a Hub model that is not here, without asking."
        ),
        click.option(
            "--no-cache",
            "cache",
            flag_value="off",
            default=None,
            help="Neither use nor keep packed weights on disk [env: ROPECHAT_CACHE=off].",
        ),
        setting_option("context", type=Count(), help="Most tokens of a conversation."),
        setting_option("threads", type=Count(), help="Default: all cores."),
        setting_option(
            "kv_dtype",
            type=click.Choice(KV_DTYPES),
            default="auto",
            help="The KV cache; auto: f32 beside f32 weights, else f16.",
        ),
        setting_option("dtype", type=click.Choice(DTYPES), default="auto"),
        setting_option(
            "model",
            "-m",
            "--model",
            help="Folder, .gguf file, Hub id (org/name, org/name:QUANT, org/name@revision) or builtin "
            "[env: ROPECHAT_MODEL; default: builtin].",
        ),
    ):
        function = option(function)
    return function


def _template_vars(ctx: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> dict[str, Any]:
    """{"enable_thinking": False} of ["enable_thinking=false"]; what is no JSON is a text."""
    if not texts:
        return {}
    import json  # late, as the template's rules

    from ropechat.engine.templates.template import validate_variables

    variables: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--template-var: {text!r:.60}; NAME=VALUE is required", ctx)
        try:
            variables[name] = json.loads(value)
        except (ValueError, RecursionError):
            variables[name] = value
    try:
        return validate_variables(variables)
    except RequestError as error:
        text = str(error).removeprefix("template variable: ")
        raise click.UsageError(f"--template-var: {text}", ctx) from None


def template_options(function: F) -> F:
    """--template, --template-var."""
    for option in (
        click.option(
            "--template-var",
            "template_vars",
            multiple=True,
            metavar="NAME=VALUE",
            callback=_template_vars,
            help="A variable for the chat template: true, 3, JSON, or text. May be repeated.",
        ),
        click.option("--template", metavar="NAME", help="Which chat template, where a model has several."),
    ):
        function = option(function)
    return function


def sampling_options(function: F) -> F:
    """The fields of Sampling; ranges are checked there."""
    for name, kind, text in (
        ("seed", int, "Makes the draws repeatable: 0 to 2^64 - 1; jq and JavaScript round it from 2^53 on."),
        ("repetition_penalty", float, "1 is none."),
        ("min_p", float, "Keep ids with at least this share of the best one's probability; 0 keeps all."),
        ("top_p", float, "Keep the smallest set that reaches this probability; 1 keeps all."),
        ("top_k", int, "Keep the k most probable ids; 0 keeps all."),
        ("temperature", float, "0 is greedy."),
        ("max_tokens", int, "Most new tokens."),
    ):
        default = getattr(_DEFAULTS, name)
        option = setting_option(name, type=kind, default=default, show_default=True, help=text)
        function = option(function)
    return function


def sampling_of(given: dict[str, Any]) -> Sampling:
    """Takes the sampling fields out of a command's options. A bad value is a usage error with the flag."""
    fields = {name: given.pop(name) for name in Sampling.__dataclass_fields__ if name in given}
    try:
        return Sampling(**fields)
    except ValueError as error:
        name, _, rest = str(error).partition(": ")
        raise click.UsageError(f"--{name.replace('_', '-')}: {rest}") from None


def model_or_builtin(model: str | None) -> str:
    """The model's name; the one that comes with ropechat when none is given."""
    return model or builtin.NAME


def model_path(given: dict[str, Any]) -> Path:
    """Takes -m and --download out of a command's options; returns what to load, downloaded if need be."""
    from ropechat.cli.download import find_or_download

    model = model_or_builtin(given.pop("model"))
    return find_or_download(model, unasked=given.pop("download"))


def load_engine(given: dict[str, Any], *, screen: bool = False, first_prompt: str = "") -> "Engine":
    """Takes the model options out of a command's options and loads the model.

    Its warnings go to stderr, unless `screen`: then a full-screen app has the terminal. When the command is
    done, packed weights that are still to be kept are written. first_prompt: as for `Engine.from_load`.
    """
    model = model_path(given)
    options = {name: given.pop(name) for name in ("dtype", "kv_dtype", "threads", "context", "cache")}
    from ropechat.engine.native import ModelLoad, exit_when_cut

    exit_when_cut(screen=screen)
    with ModelLoad(model, **options) as loading:
        from ropechat.engine.engine import Engine  # meanwhile

        engine = Engine.from_load(loading, first_prompt)
    if not screen:
        say_warnings(engine.facts["warnings"])
    if (command := click.get_current_context(silent=True)) is not None:
        command.call_on_close(lambda: _keep_pack(engine))
    return engine


def _keep_pack(engine: "Engine") -> None:
    """Stay until packed weights are on disk: short runs too have a quick next start then. Ctrl-C leaves."""
    if sys.exc_info()[0] is not None:
        return
    with contextlib.suppress(KeyboardInterrupt):
        if engine.finish_pack(1.0):
            return
        say("note: keeping the packed weights for the next start; Ctrl-C leaves without")
        while not engine.finish_pack(0.05):
            pass


def load_chat_engine(
    given: dict[str, Any],
    *,
    raw: bool = False,
    quiet: bool = False,
    screen: bool = False,
    first_prompt: str = "",
) -> "Engine":
    """`load_engine` for a command with template_options; notes on the prompt go to stderr.

    raw: no chat template is used, as if the model had none. quiet, screen: no notes.
    """
    name, variables = given.pop("template"), given.pop("template_vars")
    if raw:
        if name is not None or variables:
            raise click.UsageError("--raw uses no chat template; leave --template and --template-var out")
        engine = load_engine(given, screen=screen, first_prompt=first_prompt)
        engine.chat.template = None
        return engine
    from ropechat.engine.templates.template import warm

    warm(model_or_builtin(given["model"]))
    engine = load_engine(given, screen=screen, first_prompt=first_prompt)
    engine.chat.use(name, variables)
    if not quiet and not screen:
        if not engine.has_chat_template:
            say(NO_TEMPLATE)
        for text in unused_variables(engine.chat.template, variables):
            say(text)
        engine.chat.on_note = lambda text: say(f"note: {text}")
    return engine


def unused_variables(template: "ChatTemplate | None", variables: Mapping[str, Any]) -> list[str]:
    """A note for each variable that the template does not know: perhaps a slip of the pen."""
    if template is None:
        return []
    return [
        f"note: --template-var: {name}: this model's chat template has no such variable; it changes nothing"
        for name in variables
        if not template.mentions(name)
    ]


def say_warnings(warnings: Sequence[str]) -> None:
    """What is odd but harmless about a model, one line each."""
    for warning in warnings:
        say(f"warning: {warning}")


STREAM = "-"
"""Stdin or stdout, where a command takes a file."""


class FileName(click.Path):
    """A Path; `-` stays that text, and is stdin or stdout (./- is a file of that name)."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return STREAM if value == STREAM else super().convert(value, param, ctx)


def stdin_stream() -> IO[bytes]:
    """Stdin as bytes. Raises RequestError when it is closed."""
    if sys.stdin is None:
        raise RequestError("stdin: closed; name a file")
    return sys.stdin.buffer


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


class StdoutWriter:
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
