"""Shared parts of the commands: options, reading and writing text."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ropechat.cli.exit_codes import say
from ropechat.cli.option_groups import F, Option, option, option_set
from ropechat.errors import FileAccessError, RequestError
from ropechat.sampling import DEFAULTS, THINK, Sampling
from ropechat.sampling import SETTINGS as SAMPLER_SETTINGS
from ropechat.sampling.sources import ENVIRONMENT, FLAG, SETTINGS_FILE, SourcedSampling
from ropechat.settings.file import UserSettings, read_settings
from ropechat.settings.spec import BY_NAME, DTYPES, KV_DTYPES, MAX_INTEGER, SETTINGS
from ropechat.util.files import decode_text, partial_name, read_text, text_output
from ropechat.util.paths import expand_home
from ropechat.util.text import clean, count_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ropechat.cli.interrupt import Stop

_BY_OPTION = {setting.option: setting for setting in SETTINGS}
_SOURCES = {
    ParameterSource.COMMANDLINE: FLAG,
    ParameterSource.ENVIRONMENT: ENVIRONMENT,
    ParameterSource.DEFAULT_MAP: SETTINGS_FILE,
}


class _SettingOption(Option):
    """An option whose environment variable is parsed as in `ropechat config show`."""

    def value_from_envvar(self, ctx: click.Context) -> Any:
        return _BY_OPTION[str(self.name)].of_environment()


def setting_option(name: str, *flags: str, **details: Any) -> Callable[[F], F]:
    """An option for one of SETTINGS: flags override the environment, which overrides the settings file."""
    flags = flags or (f"--{name.replace('_', '-')}",)
    variable = _BY_OPTION[name].variable
    return option(*flags, name, cls=_SettingOption, envvar=variable, **details)


def current_setting(name: str) -> Any:
    """The value of a setting that has no flag here: of the environment, the settings file, or the default.

    Raises SettingsError, FileAccessError.
    """
    found = given_setting(name)
    return BY_NAME[name].default if found is None else found


def given_setting(name: str) -> Any:
    """As `current_setting`; None where there is only the default."""
    setting = BY_NAME[name]
    if (found := setting.of_environment()) is not None:
        return found
    context = click.get_current_context(silent=True)
    file = None if context is None else context.find_object(UserSettings)
    return (file or read_user_settings()).values.get(name)


def read_user_settings() -> UserSettings:
    """The settings file; a note says if it is missing. Raises SettingsError, FileAccessError."""
    return read_settings(on_missing=lambda message: say(f"note: {message}; until then all defaults count"))


def model_folders() -> list[Path]:
    """The folders of the setting `model_folders`. Raises SettingsError, FileAccessError."""
    return [expand_home(one) for one in current_setting("model_folders")]


class Count(click.ParamType):  # type: ignore[type-arg]  # generic in newer clicks only
    """An integer of at least 1; the engine's upper bound is not shown in help texts."""

    name = "n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number = int(click.INT.convert(value, param, ctx))
        if number < 1:
            self.fail(f"must be at least 1 (got {number})", param, ctx)
        if number > MAX_INTEGER:
            self.fail(f"must be at most {MAX_INTEGER}", param, ctx)
        return number


class Think(click.ParamType[str]):
    """One of THINK, or a number of tokens."""

    name = "think"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if text not in THINK and not text.isdecimal():
            self.fail(
                f"must be one of {', '.join(THINK)}, or a number of tokens (got {text!r:.40})", param, ctx
            )
        return text


class Real(click.FloatRange):
    """A number of at least 0, or above 0; NaN is refused."""

    def __init__(self, *, above: bool = False) -> None:
        super().__init__(0.0, min_open=above)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if number != number:
            self.fail("must be a number (got nan)", param, ctx)
        return number


