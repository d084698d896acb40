"""Where files of ours live on this machine. The only importer of platformdirs."""

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """What can be made again; it need not exist yet."""
    if sys.platform == "linux":
        # As platformdirs says, whose import takes longer than all else that a start does with paths.
        given = os.environ.get("XDG_CACHE_HOME", "")
        return (Path(given) if given.strip() else Path.home() / ".cache") / "ropechat"
    from platformdirs import user_cache_path

    return user_cache_path("ropechat", appauthor=False)


def conversations_folder() -> Path:
    """Where conversations are kept: ROPECHAT_DATA, or a folder of the user's data; it need not exist yet."""
    from platformdirs import user_data_path

    chosen = os.environ.get("ROPECHAT_DATA")
    return (Path(chosen) if chosen else user_data_path("ropechat", appauthor=False)) / "conversations"
