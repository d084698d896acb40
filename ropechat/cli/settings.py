"""The settings: command-line flags override environment variables, then the TOML file, then defaults.

`SETTINGS` lists them all. Key bindings, in the table [keys], are validated by the chat's keymap.
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

KV_DTYPES = ("auto", "f32", "f16", "bf16", "q8_0")
DTYPES = ("auto", "f32", "bf16", "f16", "q8_0", "q6_k", "q5_1", "q5_k", "q4_1", "q4_k", "q4_0")
THEMES = (
    *("auto", "dark", "light", "ansi-dark", "ansi-light", "atom-one-dark", "atom-one-light"),
    *("catppuccin-frappe", "catppuccin-latte", "catppuccin-macchiato", "catppuccin-mocha", "dracula"),
    *("flexoki", "gruvbox", "monokai", "nord", "rose-pine", "rose-pine-dawn", "rose-pine-moon"),
    *("solarized-dark", "solarized-light", "textual-dark", "textual-light", "tokyo-night"),
)
VIEWS = ("tokens", "prose")
TINTS = ("surprisal", "sampled", "entropy", "rank", "off")
WHEN_FULL = ("ask", "slide", "stop")
MAX_INTEGER = 2**62  # limit of the compiled engine
GIGABYTE = 1_000_000_000
MAX_GIGABYTES = 1_000_000
_MAX_BYTES = 1 << 20
_MAX_DEPTH = 8  # of tables in tables
_SWITCH = dict.fromkeys(("on", "true", "t", "yes", "y", "1"), True)
_SWITCH |= dict.fromkeys(("off", "false", "f", "no", "n", "0"), False)

Check = Callable[[object], None]


def _text(value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be a non-empty string (got {value!r:.40})")


def _switch(value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false (got {value!r:.40})")


def _choice(*allowed: str) -> Check:
    def check(value: object) -> None:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)} (got {value!r:.40})")

    return check


def _count(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_INTEGER:
        raise ValueError(f"must be an integer of at least 1 (got {value!r:.40})")


def _texts(value: object) -> None:
    if not isinstance(value, list) or not all(isinstance(one, str) and one.strip() for one in value):
        raise ValueError(f"must be a list of non-empty strings (got {value!r:.40})")


def _gigabytes(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_GIGABYTES:
        raise ValueError(f"must be an integer from 0 to {MAX_GIGABYTES:,} (got {value!r:.40})")


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


def _to_texts(text: str) -> object:
    return [one for one in text.split(os.pathsep) if one.strip()]


def _to_number(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


class Setting(NamedTuple):
    """A setting. name: as in the file, with its table; its last part is the name of the option.

    check: raises ValueError for an invalid value. reads: parses the text of the environment variable.
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
        """The value of the environment variable; None if unset or empty. Raises SettingsError."""
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
    "top_k": "keep the k most probable tokens; 0 keeps all",
    "top_p": "keep the smallest set of tokens that reaches this probability",
    "min_p": "keep tokens with at least this share of the best one's probability",
    "repetition_penalty": "penalty on repeated tokens; 1 is off",
    "max_tokens": "maximum number of new tokens",
    "seed": "makes sampling repeatable",
}
SETTINGS = (
    Setting("model", "builtin", _text, "the default model, as for -m"),
    Setting("model_folders", [], _texts, f"more folders with models ({os.pathsep} between two)", _to_texts),
    Setting("dtype", "auto", _choice(*DTYPES), "type of the weights"),
    Setting("kv_dtype", "auto", _choice(*KV_DTYPES), "type of the KV cache"),
    Setting("speculative", True, _switch, "draft tokens where it is faster", _to_switch),
    Setting("draft", None, _text, "a small model with the same tokenizer that drafts tokens, as for --draft"),
    Setting("threads", None, _count, "number of threads; unset: the physical cores", _to_number),
    Setting("context", None, _count, "maximum tokens of a conversation; unset: the model's", _to_number),
    Setting("when_full", "ask", _choice(*WHEN_FULL), "what to do with a question that exceeds the context"),
    Setting("store", True, _switch, "store chats; false is --incognito", _to_switch),
    Setting("read_ahead", True, _switch, "read what will be sent before it is sent", _to_switch),
    Setting(
        *("kv_disk_gb", 4, _gigabytes),
        "GB on disk for what chats have read, so that it is not read again; 0 keeps nothing",
        _to_number,
    ),
    Setting("theme", "auto", _choice(*THEMES), "colours of the chat"),
    Setting("tint", "surprisal", _choice(*TINTS), "which number tints tokens"),
    Setting("view", "tokens", _choice(*VIEWS), "tokens as they came, or Markdown as prose"),
    Setting("inspector", False, _switch, "show the inspector beside a wide chat from the start", _to_switch),
    Setting("tips", True, _switch, "show a line of help below the composer", _to_switch),
    Setting("overview", True, _switch, "show chats and branches at the left of a wide screen", _to_switch),
    Setting("follow", True, _switch, "scroll while the model writes", _to_switch),
    Setting("mouse", True, _switch, "use the mouse in the chat; F8 toggles it", _to_switch),
    *(
        Setting(f"sampling.{one.name}", one.default, _sampling(one.name), _STEPS[one.name], _to_number)
        for one in fields(Sampling)
        if one.name in _STEPS
    ),
)
CHOICES: dict[str, tuple[object, ...]] = {
    **{"dtype": DTYPES, "kv_dtype": KV_DTYPES, "when_full": WHEN_FULL, "theme": THEMES, "tint": TINTS},
    "view": VIEWS,
}
BY_NAME = {setting.name: setting for setting in SETTINGS}
KEYS = "keys."


