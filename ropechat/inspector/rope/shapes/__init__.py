"""What the config.json files of well-known models say about positions: one file each, numbers only."""

from pathlib import Path

from ropechat.errors import RequestError

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The names of the shapes."""
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def config_path(name: str) -> Path:
    """The config.json of a shape. Raises RequestError for an unknown name."""
    if name not in names():
        raise RequestError(f"shape: must be one of {', '.join(names())} (got {name})")
    return _FOLDER / f"{name}.json"
