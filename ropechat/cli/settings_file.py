"""Changing the settings file: one value at a time, comments and all else stay."""

import json
import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

from ropechat.cli import settings
from ropechat.errors import FileAccessError, SettingsError
from ropechat.tui.options import SettingRow
from ropechat.util.paths import settings_file

_TABLE = re.compile(r"\s*\[")
FLAG = "command line"


class SettingsFile:
    """The settings as the chat shows and changes them. flags: {option: value} of the command line."""

    def __init__(self, flags: Mapping[str, object]) -> None:
        self._flags = flags

    def rows(self) -> list[SettingRow]:
        """Every setting, its value and where that comes from. Raises SettingsError, FileAccessError."""
        found = []
        for one, value, origin in settings.read().effective():
            if one.option in self._flags:
                value, origin = self._flags[one.option], FLAG
            choices = settings.CHOICES.get(one.name, ())
            choices = (True, False) if isinstance(one.default, bool) else choices
            found.append(SettingRow(one.name, value, origin, one.help, choices))
        return found

    def change(self, name: str, value: object) -> str:
        """Write a value; None removes it. Returns the path. Raises SettingsError, FileAccessError."""
        setting = settings.BY_NAME[name]
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
        before = settings.of_stream(BytesIO(data), path)
        after = with_value(data.decode("utf-8-sig"), name, value, before.lines.get(name))
        try:
            made = settings.of_stream(BytesIO(after.encode()), path)
        except SettingsError:
            made = None
        wanted = {key: old for key, old in before.values.items() if key != name}
        wanted |= {} if value is None else {name: value}
        if made is None or dict(made.values) != wanted or made.keys != before.keys:
            raise SettingsError(f"{path}: line {before.lines.get(name)}: {name}: change it in an editor")
        _write(path, after)
        return str(path)

    def parse(self, name: str, text: str) -> object:
        """The value of a typed text; "" is None."""
        return settings.BY_NAME[name].reads(text) if text.strip() else None


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
    """Replace a file in one step; a link stays a link. Raises FileAccessError."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise FileAccessError(f"{path}: must be a regular file; the setting was not stored")
    made = ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, made = tempfile.mkstemp(dir=target.parent, prefix=".config-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        if target.exists():
            os.chmod(made, target.stat().st_mode & 0o777)
        os.replace(made, target)
    except OSError as error:
        if made:
            with suppress(OSError):
                os.unlink(made)
        raise FileAccessError(f"{path}: {error.strerror or error}; the setting was not stored") from None
