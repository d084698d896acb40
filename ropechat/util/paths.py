"""Where files of ours live on this machine. The only importer of platformdirs."""

import os
import sys
from pathlib import Path


def _of_home(variable: str, folder: str) -> Path | None:
    """What platformdirs says on Linux; its import takes longer than all else a start does with paths."""
    if sys.platform != "linux":
        return None
    given = os.environ.get(variable, "")
    return (Path(given) if given.strip() else Path.home() / folder) / "ropechat"


def cache_folder() -> Path:
    """What can be made again; it need not exist yet."""
    if (folder := _of_home("XDG_CACHE_HOME", ".cache")) is not None:
        return folder
    from platformdirs import user_cache_path

    return user_cache_path("ropechat", appauthor=False)


def conversations_folder() -> Path:
    """Where chats are kept: below ROPECHAT_DATA, or the user's data; it need not exist yet."""
    chosen = os.environ.get("ROPECHAT_DATA", "")
    folder = Path(chosen) if chosen.strip() else _of_home("XDG_DATA_HOME", ".local/share")
    if folder is None:
        from platformdirs import user_data_path

        folder = user_data_path("ropechat", appauthor=False)
    return folder / "conversations"


def settings_file() -> Path:
    """The settings: ROPECHAT_CONFIG, or config.toml in the user's configuration; it need not exist yet."""
    chosen = os.environ.get("ROPECHAT_CONFIG", "")
    if chosen.strip():
        return Path(chosen)
    folder = _of_home("XDG_CONFIG_HOME", ".config")
    if folder is None:
        from platformdirs import user_config_path

        folder = user_config_path("ropechat", appauthor=False, roaming=True)
    return folder / "config.toml"


def personas_folder() -> Path:
    """Where personas are kept: beside the settings; it need not exist yet."""
    return settings_file().parent / "personas"
