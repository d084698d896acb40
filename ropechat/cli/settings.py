"""What the user chose once and for all: a TOML file, environment variables, defaults; flags go before all.

`SETTINGS` is the one list of what can be set. Key bindings, in the table [keys], are checked by who has keys.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import IO, Any, NamedTuple

from ropechat.errors import FileAccessError, SettingsError
from ropechat.sampling import Sampling
from ropechat.util.paths import settings_file

KV_DTYPES = ("auto", "f32", "f16", "q8_0")
DTYPES = ("auto", "f32", "bf16", "f16", "q8_0", "q6_k", "q5_k", "q4_k", "q4_0")
THEMES = ("auto", "dark", "light", "ansi-dark", "ansi-light")
TINTS = ("surprisal", "sampled", "entropy", "rank", "off")
WHEN_FULL = ("ask", "slide", "stop")
MAX_INTEGER = 2**62  # of the compiled engine's numbers
_MAX_BYTES = 1 << 20
_SWITCH = dict.fromkeys(("on", "true", "t", "yes", "y", "1"), True)
_SWITCH |= dict.fromkeys(("off", "false", "f", "no", "n", "0"), False)

Check = Callable[[object], None]


def _text(value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r:.40} is not allowed; a text is")


def _switch(value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r:.40} is not allowed; true or false is")


def _choice(*allowed: str) -> Check:
    def check(value: object) -> None:
        if value not in allowed:
            raise ValueError(f"{value!r:.40} is not allowed; {', '.join(allowed)} are")

    return check


def _count(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_INTEGER:
        raise ValueError(f"{value!r:.40} is not allowed; an integer from 1 on is")


def _sampling(name: str) -> Check:
    def check(value: object) -> None:
        given: Any = value
        try:
            Sampling(**{name: given})
        except ValueError as error:
            raise ValueError(str(error).removeprefix(f"{name}: ")) from None

    return check


def _to_switch(text: str) -> object:
    return _SWITCH.get(text.strip().lower(), text)


def _to_number(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


class Setting(NamedTuple):
    """One thing that can be set. name: as in the file, its table first; the option is the last part of it.

    check: raises ValueError that says what is allowed. reads: the value of a variable's text.
    """

    name: str
    default: object
    check: Check
    help: str
    reads: Callable[[str], object] = str

    @property
    def option(self) -> str:
        """The name without its table."""
        return self.name.rpartition(".")[2]

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"ROPECHAT_{self.option.upper()}"

    def of_environment(self, environ: Mapping[str, str] | None = None) -> object | None:
        """The value of the variable, None where it is not set or empty. Raises SettingsError."""
        text = (os.environ if environ is None else environ).get(self.variable)
        if not text:
            return None
        value = self.reads(text)
        try:
            self.check(value)
        except ValueError as error:
            raise SettingsError(f"{self.variable}: {error}") from None
        return value


_STEPS = {
    "temperature": "0 is greedy",
    "top_k": "keep the k most probable ids; 0 keeps all",
    "top_p": "keep the smallest set that reaches this probability",
    "min_p": "keep ids with at least this share of the best one's probability",
    "repetition_penalty": "1 is none",
    "max_tokens": "most new tokens",
    "seed": "makes the draws repeatable",
}
SETTINGS = (
    Setting("model", "builtin", _text, "what -m takes"),
    Setting("dtype", "auto", _choice(*DTYPES), "type that weights are computed in"),
    Setting("kv_dtype", "auto", _choice(*KV_DTYPES), "type that keys and values are cached in"),
    Setting("threads", None, _count, "threads; unset: all cores", _to_number),
    Setting("context", None, _count, "most tokens of a conversation; unset: the model's", _to_number),
    Setting("when_full", "ask", _choice(*WHEN_FULL), "what happens to a question that does not fit"),
    Setting("store", True, _switch, "keep chats; false is --incognito", _to_switch),
    Setting("theme", "auto", _choice(*THEMES), "colours of the chat"),
    Setting("tint", "surprisal", _choice(*TINTS), "which figure tints tokens"),
    Setting("overview", True, _switch, "chats and branches at the left of a wide screen", _to_switch),
    Setting("follow", True, _switch, "scroll along while the model writes", _to_switch),
    Setting("mouse", True, _switch, "the chat takes the mouse; F8 changes it", _to_switch),
    *(
        Setting(f"sampling.{one.name}", one.default, _sampling(one.name), _STEPS[one.name], _to_number)
        for one in fields(Sampling)
        if one.name in _STEPS
    ),
)
BY_NAME = {setting.name: setting for setting in SETTINGS}
KEYS = "keys."


class UserSettings(NamedTuple):
    """What a file says. values: by the names of SETTINGS; keys: lists of keys by command; lines: by name."""

    path: Path
    values: Mapping[str, object]
    keys: Mapping[str, tuple[str, ...]]
    lines: Mapping[str, int]

    def options(self, *, sampling: bool) -> dict[str, object]:
        """The values as defaults of command line options."""
        return {
            BY_NAME[name].option: value
            for name, value in self.values.items()
            if sampling or not name.startswith("sampling.")
        }

    def error(self, name: str, what: str) -> SettingsError:
        """An error about a name in the file."""
        return SettingsError(f"{_where(self.path, self.lines.get(name))}: {name}: {what}")

    def effective(self, environ: Mapping[str, str] | None = None) -> list[tuple[Setting, object, str]]:
        """(setting, value, where it comes from) of all, without flags. Raises SettingsError."""
        found: list[tuple[Setting, object, str]] = []
        for setting in SETTINGS:
            if (value := setting.of_environment(environ)) is not None:
                found.append((setting, value, setting.variable))
            elif setting.name in self.values:
                line = self.lines.get(setting.name)
                found.append((setting, self.values[setting.name], _where(self.path, line)))
            else:
                found.append((setting, setting.default, "default"))
        return found


def read(path: Path | None = None) -> UserSettings:
    """Read a settings file; the usual one may be absent. Raises SettingsError, FileAccessError."""
    wanted = path or settings_file()
    try:
        if wanted.exists() and not wanted.is_file():
            raise SettingsError(f"{wanted}: no regular file; a TOML file is needed")
        with wanted.open("rb") as stream:
            return of_stream(stream, wanted)
    except FileNotFoundError:
        if path is None and not os.environ.get("ROPECHAT_CONFIG", "").strip():
            return UserSettings(wanted, {}, {}, {})
        if path is not None:
            raise SettingsError(f"{wanted}: no such file") from None
        raise SettingsError(
            f"ROPECHAT_CONFIG: {wanted}: no such file; create it (it may be empty), or unset ROPECHAT_CONFIG"
        ) from None
    except OSError as error:
        raise FileAccessError(f"{wanted}: {error.strerror or error}") from None


def of_stream(stream: IO[bytes], path: Path) -> UserSettings:
    """`read` of an open file. path: what messages call it. Raises SettingsError, OSError."""
    import tomllib

    data = stream.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise SettingsError(f"{path}: more than {_MAX_BYTES:,} bytes; settings are shorter")
    try:
        text = data.decode("utf-8-sig")
        document = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise SettingsError(f"{path}: line {line}: not UTF-8; save it as UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"{path}: not TOML: {error}") from None
    lines = _lines(text)
    values: dict[str, object] = {}
    keys: dict[str, tuple[str, ...]] = {}
    made = UserSettings(path, values, keys, lines)
    for name, value in _flat(document).items():
        if name.startswith(KEYS):
            keys[name.removeprefix(KEYS)] = _key_list(made, name, value)
            continue
        if name not in BY_NAME:
            raise made.error(name, f"no such setting; {_near(name)}")
        try:
            BY_NAME[name].check(value)
        except ValueError as error:
            raise made.error(name, str(error)) from None
        values[name] = value
    return made


def _near(name: str) -> str:
    from difflib import get_close_matches

    by_option = {setting.option: setting.name for setting in SETTINGS}
    near = get_close_matches(name.rpartition(".")[2], by_option, 1)
    return f"perhaps {by_option[near[0]]}" if near else "`ropechat config show` lists all"


def _key_list(made: UserSettings, name: str, value: object) -> tuple[str, ...]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(key, str) and key.strip() for key in found):
        raise made.error(name, f"{value!r:.40} is not allowed; a key or a list of keys is")
    return tuple(key.strip() for key in found)


def _flat(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """{"sampling.top_k": 5} of {"sampling": {"top_k": 5}}; an empty table says nothing."""
    found: dict[str, object] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


_HEADER = r"\s*\[([^\[\]]+)\]"
_ENTRY = r"""\s*([\w."'-]+)\s*="""


def _lines(text: str) -> dict[str, int]:
    """In which line each name stands; good enough for messages."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(_HEADER, line):
            table = re.sub(r"""["'\s]""", "", header[1]) + "."
        elif entry := re.match(_ENTRY, line):
            found.setdefault(table + re.sub(r"""["']""", "", entry[1]), number)
    return found


def _where(path: Path, line: int | None) -> str:
    return str(path) if line is None else f"{path}: line {line}"
