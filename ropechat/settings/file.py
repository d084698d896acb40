"""The settings file: reading it, and changing one value while comments and all else stay.

Key bindings, in the table [keys], are validated by the chat's keymap.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple

from ropechat.errors import FileAccessError, SettingsError
from ropechat.settings.spec import BY_NAME, SETTINGS, Setting
from ropechat.util.files import replacing
from ropechat.util.paths import settings_file

_MAX_BYTES = 1 << 20
_MAX_DEPTH = 8  # of tables in tables
_TABLE = re.compile(r"\s*\[")
KEYS = "keys."
FLAG = "command line"
DEFAULT = "default"


class EffectiveSetting(NamedTuple):
    """A setting with its value. origin: where the value comes from."""

    setting: Setting
    value: object
    origin: str


class UserSettings(NamedTuple):
    """The content of a settings file. values, lines (line numbers): by name; keys: bindings by command."""

    path: Path
    values: Mapping[str, object]
    keys: Mapping[str, tuple[str, ...]]
    lines: Mapping[str, int]

    def options(self, *, sampling: bool) -> dict[str, object]:
        """The values, as defaults of command-line options.

        model = "last" is left out: it is the default, which not all commands follow.
        """
        return {
            BY_NAME[name].option: value
            for name, value in self.values.items()
            if (sampling or not name.startswith("sampling."))
            and (name, value) != ("model", BY_NAME["model"].default)
        }

    def error(self, name: str, what: str) -> SettingsError:
        """An error about a setting of the file."""
        return SettingsError(f"{_where(self.path, self.lines.get(name))}: {name}: {what}")

    def effective(self, environ: Mapping[str, str] | None = None) -> list[EffectiveSetting]:
        """All settings, without flags. Raises SettingsError."""
        found: list[EffectiveSetting] = []
        for setting in SETTINGS:
            if (value := setting.of_environment(environ)) is not None:
                found.append(EffectiveSetting(setting, value, setting.variable))
            elif setting.name in self.values:
                line = self.lines.get(setting.name)
                found.append(EffectiveSetting(setting, self.values[setting.name], _where(self.path, line)))
            else:
                found.append(EffectiveSetting(setting, setting.default, DEFAULT))
        return found


def read_settings(path: Path | None = None, on_missing: Callable[[str], None] | None = None) -> UserSettings:
    """Read a settings file; the default one may be missing. Raises SettingsError, FileAccessError.

    on_missing: called with a message instead of an error if the file that ROPECHAT_CONFIG names is missing.
    """
    wanted = path or settings_file()
    try:
        if wanted.exists() and not wanted.is_file():
            raise SettingsError(f"{wanted}: must be a regular TOML file")
        with wanted.open("rb") as stream:
            return parse_settings(stream, wanted)
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
        what = f"{wanted}: {error.strerror or error}"
        raise FileAccessError(
            f"{what}; let this user read it, or name another with ROPECHAT_CONFIG"
        ) from None


def parse_settings(stream: IO[bytes], path: Path) -> UserSettings:
    """`read_settings` for an open file. path: its name in messages. Raises SettingsError, OSError."""
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


class SettingsFile:
    """The settings as the chat shows and changes them. flags: {option: value} of the command line."""

    def __init__(self, flags: Mapping[str, object]) -> None:
        self._flags = flags

    def rows(self) -> list[EffectiveSetting]:
        """All settings. Raises SettingsError, FileAccessError."""
        return [
            one._replace(value=self._flags[one.setting.option], origin=FLAG)
            if one.setting.option in self._flags
            else one
            for one in read_settings(on_missing=lambda message: None).effective()
        ]

    def change(self, name: str, value: object) -> str:
        """Write a value; None removes it. Returns the path. Raises SettingsError, FileAccessError."""
        setting = BY_NAME[name]
        if value is not None:
            try:
                setting.check(value)
            except ValueError as error:
                raise SettingsError(f"{name}: {error}") from None
        path = settings_file()
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            data = b""
        except OSError as error:
            raise FileAccessError(f"{path}: {error.strerror or error}") from None
        before = parse_settings(BytesIO(data), path)
        after = with_value(data.decode("utf-8-sig"), name, value, before.lines.get(name))
        try:
            made = parse_settings(BytesIO(after.encode()), path)
        except SettingsError:
            made = None
        wanted = {key: old for key, old in before.values.items() if key != name}
        wanted |= {} if value is None else {name: value}
        if made is None or dict(made.values) != wanted or made.keys != before.keys:
            raise SettingsError(f"{path}: line {before.lines.get(name)}: {name}: change it in an editor")
        _write(path, after)
        return str(path)


def with_value(text: str, name: str, value: object, line: int | None) -> str:
    """The text of a settings file with one value changed, added, or (None) removed. line: its line number."""
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    if line is not None:
        old = lines[line - 1]
        comment = re.search(r"\s+#[^\"']*$", old)
        tail = comment[0].rstrip("\n") if comment else ""
        new = "" if value is None else f"{old.partition('=')[0].rstrip()} = {_shown(value)}{tail}\n"
        return "".join([*lines[: line - 1], new, *lines[line:]])
    if value is None:
        return "".join(lines)
    table, _, key = name.rpartition(".")
    entry = f"{key} = {_shown(value)}\n"
    headers = [number for number, one in enumerate(lines) if _TABLE.match(one)]
    if not table:
        at = headers[0] if headers else len(lines)
        return "".join([*lines[:at], entry, *(["\n"] if headers else []), *lines[at:]])
    for number in headers:
        if re.match(rf"\s*\[\s*{re.escape(table)}\s*\]", lines[number]):
            return "".join([*lines[: number + 1], entry, *lines[number + 1 :]])
    gap = ["\n"] if lines else []
    return "".join([*lines, *gap, f"[{table}]\n", entry])


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _write(path: Path, text: str) -> None:
    """Replace the settings file. Raises FileAccessError."""
    if path.exists() and not path.is_file():
        raise FileAccessError(f"{path}: must be a regular file; the setting was not stored")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, private=True) as stream:
            stream.write(text.encode())
    except OSError as error:
        raise FileAccessError(f"{path}: {error.strerror or error}; the setting was not stored") from None
