"""The model that the chat opened last: what `model = "last"` and `-m last` open."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ropechat import builtin
from ropechat.errors import RopechatError
from ropechat.models.recent import RecentModel, add_recent, recent_models
from ropechat.models.resolve import resolve
from ropechat.util.paths import expand_home


class Opening(NamedTuple):
    """The model to open. note: why it is another one than wanted. chosen: whether a person chose it."""

    model: str
    note: str = ""
    chosen: bool = True


def find_last(folders: Sequence[Path] = ()) -> Opening:
    """The newest opened model that is still here; without one the built-in model.

    folders: where other models are, as for `resolve`.
    """
    found = recent_models()
    here = next((one for one in found if _is_here(one, folders)), None)
    model = builtin.NAME if here is None else here.model
    note = ""
    if found and here is not found[0]:
        note = f"{found[0].model}, opened last, is no longer on this machine; {model} is opened instead"
    return Opening(model, note, here is not None)


def _is_here(one: RecentModel, folders: Sequence[Path]) -> bool:
    try:
        resolve(one.model, folders)
    except RopechatError:
        return False
    return True


def remember(model: str, name: str, folders: Sequence[Path] = ()) -> None:
    """Note that a model was opened. model: as it was chosen. name: as its answers are marked.

    A path in a cache is kept as the name that leads to it, any other path as an absolute one. Raises as
    `resolve`, FileAccessError, OSError.
    """
    path = resolve(model, folders).absolute()
    if model != builtin.NAME and expand_home(model).exists():
        model = name if "/" in name and _leads_to(name, path) else str(path)
    add_recent(RecentModel(model, name, str(path)))


def _leads_to(name: str, path: Path) -> bool:
    try:
        return resolve(name).absolute() == path
    except RopechatError:
        return False
