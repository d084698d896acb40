"""The folders that ropechat uses on this machine. The only importer of platformdirs."""

import os
import sys
from pathlib import Path


def _of_home(variable: str, folder: str) -> Path | None:
    """The platformdirs folder on Linux, computed here: importing platformdirs takes 28 ms."""
    if sys.platform != "linux":
        return None
    given = os.environ.get(variable, "")
    return (Path(given) if given.strip() else Path.home() / folder) / "ropechat"


def cache_folder() -> Path:
    """The folder of caches, which may be deleted at any time; it need not exist."""
    if (folder := _of_home("XDG_CACHE_HOME", ".cache")) is not None:
        return folder
    from platformdirs import user_cache_path

    return user_cache_path("ropechat", appauthor=False)


def conversations_folder() -> Path:
    """The folder of stored chats, in ROPECHAT_DATA or the user's data folder; it need not exist."""
    chosen = os.environ.get("ROPECHAT_DATA", "")
    folder = Path(chosen) if chosen.strip() else _of_home("XDG_DATA_HOME", ".local/share")
    if folder is None:
        from platformdirs import user_data_path

        folder = user_data_path("ropechat", appauthor=False)
    return folder / "conversations"


def settings_file() -> Path:
    """The settings file: ROPECHAT_CONFIG, or config.toml in the user's configuration; it need not exist."""
    chosen = os.environ.get("ROPECHAT_CONFIG", "")
    if chosen.strip():
        return Path(chosen)
    folder = _of_home("XDG_CONFIG_HOME", ".config")
    if folder is None:
        from platformdirs import user_config_path

        folder = user_config_path("ropechat", appauthor=False, roaming=True)
    return folder / "config.toml"


def personas_folder() -> Path:
    """The folder of personas, beside the settings file; it need not exist."""
    return settings_file().parent / "personas"