def complete_model(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """What the shell offers for a model that is being typed."""
    from ropechat.models import completion
    from ropechat.models.installed import find_models

    found = find_models(model_folders(), lambda note: None)
    return completion.complete_model(begun, [one.name for one in found if one.reason is None])


def complete_chat(ctx: click.Context, parameter: click.Parameter, begun: str) -> "list[CompletionItem]":
    """What the shell offers for the id of a stored chat: the newest ones, with their titles."""
    from click.shell_completion import CompletionItem

    from ropechat.store.store import Store
    from ropechat.util.paths import conversations_folder

    if not (folder := conversations_folder()).is_dir():
        return []
    store = Store(folder)
    try:
        found = store.conversations(100).result()
    finally:
        store.close(1.0)
    return [CompletionItem(one.id, help=clean(one.title)[:60]) for one in found if one.id.startswith(begun)]


def complete_file(ctx: click.Context, parameter: click.Parameter, begun: str) -> "list[CompletionItem]":
    """Have the shell offer files for a value that is not a path to click."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(begun, type="file")]


model_options = option_set(
    setting_option(
        "model",
        "-m",
        "--model",
        shell_complete=complete_model,
        help="Folder, .gguf file, Hub id (org/name, org/name:QUANT, org/name@revision), short name "
        "(qwen3:0.6b; see `ropechat models catalog`), builtin, or last: what the chat opened last "
        "[env: ROPECHAT_MODEL; default: last for chat and run in a terminal, else builtin].",
    ),
    setting_option(
        "dtype",
        type=click.Choice(DTYPES),
        metavar="TYPE",
        default="auto",
        help=f"Type of the weights: {', '.join(DTYPES)}.",
    ),
    setting_option(
        "kv_dtype",
        type=click.Choice(KV_DTYPES),
        default="auto",
        expert=True,
        help="Type of the KV cache; auto: f32 for f32 weights, else bf16 where the processor multiplies it "
        "faster than f32, else f16.",
    ),
    setting_option("threads", type=Count(), help="Number of threads; default: the physical cores."),
    setting_option(
        "context",
        type=Count(),
        help="Maximum tokens of prompt and answer together [default: what the model was trained for].",
    ),
    option(
        "--no-cache",
        "cache",
        flag_value="off",
        default=None,
        expert=True,
        help="Do not cache packed weights or KV caches on disk [env: ROPECHAT_CACHE=off].",
    ),
    option("--download", is_flag=True, help="Download a missing Hub model without asking."),
    title="Model",
)


speculative_options = option_set(
    setting_option(
        "speculative",
        "--speculative/--no-speculative",
        default=True,
        expert=True,
        help="Draft tokens where it is faster, by prompt look-up, multi-token prediction and --draft;"
        " the output is the same.",
    ),
    setting_option(
        "draft",
        metavar="MODEL",
        expert=True,
        shell_complete=complete_model,
        help="A small model with the same tokenizer, named as for -m, that drafts tokens where it is faster.",
    ),
    title="Model",
)


def _template_vars(ctx: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> dict[str, Any]:
    """Parse ["enable_thinking=false"] to {"enable_thinking": False}; a value that is not JSON is a string."""
    if not texts:
        return {}
    import json  # imported here: rarely needed

    from ropechat.engine.templates.template import validate_variables

    variables: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--template-var: must be NAME=VALUE (got {text!r:.60})", ctx)
        try:
            variables[name] = json.loads(value)
        except (ValueError, RecursionError):
            variables[name] = value
    try:
        return validate_variables(variables)
    except RequestError as error:
        text = str(error).removeprefix("template variable: ")
        raise click.UsageError(f"--template-var: {text}", ctx) from None


template_options = option_set(
    option(
        "--template",
        metavar="NAME",
        expert=True,
        help="Name of the chat template, if the model has several (`ropechat template --list`).",
    ),
    option(
        "--template-var",
        "template_vars",
        multiple=True,
        metavar="NAME=VALUE",
        callback=_template_vars,
        expert=True,
        help="A variable for the chat template: JSON, or else a string. Repeatable.",
    ),
    title="Prompt",
)


encoding_options = option_set(
    option(
        "--special",
        type=click.Choice(["text", "tokens"]),
        expert=True,
        default="text",
        show_default=True,
        help="Whether the name of a control token in TEXT, such as <|endoftext|>, is text or the token.",
    ),
    option(
        "--bos",
        type=click.Choice(["auto", "yes", "no"]),
        expert=True,
        default="auto",
        show_default=True,
        help="Whether a text begins with the BOS token; auto: as the model's tokenizer says.",
    ),
    title="Prompt",
)


_USUAL = ("temperature", "top_k", "top_p", "min_p", "max_tokens", "seed")

sampling_options = option_set(  # Sampling validates their values
    *(
        setting_option(
            name,
            expert=name not in _USUAL,
            type=one.kind,
            default=getattr(DEFAULTS, name),
            show_default=name in ("seed", "max_tokens") or f"the model's, or {getattr(DEFAULTS, name):g}",
            help=f"{one.help[0].upper()}{one.help[1:]}.",
        )
        for name, one in SAMPLER_SETTINGS.items()
    ),
    setting_option(
        "think",
        type=Think(),
        metavar="on|off|low|medium|high|N",
        default=DEFAULTS.think,
        help="Whether a model that reasons thinks before it answers, or for how many tokens at most "
        "[default: as its chat template says].",
    ),
    setting_option(
        "dry_sequence_breakers",
        "--dry-sequence-breaker",
        multiple=True,
        metavar="TEXT",
        expert=True,
        default=list(DEFAULTS.dry_sequence_breakers),
        help="DRY: a text that ends a repetition, in place of line break, colon, quotation mark, asterisk. "
        "Repeatable.",
    ),
    title="Sampling",
)


class Bias(click.ParamType):  # type: ignore[type-arg]  # generic in newer clicks only
    """ID=BIAS, as a pair."""

    name = "id=bias"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        id, _, bias = str(value).partition("=")
        try:
            if not (id.isascii() and id.isdecimal()):
                raise ValueError
            return int(id), float(bias)
        except ValueError:
            self.fail(f"must be ID=BIAS, such as 198=-100 (got {value!r:.40})", param, ctx)


logit_bias_option = option_set(
    option(
        "--logit-bias",
        type=Bias(),
        multiple=True,
        metavar="ID=BIAS",
        expert=True,
        help="Add a number from -100 to 100 to a token's logit; -100 bans it. `ropechat inspect` shows ids. "
        "Repeatable.",
    ),
    title="Sampling",
)


def sampling_of(given: dict[str, Any]) -> Sampling:
    """Remove the sampling options from `given` and return them. A bad value is a usage error."""
    fields = {name: given.pop(name) for name in Sampling.__dataclass_fields__ if name in given}
    if str(fields.get("think")).isdecimal():
        fields |= {"think": "on", "thinking_budget": int(fields["think"])}
    try:
        return Sampling(**fields)
    except ValueError as error:
        name, _, rest = str(error).partition(": ")
        raise click.UsageError(f"--{name.replace('_', '-')}: {rest}") from None


def sourced_sampling(given: dict[str, Any]) -> SourcedSampling:
    """As `sampling_of`, and where each value is from. A bad value is a usage error."""
    context = click.get_current_context()
    found = {name: context.get_parameter_source(name) for name in SAMPLER_SETTINGS}
    sources = {name: _SOURCES[one] for name, one in found.items() if one in _SOURCES}
    return SourcedSampling(sampling_of(given), sources)


STREAM = "-"
"""Stands for stdin or stdout in place of a file name."""


fail_below_option = option(
    "--fail-below",
    type=click.FloatRange(0.0, 1.0),
    metavar="P",
    help="Exit code 1 if a word has a probability below P; stderr names each, neighbours joined.",
)


unit_option = option(
    "--unit",
    type=click.Choice(["bit", "nat"]),
    default="bit",
    show_default=True,
    expert=True,
    help="Of surprisals, entropies and divergences in tables, charts and pages; records keep theirs.",
)


def format_option(forms: Iterable[str], default: str) -> Callable[[F], F]:
    """The form of an output. default: that of stdout."""
    return option(
        "--format",
        "form",
        type=click.Choice([*forms]),
        help=f"Form of the output [default: by the suffix of OUT, else {default}].",
    )


overwrite_option = option("--overwrite", is_flag=True, help="Replace the output file if it exists.")
"""See `refuse_existing`."""


messages_option = option(
    "--messages",
    metavar="FILE",
    shell_complete=complete_file,
    help='A conversation: JSON, [{"role", "content"}, ...]; - is stdin.',
)


def refuse_existing(out: Path | str | None, *, overwrite: bool) -> None:
    """Refuse to write to a file that exists. Raises RequestError."""
    if isinstance(out, Path) and not overwrite and out.is_file():
        raise RequestError(f"{out}: exists; choose another output or add --overwrite")


def format_of(form: str | None, out: Path | str | None, by_suffix: Mapping[str, str]) -> str:
    """The format of an output: the given one, else by the suffix of the file, else that of .txt.

    Raises UsageError for another suffix.
    """
    if form is not None or not isinstance(out, Path) or out.is_char_device():
        return form or by_suffix[".txt"]
    if (suffix := out.suffix.lower()) not in by_suffix:
        allowed = ", ".join(filter(None, by_suffix))
        raise click.UsageError(f"-o: must end in {allowed} (got {out.name}); or add --format")
    return by_suffix[suffix]


class FileName(click.Path):
    """A Path; `-` stays a string and means stdin or stdout (./- is a file of that name)."""

    def __init__(self, *, folders: bool = False) -> None:
        super().__init__(dir_okay=folders, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return STREAM if value == STREAM else super().convert(value, param, ctx)


def out_option(by_suffix: Iterable[str]) -> Callable[[F], F]:
    """The output of a command whose format follows from the suffix of the file."""
    return option(
        "-o",
        "--output",
        "out",
        old=["--out"],
        type=FileName(),
        default=STREAM,
        metavar="OUT",
        help=f"Output file, its form by suffix: {', '.join(filter(None, by_suffix))}; - is stdout "
        "[default: stdout].",
    )


def stdin_stream() -> IO[bytes]:
    """Stdin as bytes. Raises RequestError if it is closed."""
    if sys.stdin is None:
        raise RequestError("stdin: closed; give a file")
    return sys.stdin.buffer


def stdin_waits() -> bool:
    """Whether a pipe or file on stdin has text that was not read."""
    import fcntl  # imported here: rarely needed
    import stat
    import termios

    try:
        number = sys.stdin.fileno()
        status = os.fstat(number)
        if stat.S_ISREG(status.st_mode):
            return os.lseek(number, 0, os.SEEK_CUR) < status.st_size
        size = bytearray(4)
        if stat.S_ISFIFO(status.st_mode):
            fcntl.ioctl(number, termios.FIONREAD, size)
        return any(size)
    except (AttributeError, OSError, ValueError):
        return False


def text_argument(value: str | None, name: str) -> str:
    """A text argument; read from stdin if it is `-`, or if it is missing and stdin is not a terminal."""
    if value is not None and value != "-":
        return value
    if sys.stdin is None or (value is None and sys.stdin.isatty()):
        raise click.UsageError(f"{name}: missing; give it as an argument, or - to read it from stdin")
    text = decode_text(sys.stdin.buffer.read(), "stdin")
    if not text:
        raise RequestError(f"{name}: must have at least one character (stdin is empty)")
    return text


def name_of(file: Path | str) -> str:
    """The name of an input in messages and results."""
    return str(file) if isinstance(file, Path) else "stdin"


def read_text_file(file: Path | str, *, empty: bool = True) -> str:
    """The text of a file, or of stdin for `-`. empty: whether it may be empty.

    Raises RequestError, FileAccessError.
    """
    if isinstance(file, Path):
        return read_text(file, empty=empty)
    text = decode_text(stdin_stream().read(), "stdin")
    if not (text or empty):
        raise RequestError("stdin: must have at least one character (the file is empty)")
    return text


class StdoutWriter:
    """Writes text to stdout at once: cleaned for a terminal, else unchanged."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdout is not None and sys.stdout.isatty()
        self._ends_line = True

    def write(self, text: str) -> None:
        """Write and flush. Raises BrokenPipeError if the reader closed the pipe, OSError, FileAccessError."""
        if text:
            self._ends_line = text.endswith("\n")
            self._put((clean(text) if self.is_terminal else text).encode("utf-8", "replace"))

    def raw_line(self, text: str) -> None:
        """Write a line that is safe for a terminal already and may contain colour codes."""
        self._ends_line = True
        self._put(text.encode("utf-8", "replace") + b"\n")

    def _put(self, data: bytes) -> None:
        if sys.stdout is None:
            raise FileAccessError("stdout: closed; open it, or send it to a file or /dev/null")
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def end_line(self) -> None:
        """Write a newline unless the last character was one."""
        if not self._ends_line:
            self.write("\n")


@contextlib.contextmanager
def output(
    out: Path | str | None, *, lines: bool = False, stop: "Stop | None" = None
) -> Iterator[Callable[[str], object]]:
    """Yield a function that writes pieces of an output to a file, or to stdout for `-` and None.

    lines: each piece is a line of a table, which may have colours. stop: if it has arrived, the pieces have
    ended early, and what they are keeps the name NAME.partial. Raises FileAccessError.
    """
    if not isinstance(out, Path):
        writer = StdoutWriter()
        yield (lambda piece: writer.raw_line(piece.removesuffix("\n"))) if lines else writer.write
        return
    with text_output(out, lambda: stop is not None and stop.arrived) as write:
        yield write
    if stop is not None and stop.arrived:
        partial = partial_name(out)
        if stop.tokens:
            say(f"stopped: {partial} contains the first {count_of(stop.tokens, stop.noun)}")
        else:
            partial.unlink()


def write_output(out: Path | str, pieces: Iterable[str], *, lines: bool = False) -> None:
    """Write the pieces of an output, see `output`. Raises FileAccessError, and as `pieces`."""
    with output(out, lines=lines) as write:
        for piece in pieces:
            write(piece)


def has_screen() -> bool:
    """Whether stdin and stdout are a terminal with a screen: one whose cursor can be moved."""
    streams = (sys.stdin, sys.stdout)
    return os.environ.get("TERM") != "dumb" and all(one is not None and one.isatty() for one in streams)


def wants_color() -> bool:
    """Whether to use colours on stdout (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout is not None and sys.stdout.isatty()
