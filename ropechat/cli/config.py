"""`ropechat config`: path, values and validation of the settings."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropechat.cli.common import FileName, StdoutWriter, stdin_stream
from ropechat.cli.exit_codes import say
from ropechat.cli.option_groups import CommandGroup, option
from ropechat.settings.file import KEYS, UserSettings, parse_settings, read_settings
from ropechat.util.paths import settings_file

if TYPE_CHECKING:
    from collections.abc import Mapping

_COLUMNS = (28, 24)


def checked_keys(found: UserSettings) -> "Mapping[str, tuple[str, ...]]":
    """The key bindings of the file. Raises SettingsError for invalid ones."""
    if not found.keys:
        return {}
    from ropechat.tui.commands.keymap import Keymap, KeymapError

    try:
        Keymap(found.keys)
    except KeymapError as error:
        raise found.error(f"{KEYS}{error.command}", str(error)) from None
    return found.keys


def _shown(value: object) -> str:
    if isinstance(value, list):
        return os.pathsep.join(value) or "-"
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


_EXAMPLES = """
  ropechat config show
  ropechat config check
  $EDITOR "$(ropechat config path)"
"""


@click.group(cls=CommandGroup, epilog=_EXAMPLES)
def config() -> None:
    """Show and check the settings in a TOML file.

    Flags override environment variables, then the file, then defaults.
    """


@config.command(epilog="  ropechat config path")
def path() -> None:
    """Print the path of the settings file.

    ROPECHAT_CONFIG changes it.
    """
    StdoutWriter().write(f"{settings_file()}\n")


@config.command(epilog="  ropechat config show | grep sampling")
@option("--json", "as_json", is_flag=True, help="Write one JSON object per setting.")
def show(as_json: bool) -> None:
    """Print every setting, its value and its origin."""
    found = read_settings(on_missing=lambda message: say(f"warning: {message}"))
    rows: list[tuple[str, Any, str]] = [(one.name, value, origin) for one, value, origin in found.effective()]
    for name, keys in checked_keys(found).items():
        at = f"{found.path}: line {found.lines.get(KEYS + name)}"
        rows.append((KEYS + name, list(keys), at))
    out = StdoutWriter()
    for name, value, at in rows:
        if as_json:
            out.write(json.dumps({"name": name, "value": value, "origin": at}) + "\n")
        else:
            out.write(f"{name:{_COLUMNS[0]}}{_shown(value):{_COLUMNS[1]}}  {at}\n")


@config.command(epilog="  ropechat config check ropechat.toml")
@click.argument("file", required=False, type=FileName())
def check(file: Path | str | None) -> None:
    """Check the settings file, or FILE (- is stdin).

    The exit code is 2 if it is invalid, and the faulty line is named.
    """
    found = parse_settings(stdin_stream(), Path("stdin")) if isinstance(file, str) else read_settings(file)
    checked_keys(found)
    if file is None:
        found.effective()
    absent = file is None and not found.path.exists()
    StdoutWriter().write(f"{found.path}: {'not found, using defaults' if absent else 'valid'}\n")
