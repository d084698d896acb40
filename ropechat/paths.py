"""Where files of ours live on this machine. The only importer of platformdirs."""

from pathlib import Path


def cache_folder() -> Path:
    """What can be made again; it need not exist yet."""
    from platformdirs import user_cache_path

    return user_cache_path("ropechat", appauthor=False)