class UserSettings(NamedTuple):
    """The content of a settings file. values, lines (line numbers): by name; keys: bindings by command."""

    path: Path
    values: Mapping[str, object]
    keys: Mapping[str, tuple[str, ...]]
    lines: Mapping[str, int]

    def options(self, *, sampling: bool) -> dict[str, object]:
        """The values, as defaults of command-line options."""
        return {
            BY_NAME[name].option: value
            for name, value in self.values.items()
            if sampling or not name.startswith("sampling.")
        }

    def error(self, name: str, what: str) -> SettingsError:
        """An error about a setting of the file."""
        return SettingsError(f"{_where(self.path, self.lines.get(name))}: {name}: {what}")

    def effective(self, environ: Mapping[str, str] | None = None) -> list[tuple[Setting, object, str]]:
        """(setting, value, origin) of all settings, without flags. Raises SettingsError."""
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


def read(path: Path | None = None, on_missing: Callable[[str], None] | None = None) -> UserSettings:
    """Read a settings file; the default one may be missing. Raises SettingsError, FileAccessError.

    on_missing: called with a message instead of an error if the file that ROPECHAT_CONFIG names is missing.
    """
    wanted = path or settings_file()
    try:
        if wanted.exists() and not wanted.is_file():
            raise SettingsError(f"{wanted}: must be a regular TOML file")
        with wanted.open("rb") as stream:
            return of_stream(stream, wanted)
    except FileNotFoundError:
        if path is None and not os.environ.get("ROPECHAT_CONFIG", "").strip():
            return UserSettings(wanted, {}, {}, {})
        if path is not None:
            raise SettingsError(f"{wanted}: file not found") from None
        message = (
            f"ROPECHAT_CONFIG: {wanted}: file not found; create it (it may be empty) or unset ROPECHAT_CONFIG"
        )
        if on_missing is None:
            raise SettingsError(message) from None
        on_missing(message)
        return UserSettings(wanted, {}, {}, {})
    except OSError as error:
        raise FileAccessError(f"{wanted}: {error.strerror or error}") from None


def of_stream(stream: IO[bytes], path: Path) -> UserSettings:
    """`read` for an open file. path: its name in messages. Raises SettingsError, OSError."""
    import tomllib

    data = stream.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise SettingsError(f"{path}: must be at most {_MAX_BYTES:,} bytes")
    try:
        text = data.decode("utf-8-sig")
        document = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise SettingsError(f"{path}: line {line}: must be UTF-8; save the file as UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from None
    lines = _lines(text)
    values: dict[str, object] = {}
    keys: dict[str, tuple[str, ...]] = {}
    made = UserSettings(path, values, keys, lines)
    for name, value in _flat(document, path).items():
        if name.startswith(KEYS):
            keys[name.removeprefix(KEYS)] = _key_list(made, name, value)
            continue
        if name not in BY_NAME:
            raise made.error(name, f"unknown setting; {_suggest(name)}")
        try:
            BY_NAME[name].check(value)
        except ValueError as error:
            raise made.error(name, str(error)) from None
        values[name] = value
    return made


def _suggest(name: str) -> str:
    from difflib import get_close_matches

    by_option = {setting.option: setting.name for setting in SETTINGS}
    near = get_close_matches(name.rpartition(".")[2], by_option, 1)
    return f"did you mean {by_option[near[0]]}?" if near else "`ropechat config show` lists all settings"


def _key_list(made: UserSettings, name: str, value: object) -> tuple[str, ...]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(key, str) and key.strip() for key in found):
        raise made.error(name, f"must be a key or a list of keys (got {value!r:.40})")
    return tuple(key.strip() for key in found)


def _flat(table: Mapping[str, object], path: Path, prefix: str = "", depth: int = 0) -> dict[str, object]:
    """Flatten {"sampling": {"top_k": 5}} to {"sampling.top_k": 5}. Raises SettingsError naming the file."""
    if depth > _MAX_DEPTH:
        raise SettingsError(f"{path}: tables are nested too deeply ({prefix:.40})")
    found: dict[str, object] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            found |= _flat(value, path, f"{prefix}{name}.", depth + 1)
        else:
            found[prefix + name] = value
    return found


_HEADER = r"\s*\[([^\[\]]+)\]"
_ENTRY = r"""\s*([\w."'-]+)\s*="""


def _lines(text: str) -> dict[str, int]:
    """The line number of each name; approximate, for messages."""
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
