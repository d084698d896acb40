"""The folders that ropechat uses on this machine (the only importer of platformdirs); completing a path."""

import os
import sys
from itertools import islice
from pathlib import Path

from ropechat.errors import FileAccessError
from ropechat.util.text import one_line

_LISTED = 5000  # entries of a folder that are read


def _of_home(variable: str, folder: str) -> Path | None:
    """The platformdirs folder on Linux, computed here: importing platformdirs takes 28 ms."""
    if sys.platform != "linux":
        return None
    given = os.environ.get(variable, "")
    if given.strip():
        return Path(given) / "ropechat"
    try:
        return Path.home() / folder / "ropechat"
    except RuntimeError:
        raise FileAccessError(f"home folder: this user has none; set HOME or {variable}") from None


def cache_folder() -> Path:
    """The folder of caches, which may be deleted at any time; it may not exist."""
    if (folder := _of_home("XDG_CACHE_HOME", ".cache")) is not None:
        return folder
    from platformdirs import user_cache_path

    return user_cache_path("ropechat", appauthor=False)


def data_folder() -> Path:
    """The folder of what the user makes: ROPECHAT_DATA, or the user's data folder; it may not exist."""
    chosen = os.environ.get("ROPECHAT_DATA", "")
    folder = Path(chosen) if chosen.strip() else _of_home("XDG_DATA_HOME", ".local/share")
    if folder is None:
        from platformdirs import user_data_path

        folder = user_data_path("ropechat", appauthor=False)
    return folder


def conversations_folder() -> Path:
    """The folder of stored chats; it may not exist."""
    return data_folder() / "conversations"


def settings_file() -> Path:
    """The settings file: ROPECHAT_CONFIG, or config.toml in the user's configuration; it may not exist."""
    chosen = os.environ.get("ROPECHAT_CONFIG", "")
    if chosen.strip():
        return Path(chosen)
    folder = _of_home("XDG_CONFIG_HOME", ".config")
    if folder is None:
        from platformdirs import user_config_path

        folder = user_config_path("ropechat", appauthor=False, roaming=True)
    return folder / "config.toml"


def personas_folder() -> Path:
    """The folder of personas, next to the settings file; it may not exist."""
    return settings_file().parent / "personas"


def expand_home(name: str) -> Path:
    """A path with a leading ~ or ~user expanded, if there is such a folder."""
    return Path(os.path.expanduser(name))


def complete_path(begun: str, endings: tuple[str, ...] = ("",), limit: int = 50) -> list[str]:
    """Complete a path by the entries of its folder; a folder ends with a slash. Empty without matches.

    endings: of the files that are wanted. Names with control characters or quotes are left out.
    """
    head, _, start = begun.rpartition("/")
    folder = expand_home(f"{head}/" if "/" in begun else ".")
    try:
        with os.scandir(folder) as entries:
            found = sorted(
                (entry.name + ("/" if entry.is_dir() else ""))
                for entry in islice(entries, _LISTED)
                if entry.name.startswith(start) and (start or not entry.name.startswith("."))
            )
    except (OSError, ValueError, RuntimeError):
        return []
    plain = [name for name in found if one_line(name) == name and '"' not in name]
    wanted = [name for name in plain if name.endswith(("/", *endings))]
    return [(f"{head}/" if "/" in begun else "") + name for name in wanted[:limit]]
