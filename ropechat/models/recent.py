"""The list of the models that the chat opened, the last one first, in the user's data folder."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ropechat.errors import RopechatError
from ropechat.util.files import replacing
from ropechat.util.paths import data_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ropechat.models.folders import FoundModel

SOURCE = "recent"
_KEPT = 50
_MAX_BYTES = 1 << 20


class RecentModel(NamedTuple):
    """model: what -m takes. name: as its answers are marked. path: of its folder or GGUF file."""

    model: str
    name: str
    path: str


def recent_models() -> list[RecentModel]:
    """The models that were opened, the last one first; empty if the list cannot be read."""
    try:
        with _file().open("rb") as stream:
            entries = json.loads(stream.read(_MAX_BYTES))
        found = [RecentModel(one["model"], one["name"], one["path"]) for one in entries]
    except (OSError, RopechatError, ValueError, LookupError, TypeError, RecursionError):
        return []
    return [one for one in found if all(isinstance(text, str) and text for text in one)]


def add_recent(new: RecentModel) -> None:
    """Put a model at the head of the list. Raises FileAccessError, OSError."""
    kept = [one for one in recent_models() if one.path != new.path and one.model != new.model]
    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with replacing(file, private=True) as stream:
        stream.write(json.dumps([one._asdict() for one in (new, *kept)[:_KEPT]], indent=1).encode())


def recent_by_path() -> "Iterator[FoundModel]":
    """Yield the models of the list that are still at their paths, under their names."""
    from ropechat.models.folders import FoundModel  # imported here: a start needs only the list

    for one in recent_models():
        path = Path(one.path)
        try:
            files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
            size = sum(file.stat().st_size for file in files)
        except OSError:
            continue
        if files:
            yield FoundModel(one.name, path, size, SOURCE)


def _file() -> Path:
    return data_folder() / "recent-models.json"
